"""Conditions that are SQL expressions: which rows a store holds, rows that can't be decided, and mistakes."""

from typing import Any

import pytest

from cdc.model.errors import ConfigError
from sinks.contract import Outcome, SourceOperation
from sinks.errors import RefusedError
from sinks.shaping.check import planned_tables
from sinks.shaping.expressions.types import ComputationError
from tests.conformance.tables import CUSTOMERS
from tests.unit.sinks.shaping.test_check import sinks
from tests.unit.sinks.shaping.test_computed import altered, shape
from tests.unit.sinks.shaping.test_sink import Store, mapped

LARGE = "balance * visits >= 100 AND lower(name) <> 'draft'"


@pytest.mark.parametrize(
    ("row", "is_held"),
    [
        ({"balance": "50", "visits": 2, "name": "Ann"}, True),
        ({"balance": "50", "visits": 2, "name": "DRAFT"}, False),
        ({"balance": "49.99", "visits": 2, "name": "Ann"}, False),
        ({"balance": None, "visits": 2, "name": "Ann"}, False),  # NULL is not true
    ],
)
def test_a_row_is_held_where_the_expression_is_true(row: dict[str, Any], is_held: bool) -> None:
    change = shape(where=LARGE, exclude=["name"]).change(CUSTOMERS.upsert(5, id=1, **row))
    assert change is not None and change.version == 5
    assert (change.row is not None) is is_held


def test_what_a_row_does_that_is_left_out_depends_on_how_it_came() -> None:
    """So that a history ends the row's interval if there is one, and begins none."""
    made = shape(where="visits + 1 > 2")
    change = CUSTOMERS.upsert(5, id=1, visits=1)
    for operation, seen in (("c", "n"), ("r", "n"), ("u", "x")):
        moved = made.change(change.__replace__(origin=SourceOperation(operation, 7)))
        assert moved is not None and moved.row is None and moved.origin == SourceOperation(seen, 7)


def test_a_row_that_can_t_be_decided_is_rejected_and_no_other() -> None:
    store = Store()
    sink = mapped(store, where="balance / visits > 1")
    sink.prepare(CUSTOMERS.schema)
    changes = [
        CUSTOMERS.upsert(5, id=1, balance="1", visits=0),
        CUSTOMERS.upsert(6, id=2, balance="4", visits=2),
        CUSTOMERS.upsert(7, id=3, balance="1", visits=2),
        CUSTOMERS.delete(8, id=1),
    ]
    results = sink.apply(changes)
    assert [one.outcome for one in results] == [Outcome.REJECTED, *[Outcome.WRITTEN] * 3]
    assert results[0].reason == "the condition can't be decided: division by zero"
    assert [(one.key["id"], one.row is not None) for one in store.changes] == [(2, True), (3, False), (1, False)]


def test_a_change_that_lacks_a_column_waits_for_the_whole_row() -> None:
    made = shape(where="length(name) > 2 AND visits > 0")
    assert made.change(CUSTOMERS.update(5, ["name"], id=1, visits=1)) is None
    other = made.change(CUSTOMERS.update(5, ["photo"], id=1, visits=1, name="Ann"))
    assert other is not None and other.row is not None


@pytest.mark.parametrize(
    ("where", "reported"),
    [
        ("upper(nme) = 'X'", "where: table public.customers has no column nme"),
        ("visits + 1", "where: it is true or false for no row: its type is integer"),
        ("1 + 1 = 2", "where: it reads no column"),
        ("upper(name) = 'X' OR visits = NULL", "where: nothing is equal to NULL"),
        ("visits + 1 IN (1, NULL)", "where: nothing is equal to NULL"),
        ("visits = 1 / 0", "where: 1 / 0 has no value: division by zero"),
        ("visits = random()", "where: random(…) is not available"),
        *((text, "where: ") for text in ("", "visits =", "visits == 1", "name = 'x", "visits; DROP", "visits name")),
        ("visits IN ()", "where: IN needs a list of values"),
        *((text, "where: ") for text in ("(visits", "visits NOT 1", "visits IS 1")),
    ],
)
def test_a_mistake_is_refused_with_sink_and_table(where: str, reported: str) -> None:
    with pytest.raises(RefusedError) as caught:
        shape(where=where)
    assert caught.value.message.startswith(f"sink mine: mapping of public.customers: {reported}")
    with pytest.raises(ConfigError, match=r"mapping of public\.customers: where: "):
        planned_tables(sinks(customers={"where": where}), [CUSTOMERS.schema])


def test_a_column_that_the_table_loses_is_named() -> None:
    with pytest.raises(RefusedError, match=r"where: table public\.customers has no column visits"):
        shape(CUSTOMERS.schema, altered(2, visits=None), where="visits + 1 > 2")


def test_a_value_that_the_condition_can_t_read_is_named_without_it() -> None:
    with pytest.raises(ComputationError, match=r"^the condition can't be decided: column balance has a value that is"):
        shape(where="balance * 2 > 1").change(CUSTOMERS.upsert(5, id=1, balance="NaN"))
