"""The conversion of a condition's columns and literals to Python values that compare as in PostgreSQL. Pure.

Texts compare by their characters' code points, as in collation "C". NaN is equal to itself and greater than every other
number. Columns of types that are not listed here can only be compared with NULL.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from cdc.formats.kinds import value_type
from cdc.model.events import Column
from sinks.contract import Json

Key = Any  # hashable, and comparable with the keys of its family
Literal = str | Decimal | bool


class _NotANumber:
    """NaN as PostgreSQL compares it: equal to itself, and greater than every number."""

    def __eq__(self, other: object) -> bool:
        return other is self

    def __hash__(self) -> int:
        return id(self)

    def __lt__(self, _: object) -> bool:
        return False

    def __le__(self, other: object) -> bool:
        return other is self

    def __gt__(self, other: object) -> bool:
        return other is not self

    def __ge__(self, _: object) -> bool:
        return True


_NAN: Final = _NotANumber()
_ENDS: Final[dict[str, Key]] = {"infinity": (float("inf"),), "-infinity": (float("-inf"),)}
_DATE: Final = re.compile(r"([0-9]{4,7})-([0-9]{2})-([0-9]{2})( BC)?")
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4,6})-([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?(?:Z|\+00)?( BC)?"
)


@dataclass(frozen=True, slots=True)
class Comparable:
    """The conversion of a type's values for comparisons."""

    family: str  # columns of one family can be compared with each other
    key: Callable[[Json], Key]  # converts a record's value, never NULL
    literal: Callable[[Literal], Key]  # converts a literal; raises NeededError
    has_order: bool = True  # False: values can only be compared for equality
    in_list: Callable[[Literal], Key] | None = None  # for IN with several literals, where it differs from `literal`


def comparable(column: Column) -> Comparable | None:
    """Returns the conversion for a column; None for a type that this module can't compare."""
    if column.element_oid:
        return None
    oid = value_type(column).oid
    if column.type_kind == "e":
        return Comparable(f"enum {oid}", _same, _label(column.labels), has_order=False)
    return _BY_OID.get(oid)


FLOAT: Final = "float"
EXACT: Final = "exact number"


def as_float(key: Key) -> Key:
    """Returns an exact number's key as a float's key: PostgreSQL compares both as double precision."""
    return key if key is _NAN else float(key)


def _same(value: Json) -> Key:
    return value


def _exact(value: Json) -> Key:
    return _NAN if value == "NaN" else Decimal(value)


def _double(value: Json) -> Key:
    number = float(value)
    return _NAN if number != number else number


def _single(value: Json) -> Key:
    number = float(value)
    if number != number:
        return _NAN
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return number


def _date_key(value: Json) -> Key:
    found = _DATE.fullmatch(value)
    if found is None:
        return _ENDS[value]
    year = int(found[1])
    return (1 - year if found[4] else year, int(found[2]), int(found[3]))


def _timestamp_key(value: Json) -> Key:
    found = _TIMESTAMP.fullmatch(value)
    if found is None:
        return _ENDS[value]
    year = int(found[1])
    fraction = int((found[7] or "").ljust(6, "0"))
    return (1 - year if found[8] else year, *(int(found[part]) for part in range(2, 7)), fraction)


class NeededError(ValueError):
    """Raised for a literal of another kind than the column's type needs. The text names the kind that is needed."""


def _number(make: Callable[[Json], Key], literal: Literal) -> Key:
    if isinstance(literal, Decimal):
        return make(literal)
    raise NeededError("a number")


def _boolean(literal: Literal) -> Key:
    if isinstance(literal, bool):
        return literal
    raise NeededError("TRUE or FALSE")


def _text(literal: Literal, what: str = "a text in single quotes") -> str:
    if isinstance(literal, str):
        return literal
    raise NeededError(what)


def _label(labels: tuple[str, ...]) -> Callable[[Literal], Key]:
    def read(literal: Literal) -> Key:
        label = _text(literal, "one of the enum's labels")
        if labels and label not in labels:
            raise NeededError("one of the enum's labels")
        return label

    return read


def _uuid(literal: Literal) -> Key:
    text = _text(literal, "a UUID in single quotes")
    try:
        return str(UUID(text))
    except ValueError:
        raise NeededError("a UUID in single quotes") from None


def _date_literal(literal: Literal) -> Key:
    text = _text(literal, _DATE_NEEDED)
    if text in _ENDS:
        return _ENDS[text]
    try:
        return _date_key(date.fromisoformat(text).isoformat())
    except ValueError:
        raise NeededError(_DATE_NEEDED) from None


def _timestamp_literal(literal: Literal) -> Key:
    text = _text(literal, _TIMESTAMP_NEEDED)
    if text in _ENDS:
        return _ENDS[text]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise NeededError(_TIMESTAMP_NEEDED) from None
    if at.tzinfo is not None:
        raise NeededError(_TIMESTAMP_NEEDED)
    return _timestamp_key(at.isoformat())


def _timestamptz_literal(literal: Literal) -> Key:
    text = _text(literal, _TIMESTAMPTZ_NEEDED)
    if text in _ENDS:
        return _ENDS[text]
    try:
        at = datetime.fromisoformat(text)
        in_utc = at.astimezone(UTC).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError):
        raise NeededError(_TIMESTAMPTZ_NEEDED) from None
    if at.tzinfo is None:
        raise NeededError(_TIMESTAMPTZ_NEEDED)
    return _timestamp_key(in_utc)


_DATE_NEEDED: Final = "a date such as '2026-01-31'"
_TIMESTAMP_NEEDED: Final = "a timestamp without time zone such as '2026-01-31 12:00:00'"
_TIMESTAMPTZ_NEEDED: Final = "a timestamp with its offset such as '2026-01-31 12:00:00Z' or '…+02:00'"

_INTEGER: Final = Comparable(EXACT, _same, lambda literal: _number(_exact, literal))
_TEXT: Final = Comparable("text", _same, _text)
_BY_OID: Final[dict[int, Comparable]] = {
    16: Comparable("boolean", _same, _boolean),
    19: _TEXT,  # name
    20: _INTEGER,
    21: _INTEGER,
    23: _INTEGER,
    25: _TEXT,
    26: _INTEGER,  # oid
    # PostgreSQL compares a real with a number as double precision, but with a list of numbers as real.
    700: Comparable(
        FLOAT,
        _single,
        lambda literal: _number(_double, literal),
        in_list=lambda literal: _number(_single, literal),
    ),
    701: Comparable(FLOAT, _double, lambda literal: _number(_double, literal)),
    # char(n): trailing blanks are insignificant.
    1042: Comparable("text", lambda value: value.rstrip(" "), lambda literal: _text(literal).rstrip(" ")),
    1043: _TEXT,  # varchar
    1082: Comparable("date", _date_key, _date_literal),
    1114: Comparable("timestamp", _timestamp_key, _timestamp_literal),
    1184: Comparable("timestamp with time zone", _timestamp_key, _timestamptz_literal),
    1700: Comparable(EXACT, _exact, lambda literal: _number(_exact, literal)),
    2950: Comparable("uuid", _same, _uuid),
}
