"""Mappings are checked against all tables at once."""

from typing import Any

import pytest

from cdc.config.stores import CacheConfig, StoreConfig, WarehouseConfig
from cdc.model.errors import ConfigError
from sinks.shaping.check import PlannedTable, planned_tables
from tests.conformance.tables import CUSTOMERS, ORDER_LINES

SCHEMAS = [CUSTOMERS.schema, ORDER_LINES.schema]


def sinks(**mapping: Any) -> dict[str, StoreConfig]:
    tables = {f"public.{name}": entry for name, entry in mapping.items()}
    return {"users": CacheConfig.model_validate({"url": "redis://c", "mapping": tables})}


def test_what_a_sink_is_to_hold_is_told() -> None:
    wanted = sinks(customers={"include": ["name"], "rename": {"name": "title"}, "where": "visits > 1"})
    assert planned_tables(wanted, SCHEMAS) == [
        PlannedTable("users", "cache", "public.customers", ("id", "title"), "visits > 1"),
        PlannedTable("users", "cache", "public.order_lines", ("order_id", "line_no", "quantity", "remark"), None),
    ]


def test_all_problems_are_told_at_once() -> None:
    wanted = sinks(customers={"exclude": ["nme"]}, order_lines={"where": "remark > 1"})
    with pytest.raises(ConfigError) as caught:
        planned_tables(wanted, SCHEMAS)
    assert caught.value.message == (
        "sink users: mapping of public.customers: exclude names column nme, which the table does not have; "
        "sink users: mapping of public.order_lines: column remark of public.order_lines (character varying) can only "
        "be compared with a text in single quotes"
    )


def test_a_column_that_no_table_of_a_pattern_has_is_no_column() -> None:
    planned_tables(sinks(**{"*": {"exclude": ["name", "remark"]}}), SCHEMAS)
    with pytest.raises(ConfigError, match=r"mapping of public\.\* names column nme, which none of its tables has"):
        planned_tables(sinks(**{"*": {"exclude": ["name", "nme"]}}), SCHEMAS)


def lake(**shape: Any) -> dict[str, StoreConfig]:
    section = {"catalog_uri": "jdbc:sqlite:c.db", "location": "tables", "shapes": {"public.customers": shape}}
    mapping = {"public.customers": {"rename": {"name": "title"}}}
    return {"lake": WarehouseConfig.model_validate({**section, "mapping": mapping, "tables": ["public.customers"]})}


def test_tables_of_a_warehouse_are_told_as_they_will_be() -> None:
    (planned,) = planned_tables(lake(mode="history", partition_by=["bucket(4, id)"], sort_by=["title"]), SCHEMAS)
    assert planned.layout == "as history, partitioned by bucket(4, id), sorted by title"


def test_partitions_are_made_of_columns_as_the_warehouse_names_them() -> None:
    with pytest.raises(
        ConfigError, match=r"sink lake: .*public\.customers: sort_by names column name, which the table"
    ):
        planned_tables(lake(sort_by=["name"]), SCHEMAS)


def test_a_mode_alone_makes_another_shape_of_a_tables_rows() -> None:
    table = CUSTOMERS.schema.table
    marks = {mode: lake(mode=mode)["lake"].fingerprints([table])[str(table)] for mode in ("current", "history")}
    assert marks["current"] != marks["history"]
    assert lake(partition_by=["id"])["lake"].fingerprints([table])[str(table)] == marks["current"]
