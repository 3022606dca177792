"""Tests of the values that most stores' types lack."""

import pytest

from cdc.model.events import Column
from sinks.contract import Json
from sinks.shaping.bounds import beyond


@pytest.mark.parametrize(
    ("oid", "name", "held", "left_out"),
    [
        (1082, "date", ["9999-12-31"], ["infinity", "-infinity", "10000-01-01", "0044-03-15 BC"]),
        (1114, "timestamp", ["2001-02-03T04:05:06.5"], ["infinity", "12024-01-01T00:00:00"]),
        (1184, "timestamptz", ["2001-02-03T04:05:06Z", "2001-02-03 04:05:06+00"], ["-infinity"]),
        (1700, "numeric(4,2)", ["12.50", "1E+3"], ["NaN", "Infinity"]),
        (1007, "integer[]", [[], [1, None]], [[[1], [2]], "[0:1]={1,2}"]),
        (1182, "date[]", [["2001-02-03", None]], [["2001-02-03", "infinity"]]),
    ],
)
def test_which_values_stores_lack(oid: int, name: str, held: list[Json], left_out: list[Json]) -> None:
    is_beyond = beyond(Column("c", oid, -1, name, nullable=True, base_type_oid=oid))
    assert is_beyond is not None
    assert [is_beyond(value) for value in (*held, *left_out)] == [False] * len(held) + [True] * len(left_out)


def test_types_whose_values_every_store_holds_have_no_test() -> None:
    assert beyond(Column("c", 25, -1, "text", nullable=True, base_type_oid=25)) is None
