"""Columns of which a store can't hold every value are named before the first such value comes."""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from cdc.config.stores import CacheConfig, StoreConfig, WarehouseConfig
from cdc.model.events import Column, TableId, TableSchema
from sinks.schema_history import SchemaHistory
from sinks.shaping.limits import limit_findings, unheld_columns
from sinks.shaping.table import TableShape
from sinks.warehouse.columns import column_type, unheld_values
from tests.conformance.tables import CUSTOMERS

MOMENTS = "infinity, years outside 1 to 9999"
ARRAYS = "arrays of several dimensions or with explicit bounds"


def column(name: str, oid: int, type_name: str, modifier: int = -1, element: int = 0) -> Column:
    return Column(name, oid, modifier, type_name, nullable=True, base_type_oid=oid, element_oid=element)


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


COLUMNS: list[tuple[Column, str, Any]] = [
    (column("whole", 20, "bigint"), "", None),
    (column("ratio", 701, "double precision"), "", None),
    (column("free", 1700, "numeric"), "", None),
    (column("price", 1700, "numeric(8,2)", numeric(8, 2)), "NaN", "NaN"),
    (column("wide", 1700, "numeric(50,2)", numeric(50, 2)), "", None),
    (column("born", 1082, "date"), MOMENTS, "infinity"),
    (column("seen", 1114, "timestamp"), MOMENTS, "10000-01-01T00:00:00"),
    (column("at", 1184, "timestamptz"), MOMENTS, "-infinity"),
    (column("tags", 1009, "text[]", element=25), ARRAYS, [["a"], ["b"]]),
    (column("days", 1182, "date[]", element=1082), f"{ARRAYS}, {MOMENTS}", ["infinity"]),
    (column("rates", 1231, "numeric(8,2)[]", numeric(8, 2), element=1700), f"{ARRAYS}, NaN", ["NaN"]),
]


@pytest.mark.parametrize(("tested", "values", "example"), COLUMNS, ids=[one.name for one, _, _ in COLUMNS])
def test_what_is_said_of_a_type_is_what_the_warehouse_refuses(tested: Column, values: str, example: Any) -> None:
    assert unheld_values(tested) == values
    if example is not None:
        with pytest.raises(Exception, match=r"(?s).+"):
            column_type(tested).array([example])


def schema() -> TableSchema:
    key = column("id", 1184, "timestamptz")
    return replace(CUSTOMERS.schema, columns=(key, *(one for one, _, _ in COLUMNS)), key=("id",))


def lake(**options: Any) -> StoreConfig:
    section = {"catalog_uri": "jdbc:sqlite:c.db", "location": "tables", **options}
    return WarehouseConfig.model_validate(section)


def found(section: StoreConfig, *schemas: TableSchema) -> list[Any]:
    tables = [
        (one.table, frozenset(one.key), unheld_columns(section, TableShape("lake", section, SchemaHistory((one,)))))
        for one in schemas
    ]
    return list(limit_findings("lake", section, tables))


def test_all_tables_are_in_one_finding_with_the_lines_that_hold_the_values() -> None:
    other = replace(schema(), table=TableId("public", "other"), columns=schema().columns[:3])
    (finding,) = found(lake(), schema(), other)
    assert (finding.about, finding.level) == ("sink lake", "ok"), "nothing is wrong with a timestamp"
    named = re.findall(r"(\w+) \(", finding.message)
    assert named == ["id", "price", "born", "seen", "at", "tags", "days", "rates", "id"]
    lines = yaml.safe_load(finding.next.partition("of these: ")[2])
    wanted = ["at", "born", "days", "price", "rates", "seen", "tags"]
    assert lines == {"sinks": {"lake": {"mapping": {"public.customers": {"as_text": wanted}}}}}, "a key can't be text"
    (left,) = found(lake(mapping=lines["sinks"]["lake"]["mapping"]), schema())
    assert re.findall(r"(\w+) \(", left.message) == ["id"]


def test_an_entry_of_the_mapping_keeps_what_it_has_and_layouts_keep_their_columns() -> None:
    mapping = {"public.*": {"as_text": ["price"], "rename": {"seen": "last_seen"}}}
    shapes = {"*": {"partition_by": ["day(last_seen)"], "sort_by": ["born desc"]}}
    (finding,) = found(lake(mapping=mapping, shapes=shapes, on_rejected="stop"), schema())
    assert "such a value stops the sink" in finding.message
    lines = yaml.safe_load(finding.next.partition("of these: ")[2])
    assert lines["sinks"]["lake"]["mapping"] == {"public.*": {"as_text": ["at", "days", "price", "rates", "tags"]}}


def test_stores_that_keep_every_value_are_not_named() -> None:
    assert found(CacheConfig.model_validate({"url": "redis://c"}), schema()) == []
