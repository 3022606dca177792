"""The list of tags, in a catalog that PyIceberg made."""

import json
import shutil
from pathlib import Path

import pyarrow as pa

from cdc.model.events import TableId
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.properties import TABLES
from sinks.warehouse.tag_list import Tag, read_tags
from sinks.warehouse.tags import TagPosition, tag_name


def test_tags_are_listed_with_the_tables_that_have_them(tmp_path: Path) -> None:
    place = CatalogPlace(tmp_path / "catalog.db", (tmp_path / "tables").as_uri(), "shop")
    assert read_tags(place) == []
    old, new = (tag_name(TagPosition(1, lsn)) for lsn in (0x100, 0x2_0000_0000))
    tables = [TableId("public", "a"), TableId("public", "b")]
    with place.opened() as catalog:
        catalog.create_namespace(("shop",), {TABLES: json.dumps([list(table) for table in tables])})
        catalog.create_namespace(("shop", "public"))
        ids = []
        for table, names in zip(tables, ([old, new, "release"], [new]), strict=True):
            rows = pa.table({"id": [1]})
            made = catalog.create_table(place.place(table).rows, rows.schema)
            made.append(rows)
            snapshot = made.current_snapshot()
            assert snapshot is not None
            ids.append(snapshot.snapshot_id)
            for name in names:
                made.manage_snapshots().create_tag(snapshot.snapshot_id, name).commit()
    both = [
        Tag(new, 1, "2/0", {"shop.public.a": ids[0], "shop.public.b": ids[1]}, ()),
        Tag(old, 1, "0/100", {"shop.public.a": ids[0]}, ("shop.public.b",)),
    ]
    assert read_tags(place) == both
    with place.opened() as catalog:
        catalog.drop_table(place.place(tables[1]).rows)
    assert read_tags(place) == [
        Tag(tag.name, 1, tag.lsn, {"shop.public.a": ids[0]}, ("shop.public.b",)) for tag in both
    ]
    shutil.rmtree(tmp_path / "tables")
    assert read_tags(place) == []
