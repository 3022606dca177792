"""Which rows a store holds, by the values of its columns; and which conditions can't be decided."""

from itertools import product
from random import Random
from typing import Any

import pytest

from sinks.shaping.condition import RowCondition
from tests.conformance.tables import CUSTOMERS

WHOLE: frozenset[str] = frozenset()


def holds(text: str, **values: Any) -> bool | None:
    return RowCondition(text, CUSTOMERS.schema).decide(CUSTOMERS.row(id=1, **values), WHOLE)


@pytest.mark.parametrize(
    ("text", "values", "is_held"),
    [
        ("name = 'a'", {"name": "a"}, True),
        ("name = 'a'", {"name": None}, False),
        ("NOT name = 'a'", {"name": None}, False),
        ("name IS NULL", {}, True),
        ("photo IS NOT NULL", {"photo": "aa"}, True),
        ("NOT (name = 'a' OR visits > 1)", {"name": "b", "visits": 1}, True),
        ("NOT (name = 'a' AND visits > 1)", {"name": "a", "visits": None}, False),
        ("NOT (name = 'a' AND visits > 1)", {"name": "b", "visits": None}, True),
        ("name NOT IN ('a', 'b')", {"name": "c"}, True),
        ("name NOT IN ('a', 'b')", {"name": None}, False),
        ("is_active", {"is_active": True}, True),
        ("NOT is_active", {"is_active": None}, False),
        ("is_active = FALSE", {"is_active": False}, True),
        ("balance >= 1.5", {"balance": "1.50"}, True),
        ("balance IN (1.5)", {"balance": "1.50"}, True),
        ("exact > 1e300", {"exact": "NaN"}, True),
        ("exact = exact", {"exact": "NaN"}, True),
        ("visits < 2.5", {"visits": 2}, True),
        ("visits > balance", {"visits": 2, "balance": "1.99"}, True),
        ("rating = 0.1", {"rating": 0.1}, True),
        ("rating > 1e300", {"rating": "NaN"}, True),
        ("rating < 0", {"rating": "-Infinity"}, True),
        ("rating = visits", {"rating": 2, "visits": 2}, True),
        ("born >= '2024-02-29'", {"born": "2024-02-29"}, True),
        ("born < '0001-01-01'", {"born": "0044-03-15 BC"}, True),
        ("born > '9999-12-31'", {"born": "infinity"}, True),
        ("born = 'infinity'", {"born": "infinity"}, True),
        ("seen_at < '2024-01-31 12:00:00.5'", {"seen_at": "2024-01-31T12:00:00.4"}, True),
        ("seen_at > '2024-01-31'", {"seen_at": "10000-01-01 00:00:00"}, True),
        ("joined_at = '2024-01-31 14:00:00+02:00'", {"joined_at": "2024-01-31T12:00:00Z"}, True),
        ("token = '123E4567-E89B-12D3-A456-426614174000'", {"token": "123e4567-e89b-12d3-a456-426614174000"}, True),
        ("mood <> 'happy'", {"mood": "so so"}, True),
    ],
)
def test_a_condition_is_decided_as_sql_decides_it(text: str, values: dict[str, Any], is_held: bool) -> None:
    assert holds(text, **values) is is_held


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("nme = 'a'", "table public.customers has no column nme"),
        (
            "attributes = '{}'",
            "column attributes of public.customers has type jsonb, which conditions can only compare",
        ),
        ("tags = '{}'", "column tags of public.customers has type text[], which conditions can only compare with NULL"),
        ("name", "column name of public.customers (text) can only be compared with a text in single quotes"),
        ("name = 1", "column name of public.customers (text) can only be compared with a text in single quotes"),
        ("visits = '1'", "column visits of public.customers (integer) can only be compared with a number"),
        ("is_active = 1", "column is_active of public.customers (boolean) can only be compared with TRUE or FALSE"),
        ("born = '31.1.2024'", "column born of public.customers (date) can only be compared with a date such as"),
        ("seen_at = '2024-01-31T12:00Z'", "can only be compared with a timestamp without time zone"),
        ("joined_at = '2024-01-31T12:00'", "can only be compared with a timestamp with its offset"),
        ("token = 'x'", "can only be compared with a UUID in single quotes"),
        ("mood < 'happy'", "column mood of public.customers (mood) can only be compared by =, <> and IN"),
        ("name = visits", "columns name (text) and visits (integer) of public.customers can't be compared"),
    ],
)
def test_what_can_not_be_compared_is_named(text: str, reported: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        RowCondition(text, CUSTOMERS.schema)
    assert reported in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ("name = 'a'", None),
        ("NOT name = 'a'", None),
        ("name IS NULL", None),
        ("name IN ('a')", None),
        ("name = 'a' AND visits > 5", False),
        ("name = 'a' AND visits < 5", None),
        ("name = 'a' OR visits < 5", True),
        ("NOT (name = 'a' AND visits > 5)", True),
        ("visits < 5", True),
    ],
)
def test_a_condition_on_a_column_that_the_change_lacks_may_be_undecided(text: str, is_held: bool | None) -> None:
    change = CUSTOMERS.update(1, ["name"], id=1, visits=3)
    assert change.row is not None
    assert RowCondition(text, CUSTOMERS.schema).decide(change.row, change.unchanged) is is_held


def draw_condition(random: Random, depth: int = 0) -> str:
    roll = random.random()
    if depth < 4 and roll < 0.5:
        joined = random.choice((" AND ", " OR ")).join(draw_condition(random, depth + 1) for _ in range(2))
        return f"({joined})"
    if depth < 4 and roll < 0.65:
        return f"NOT {draw_condition(random, depth + 1)}"
    leaves = (
        "visits > 1",
        "visits = level",
        "name = 'a'",
        "name IS NULL",
        "name IN ('a', 'b')",
        "is_active",
        "level < 2",
    )
    return random.choice(leaves)


def test_what_is_decided_without_some_columns_holds_whatever_they_are() -> None:
    """And what is not decided depends on them, as far as single columns go."""
    random = Random(3)
    choices: dict[str, tuple[Any, ...]] = {
        "visits": (None, 0, 1, 2),
        "level": (None, 1, 2),
        "name": (None, "a", "b", "c"),
        "is_active": (None, True, False),
    }
    decided = 0
    for _ in range(2000):
        condition = RowCondition(draw_condition(random), CUSTOMERS.schema)
        absent = frozenset(random.sample([*choices], random.randint(1, 3)))
        row = {name: random.choice(values) for name, values in choices.items() if name not in absent}
        found = condition.decide(row, absent)
        completions = [
            dict(zip(sorted(absent), values, strict=True))
            for values in product(*(choices[name] for name in sorted(absent)))
        ]
        outcomes = {condition.decide(row | completion, WHOLE) for completion in completions}
        if found is not None:
            decided += 1
            assert outcomes == {found}
    assert decided > 500
