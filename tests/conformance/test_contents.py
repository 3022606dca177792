"""What is seen of a store beside its sink's job: every live row, what is held of a key, and removals by version."""

from typing import Any, cast

import pytest

from cdc.config.stores import SqlConfig
from cdc.model.events import pack_version
from docs.examples.jsonlines.jsonlines_store import JsonLinesContents, JsonLinesSink
from sinks.cache.contents import CacheContents
from sinks.cache.sink import CacheSink
from sinks.contents import StoreContents, StoredEntry
from sinks.search.contents import SearchContents
from sinks.search.sink import SearchSink
from sinks.sql.contents import SqlContents
from sinks.sql.sink import SqlSink
from sinks.warehouse.contents import WarehouseContents
from sinks.warehouse.removal import remove
from sinks.warehouse.sink import WarehouseSink
from tests.conformance.stores import SqlStore
from tests.conformance.tables import LABELS, ORDER_LINES, Table
from tests.conformance.trial import Trial
from tests.conformance.warehouse_store import WarehouseStore

V = pack_version(1, 100)
LINES = [{"order_id": number, "line_no": -number} for number in range(4)]
NAMES = [{"name": text} for text in ("plain", "a:*[b]", "/ü%", "'\"\n")]


def contents_of(trial: Trial) -> StoreContents:
    match trial.sink:
        case SearchSink() as sink:
            return SearchContents(sink)
        case CacheSink() as sink:
            return CacheContents(sink)
        case SqlSink() as sink:
            section, _ = cast(SqlStore, trial.store).section
            return SqlContents(sink, cast(SqlConfig, section))
        case WarehouseSink():
            store = cast(WarehouseStore, trial.store)
            return WarehouseContents(store.place, lambda _, at, key, held: remove(store.engine(), at, key, held))
        case JsonLinesSink() as sink:
            return JsonLinesContents(sink)
    raise AssertionError("every store of the suite can be compared")


def seen(contents: StoreContents, table: Table) -> list[tuple[list[Any], int]]:
    rows = [(list(key.values()), held.version) for key, held in contents.rows(table.id)]
    return sorted(rows, key=repr)


@pytest.mark.parametrize(("table", "keys"), [(ORDER_LINES, LINES), (LABELS, NAMES)], ids=["two columns", "text"])
def test_rows_and_versions_are_seen_and_removed_by_version(
    sink_under_test: Trial, table: Table, keys: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.sql.contents.PAGE_ROWS", 2)
    trial = sink_under_test
    trial.apply(*(table.upsert(V + number, **key) for number, key in enumerate(keys)))
    trial.apply(table.delete(V + 10, **keys[0]))
    trial.check()
    contents = contents_of(trial)
    contents.attach(table.schema)
    assert contents.is_prepared(table.id)
    assert seen(contents, table) == sorted(
        [(list(key.values()), V + number) for number, key in enumerate(keys) if number], key=repr
    )
    strange = {name: 99 if isinstance(value, int) else "99" for name, value in keys[0].items()}
    deleted, live, nothing = contents.held(table.id, [keys[0], keys[1], strange])
    assert (deleted, nothing) == (StoredEntry(V + 10, None), None)
    assert live is not None and (live.version, live.copies, live.is_edited) == (V + 1, 1, False)
    assert live.row is not None and {name: live.row[name] for name in keys[1]} == keys[1]

    contents.remove(table.id, [(keys[0], V + 10), (keys[1], V + 1), (keys[2], V)])  # the last one has another version
    assert all(left is None or left.version == 0 for left in contents.held(table.id, keys[:2]))
    trial.sink.apply(
        [table.upsert(V - 50, **keys[0]), table.upsert(V - 49, **keys[1]), table.upsert(V - 48, **keys[2])]
    )
    trial.sink.make_readable({table.id})
    found = contents.held(table.id, keys)
    assert [held.version for held in found if held] == [V - 50, V - 49, V + 2, V + 3]
    assert len(seen(contents, table)) == 4
