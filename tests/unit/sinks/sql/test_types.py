"""The type of each column, by dialect, and values that a type can't hold."""

import pytest

from cdc.model.events import Column
from sinks.json_values import Unholdable
from sinks.sql.types import postgres_form, sqlite_form


def column(oid: int, name: str, modifier: int = -1, **more: object) -> Column:
    return Column("c", oid, modifier, name, nullable=True, base_type_oid=oid, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "postgres", "sqlite"),
    [
        (column(20, "bigint"), "bigint", "BIGINT"),
        (column(1700, "numeric(12,2)", (12 << 16 | 2) + 4), "numeric(12,2)", "TEXT"),
        (column(1700, "numeric"), "numeric", "TEXT"),
        (column(1043, "character varying(20)", 24), "text", "TEXT"),
        (column(1184, "timestamp with time zone"), "timestamptz", "TEXT"),
        (column(1009, "text[]", element_oid=25), "text[]", "TEXT"),
        (column(1007, "integer[]"), "integer[]", "TEXT"),
        (column(99_001, "mood[]", element_oid=99_000), "text[]", "TEXT"),
        (column(99_000, "mood", type_kind="e"), "text", "TEXT"),
        (column(99_002, "vector(3)"), "text", "TEXT"),
        (column(701, "double precision"), "double precision", ""),
        (column(16, "boolean"), "boolean", "BOOLEAN"),
        (column(3802, "jsonb"), "jsonb", "TEXT"),
    ],
)
def test_types_come_from_the_sources(held: Column, postgres: str, sqlite: str) -> None:
    assert (postgres_form(held).ddl, sqlite_form(held).ddl) == (postgres, sqlite)
    assert postgres_form(held, "citext").ddl == sqlite_form(held, "citext").ddl == "citext"


def test_a_chosen_type_reads_the_value_itself_so_that_nothing_is_cut() -> None:
    """A cast to varchar(5) would cut a longer text; JSON has to be cast, from its text."""
    assert postgres_form(column(25, "text"), "varchar(5)").read_as == "varchar(5)"
    assert postgres_form(column(25, "text"), "jsonb").read_as == "text"
    assert postgres_form(column(3802, "jsonb")).read_as == "text"


@pytest.mark.parametrize(
    ("held", "value"),
    [
        (column(20, "bigint"), "7"),
        (column(20, "bigint"), 1 << 63),
        (column(16, "boolean"), 1),
        (column(701, "double precision"), "much"),
        (column(17, "bytea"), "no base64!"),
        (column(25, "text"), 7),
    ],
)
def test_what_sqlite_would_take_for_another_value_is_refused_without_the_value(held: Column, value: object) -> None:
    with pytest.raises(Unholdable) as caught:
        sqlite_form(held).write(value)
    assert str(value) not in str(caught.value)


def test_bytes_of_arrays_go_both_ways() -> None:
    form = postgres_form(column(1001, "bytea[]"))
    assert form.write([["AQI="], [None]]) == [["\\x0102"], [None]]
    assert form.read('[["\\\\x0102"],[null]]') == [["AQI="], [None]]
