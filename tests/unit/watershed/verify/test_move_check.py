"""When a database counts as the captured one, and what is said if it does not."""

from dataclasses import replace

import pytest

from cdc.model.errors import SourceError
from cdc.model.events import Column, TableId, TableSchema
from watershed.verify.move_check import MoveCheck, TableCheck, columns_differing, compared

ORDERS = TableId("public", "orders")
ID = Column("id", 20, -1, "bigint", False)
NAME = Column("name", 25, -1, "text", True)
SCHEMA = TableSchema(ORDERS, 1, 16_385, (ID, NAME), ("id",), "shop.public.orders")


def of(*tables: TableCheck) -> MoveCheck:
    return MoveCheck(("8", "shop"), ("7", "shop"), tables)


def test_the_same_rows_and_a_few_that_change_meanwhile_are_no_problem() -> None:
    of(TableCheck(ORDERS), TableCheck(ORDERS, sampled=2_000, missing=60, differing=40)).require_same()


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (TableCheck(ORDERS, sampled=2_000, missing=1_800), "of 2,000 sampled rows of public.orders, 1,800 are missing"),
        (TableCheck(ORDERS, sampled=2_000, missing=60, differing=41), "60 are missing there and 41 differ"),
        (TableCheck(ORDERS, sampled=3, missing=3), "of 3 sampled rows of public.orders, 3 are missing there"),
        (TableCheck(ORDERS, columns="without name"), r"public.orders has other columns there \(without name\)"),
        (TableCheck(ORDERS, unknown="no key"), "public.orders can't be compared with its topic: no key"),
    ],
)
def test_another_database_is_refused_with_the_figures_and_the_next_step(found: TableCheck, says: str) -> None:
    with pytest.raises(SourceError, match=says) as raised:
        of(TableCheck(TableId("public", "other"), sampled=5), found).require_same()
    assert "system identifier 8" in raised.value.message
    assert "--accept-differences" in raised.value.hint


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ((ID,), "without name"),
        ((ID, NAME, replace(NAME, name="more")), "also more"),
        ((ID, replace(NAME, type_oid=1043, type_name="character varying")), "name is character varying, was text"),
        ((ID, replace(NAME, nullable=False)), "name must not be NULL"),
        ((NAME, ID), "in another order, or of types with the same name"),
    ],
)
def test_how_columns_differ_is_said(columns: tuple[Column, ...], words: str) -> None:
    assert columns_differing(SCHEMA, replace(SCHEMA, columns=columns)) == words


def test_sampled_rows_that_are_not_found_or_cant_be_looked_up_are_missing() -> None:
    """A heal deletes them. Seen: rows whose keys could not be looked up were left out, so that a database was the same
    if none could be."""
    sampled = {b"same": 1, b"differs": 2, b"gone": 3, b"\0no key of the table": 4}
    assert compared(sampled, {b"same": 1, b"differs": 9, b"another": 5}) == (2, 1)
    assert compared({}, {}) == (0, 0)
