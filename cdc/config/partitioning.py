"""The partitions and sort order of a table of the warehouse, in the configuration's syntax. Pure.

A transform is a column (`country`), or a function of Iceberg on one: `year(c)`, `month(c)`, `day(c)`, `hour(c)`,
`bucket(N, c)`, `truncate(N, c)`. A sort is a column, with `desc` behind it for the other direction.
"""

import re
from typing import Final, NamedTuple

TIMES: Final = ("year", "month", "day", "hour")
SIZED: Final = ("bucket", "truncate")
_COLUMN: Final = r'(?P<column>[^\W\d]\w*|"[^"]+")'
_TRANSFORM: Final = re.compile(rf"\s*(?P<name>[a-z]+)\s*\(\s*(?:(?P<size>\d+)\s*,\s*)?{_COLUMN}\s*\)\s*")
_PLAIN: Final = re.compile(rf"\s*{_COLUMN}\s*")
_SORT: Final = re.compile(rf"\s*{_COLUMN}(?:\s+(?P<direction>asc|desc))?\s*", re.IGNORECASE)


class Transform(NamedTuple):
    """One part of a partitioning."""

    name: str  # of Iceberg's function; identity: the column's value itself
    column: str
    size: int | None = None  # of bucket and truncate


class Sort(NamedTuple):
    """One part of a sort order."""

    column: str
    is_descending: bool


def parse_transform(text: str) -> Transform:
    """Raises ValueError."""
    if plain := _PLAIN.fullmatch(text):
        return Transform("identity", _name(plain))
    found = _TRANSFORM.fullmatch(text)
    if found is None or found["name"] not in (*TIMES, *SIZED):
        raise ValueError(
            f"{text!r} is not a partition: write a column, or year, month, day or hour of one, bucket(N, column) or "
            "truncate(N, column)"
        )
    if (found["size"] is not None) != (found["name"] in SIZED):
        raise ValueError(f"{text!r}: bucket and truncate take a number before the column, the other functions do not")
    size = None if found["size"] is None else int(found["size"])
    if size is not None and not 0 < size < 1 << 31:
        raise ValueError(f"{text!r}: the number lies between 1 and {(1 << 31) - 1}")
    return Transform(found["name"], _name(found), size)


def parse_sort(text: str) -> Sort:
    """Raises ValueError."""
    found = _SORT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a sort order: write a column, followed by desc for descending order")
    return Sort(_name(found), (found["direction"] or "").lower() == "desc")


def _name(found: re.Match[str]) -> str:
    return found["column"].strip('"')
