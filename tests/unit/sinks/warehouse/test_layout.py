"""What of the configuration fits a table, and how SQL says it."""

from typing import Any

import pytest

from cdc.config.store_shapes import WarehouseShape
from cdc.model.events import Column, TableId, TableSchema
from sinks.errors import RefusedError
from sinks.warehouse.layout import Layout, layout_of


def column(name: str, oid: int) -> Column:
    return Column(name, oid, -1, "", True, "b", oid)


SCHEMA = TableSchema(
    TableId("public", "orders"),
    1,
    1,
    (column("id", 20), column("at", 1184), column("born", 1082), column("ratio", 701), column("tags", 1016)),
    ("id",),
    "shop.public.orders",
)


def layout(**options: Any) -> Layout:
    return layout_of(WarehouseShape(**options), SCHEMA)


def test_columns_of_the_source_and_of_the_mode() -> None:
    found = layout(
        mode="history", partition_by=("day(valid_from)", "bucket(16, id)", "month(born)", "born"), sort_by=("id desc",)
    )
    assert found == Layout(("days(`valid_from`)", "bucket(16, `id`)", "months(`born`)", "`born`"), ("`id` DESC",))
    assert layout() == Layout()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_by": ("day(other)",)}, "partition_by names column other, which the table does not have"),
        ({"partition_by": ("day(valid_from)",)}, "partition_by names column valid_from"),
        ({"sort_by": ("other",)}, "sort_by names column other"),
        ({"partition_by": ("hour(born)",)}, "column born has type date, for which Iceberg has no transform hour"),
        ({"partition_by": ("day(id)",)}, "column id has type bigint"),
        ({"partition_by": ("bucket(4, ratio)",)}, "column ratio has type double"),
        ({"partition_by": ("truncate(4, at)",)}, "column at has type timestamp"),
        ({"partition_by": ("ratio",)}, "no transform identity"),
        ({"partition_by": ("day(at)", "day(at)")}, "the same partition twice"),
        ({"sort_by": ("tags",)}, "which has no order"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=f"table public.orders: .*{message}"):
        layout(**options)
