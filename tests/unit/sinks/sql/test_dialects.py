"""Names that are too long for the database stay different, and templates name the readers' tables."""

import pytest

from cdc.model.events import TableId
from sinks.errors import RefusedError
from sinks.sql.dialects import DIALECTS, dialect_of

ORDERS = TableId("sales", "orders")
POSTGRES, SQLITE = DIALECTS["postgresql"], DIALECTS["sqlite"]


def test_long_names_are_cut_and_stay_different() -> None:
    names = {POSTGRES.bounded("ü" * 40 + end) for end in ("a", "b")}
    assert len(names) == 2 and all(len(name.encode()) <= 63 for name in names)
    assert POSTGRES.bounded("short") == "short"


@pytest.mark.parametrize(
    ("template", "postgres", "sqlite"),
    [
        (None, ("sales", "orders"), (None, "sales_orders")),
        ("{table}_copy", (None, "orders_copy"), (None, "orders_copy")),
    ],
)
def test_places(template: str | None, postgres: tuple[str | None, str], sqlite: tuple[str | None, str]) -> None:
    assert POSTGRES.place(template, ORDERS) == postgres
    assert SQLITE.place(template, ORDERS) == sqlite


def test_a_schema_where_there_are_none_and_a_name_that_is_too_long_are_refused() -> None:
    assert POSTGRES.place("report.{table}", ORDERS) == ("report", "orders")
    with pytest.raises(RefusedError, match="has no schemas"):
        SQLITE.place("report.{table}", ORDERS)
    with pytest.raises(RefusedError, match="longer than 63 bytes"):
        POSTGRES.place("x" * 64, ORDERS)


def test_only_known_databases() -> None:
    assert dialect_of("postgres") is POSTGRES
    with pytest.raises(
        RefusedError, match=r"databases of mssql\n  next: its url begins with one of: postgresql://, sqlite"
    ):
        dialect_of("mssql")
