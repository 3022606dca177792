"""Values compare as PostgreSQL compares them."""

from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from cdc.model.events import Column
from sinks.shaping.comparable import as_float, comparable


def column(oid: int) -> Column:
    return Column("a", oid, -1, "some", nullable=True, base_type_oid=oid)


@pytest.mark.parametrize(
    ("oid", "values"),
    [
        (20, [-(2**63), 0, 2**63 - 1]),
        (1700, ["-Infinity", "-1", "0.000", "1e2", "1000", "Infinity", "NaN"]),
        (701, ["-Infinity", -1.5, 0, 5e-324, 1e300, "Infinity", "NaN"]),
        (25, ["", "A", "a", "ä", "\U0001f600"]),
        (1082, ["-infinity", "0044-03-15 BC", "0001-01-01", "9999-12-31", "10000-01-01", "infinity"]),
        (
            1114,
            ["-infinity", "0044-03-15 00:00:00 BC", "2024-01-31T12:00:00", "2024-01-31T12:00:00.000001", "infinity"],
        ),
        (1184, ["-infinity", "2024-01-31T12:00:00Z", "2024-01-31T12:00:00.5Z", "10000-01-01 00:00:00+00", "infinity"]),
    ],
)
def test_values_have_an_order(oid: int, values: list[Any]) -> None:
    kind = comparable(column(oid))
    assert kind is not None and kind.has_order
    keys = [kind.key(value) for value in values]
    assert all(one < next_one for one, next_one in pairwise(keys))
    assert [kind.key(value) for value in values] == keys, "NaN is equal to itself"


def test_the_same_value_in_two_forms_is_equal() -> None:
    numeric, real, padded = comparable(column(1700)), comparable(column(700)), comparable(column(1042))
    assert numeric is not None and real is not None and padded is not None
    assert numeric.key("1.50") == numeric.literal(Decimal("1.5"))
    assert as_float(numeric.key("0.1")) == real.literal(Decimal("0.1"))
    assert real.key(0.1) != real.literal(Decimal("0.1")), "a real is compared as the double precision that it becomes"
    assert padded.key("ab   ") == padded.literal("ab ")


@pytest.mark.parametrize("oid", [17, 114, 3802, 1186, 1009])
def test_other_types_are_not_compared(oid: int) -> None:
    assert comparable(column(oid)) is None
