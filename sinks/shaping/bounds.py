"""Values that PostgreSQL's types have and most stores' types have not: infinite dates and timestamps and those outside
the years 1 to 9999, NaN and infinity among numerics, arrays of several dimensions or with explicit lower bounds. Pure.
"""

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

from cdc.model.events import Column
from sinks.contract import Json

Test = Callable[[Json], bool]
FLAG: Final = "_not_held"  # what the name of the column ends with that says so
# Array type → element type, of the types below.
_ELEMENT_OF: Final = {1182: 1082, 1115: 1114, 1185: 1184, 1231: 1700}


def beyond(column: Column) -> Test | None:
    """Says of a record's value (not None) whether it is one of these; None for a type that has none of them."""
    oid = column.base_type_oid or column.type_oid
    if column.element_oid or oid in _ELEMENT_OF or column.type_name.endswith("[]"):
        element = _SCALARS.get(column.element_oid or _ELEMENT_OF.get(oid, 0))

        def is_beyond(value: Json) -> bool:
            if not isinstance(value, list):  # text, as JSON has no lower bounds
                return True
            items = [item for item in value if item is not None]
            return any(isinstance(item, list) or (element is not None and element(item)) for item in items)

        return is_beyond
    return _SCALARS.get(oid)


def _date(value: Json) -> bool:
    return not _is_read(date.fromisoformat, value)


def _timestamp(value: Json) -> bool:
    return not _is_read(datetime.fromisoformat, value)


def _is_read(read: Callable[[str], object], value: Json) -> bool:
    try:
        read(str(value))
    except ValueError:
        return False
    return True


def _numeric(value: Json) -> bool:
    try:
        return not Decimal(str(value)).is_finite()
    except InvalidOperation:
        return True


_SCALARS: Final[dict[int, Test]] = {1082: _date, 1114: _timestamp, 1184: _timestamp, 1700: _numeric}
