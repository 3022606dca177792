"""What operators, casts and functions of expressions compute, as PostgreSQL does: numbers, texts, dates. Pure.

Arguments are values that are not NULL. Every function may raise ComputationError.
"""

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Final

from sinks.shaping.expressions.types import (
    DATE,
    EXACT,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    ComputationError,
    SqlType,
    Value,
    number,
)

_SCALE_ASKED_MAX: Final = 1000  # by round, trunc and numeric(p,s)
_DIVISION_DIGITS: Final = 16  # NUMERIC_MIN_SIG_DIGITS
_GROUP: Final = 4  # PostgreSQL's digits have base 10,000
_SPACE: Final = " \t\n\v\f\r"
_INTEGER_TEXT: Final = re.compile(rf"[{_SPACE}]*([+-]?[0-9]+)[{_SPACE}]*")
_NUMERIC_TEXT: Final = re.compile(rf"[{_SPACE}]*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[{_SPACE}]*")
_INTEGER_MIN: Final = -(1 << 31)
_DIGITS_READ_MAX: Final = 4000  # of a text that becomes an integer: Python reads no more

# ---- numbers


def divided(left: int, right: int) -> int:
    """Integer division, towards zero."""
    if right == 0:
        raise ComputationError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) is (right < 0) else -quotient


def remainder(left: int, right: int) -> int:
    """The rest of an integer division. It has the sign of the dividend."""
    return left - divided(left, right) * right


def numeric_sum(left: Decimal, right: Decimal) -> Decimal:
    return number(EXACT.add(left, right))


def numeric_difference(left: Decimal, right: Decimal) -> Decimal:
    return number(EXACT.subtract(left, right))


def numeric_product(left: Decimal, right: Decimal) -> Decimal:
    return number(EXACT.multiply(left, right))


def numeric_remainder(left: Decimal, right: Decimal) -> Decimal:
    if right.is_zero():
        raise ComputationError("division by zero")
    return number(EXACT.remainder(left, right))


def numeric_quotient(left: Decimal, right: Decimal) -> Decimal:
    """Has at least 16 significant digits, and the scale that PostgreSQL chooses (select_div_scale in numeric.c)."""
    if right.is_zero():
        raise ComputationError("division by zero")
    (weight, first), (other_weight, other_first) = _leading(left), _leading(right)
    quotient_weight = weight - other_weight - (first <= other_first)
    least = max(_DIVISION_DIGITS - quotient_weight * _GROUP, _scale(left), _scale(right), 0)
    scale = min(least, _SCALE_ASKED_MAX)
    dividend, divisor = abs(_coefficient(left)), abs(_coefficient(right))
    shift = scale + _scale(right) - _scale(left)
    dividend, divisor = (dividend * 10**shift, divisor) if shift >= 0 else (dividend, divisor * 10**-shift)
    rounded = (2 * dividend + divisor) // (2 * divisor)
    is_negative = left.is_signed() is not right.is_signed()
    return number(EXACT.scaleb(Decimal(-rounded if is_negative else rounded), -scale))


def rounded_to(value: Decimal, scale: int) -> Decimal:
    return _at_scale(value, scale, ROUND_HALF_UP)


def truncated_to(value: Decimal, scale: int) -> Decimal:
    return _at_scale(value, scale, ROUND_DOWN)


def ceiling(value: Decimal) -> Decimal:
    return number(value.to_integral_value(ROUND_CEILING))


def floor(value: Decimal) -> Decimal:
    return number(value.to_integral_value(ROUND_FLOOR))


def constrained(value: Decimal, precision: int, scale: int) -> Decimal:
    """Converts to numeric(precision,scale)."""
    found = rounded_to(value, scale)
    if not found.is_zero() and found.adjusted() >= precision - scale:
        raise ComputationError(f"a number has too many digits for numeric({precision},{scale})")
    return found


def _at_scale(value: Decimal, scale: int, rounding: str) -> Decimal:
    if abs(scale) > _SCALE_ASKED_MAX:
        raise ComputationError(f"numbers can be rounded to at most {_SCALE_ASKED_MAX} digits")
    step = EXACT.scaleb(Decimal(1), -scale)
    return number(value.quantize(step, rounding=rounding, context=EXACT))


def _scale(value: Decimal) -> int:
    return -int(value.as_tuple().exponent)


def _coefficient(value: Decimal) -> int:
    return int(EXACT.scaleb(value, _scale(value)))


def _leading(value: Decimal) -> tuple[int, int]:
    """Returns the weight of the first digit in base 10,000, and this digit."""
    if value.is_zero():
        return 0, 0
    weight = value.adjusted() // _GROUP
    return weight, int(EXACT.scaleb(value.copy_abs(), -weight * _GROUP))


# ---- casts


def integer_of_text(text: str) -> int:
    found = _INTEGER_TEXT.fullmatch(text)
    if found is None or len(text) > _DIGITS_READ_MAX:
        raise ComputationError("a text is not an integer")
    return int(found[1])


def numeric_of_text(text: str) -> Decimal:
    found = _NUMERIC_TEXT.fullmatch(text)
    if found is None:
        raise ComputationError("a text is not a finite number")
    try:
        return number(Decimal(found[1]))
    except ComputationError:
        raise
    except ArithmeticError:  # an exponent that Python has not
        raise ComputationError("a number has more digits than numeric can have") from None


def boolean_of_text(text: str) -> bool:
    word = text.strip(_SPACE).lower()
    for full, least, value in (("true", 1, True), ("false", 1, False), ("yes", 1, True), ("no", 1, False)):
        if len(word) >= least and full.startswith(word):
            return value
    if word in ("on", "1"):
        return True
    if word in ("of", "off", "0"):
        return False
    raise ComputationError("a text is not a boolean")


def date_of_literal(text: str) -> date:
    """Reads a literal such as '2026-01-31'. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise ValueError
    return date.fromisoformat(text)


def timestamp_of_literal(text: str) -> datetime:
    """Reads a literal such as '2026-01-31 12:00:00.5'. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?", text):
        raise ValueError
    return datetime.fromisoformat(text)


# ---- texts

_LOWER: Final[dict[str, str]] = {"\u0130": "i"}  # its long form has a second character


def lower(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(_lower, text))


def upper(text: str) -> str:
    return text.upper() if text.isascii() else "".join(map(_upper, text))


def _lower(one: str) -> str:
    return _LOWER.get(one) or one.lower()


def _upper(one: str) -> str:
    """A character without a capital of one character stays as it is (ß)."""
    return next((form for form in (one.upper(), one.title()) if len(form) == 1), one)


def substring(text: str, start: int, length: int | None = None) -> str:
    """Positions count from 1; those before the text count, too."""
    if length is not None and length < 0:
        raise ComputationError("negative substring length")
    end = len(text) + 1 if length is None else start + length
    return text[max(start, 1) - 1 : max(end, 1) - 1]


def replaced(text: str, part: str, by: str) -> str:
    return text.replace(part, by) if part else text


def left(text: str, count: int) -> str:
    """A negative count leaves out so many characters at the other end."""
    return text[:count]


def right(text: str, count: int) -> str:
    if count == 0:
        return ""
    return text if count == _INTEGER_MIN else text[-count:]  # PostgreSQL can't negate the least integer


def split_part(text: str, separator: str, position: int) -> str:
    """A negative position counts from the end."""
    if position == 0:
        raise ComputationError("field position must not be zero")
    parts = text.split(separator) if separator else [text]
    index = position - 1 if position > 0 else len(parts) + position
    return parts[index] if 0 <= index < len(parts) else ""


# ---- dates


def date_after(day: date, days: int) -> date:
    try:
        return day + timedelta(days)
    except OverflowError:
        raise ComputationError("a date outside the years 1 to 9999") from None


def timestamp_of_date(day: date) -> datetime:
    return datetime.combine(day, time())


TRUNCATIONS: Final[dict[str, Callable[[datetime], datetime]]] = {
    "second": lambda at: at.replace(microsecond=0),
    "minute": lambda at: at.replace(second=0, microsecond=0),
    "hour": lambda at: at.replace(minute=0, second=0, microsecond=0),
    "day": lambda at: timestamp_of_date(at.date()),
    "week": lambda at: timestamp_of_date(at.date() - timedelta(at.weekday())),
    "month": lambda at: datetime(at.year, at.month, 1),
    "quarter": lambda at: datetime(at.year, at.month - (at.month - 1) % 3, 1),
    "year": lambda at: datetime(at.year, 1, 1),
}

_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)


def _micros(count: int) -> Decimal:
    return EXACT.scaleb(Decimal(count), -6)


# Of a date and of a timestamp: numbers of scale 0.
_OF_DAYS: Final[dict[str, Callable[[date], int]]] = {
    "year": lambda day: day.year,
    "isoyear": lambda day: day.isocalendar().year,
    "quarter": lambda day: (day.month + 2) // 3,
    "month": lambda day: day.month,
    "week": lambda day: day.isocalendar().week,
    "day": lambda day: day.day,
    "doy": lambda day: day.timetuple().tm_yday,
    "dow": lambda day: day.isoweekday() % 7,
    "isodow": lambda day: day.isoweekday(),
}
_OF_TIMES: Final[dict[str, Callable[[datetime], Decimal]]] = {
    "hour": lambda at: Decimal(at.hour),
    "minute": lambda at: Decimal(at.minute),
    "second": lambda at: _micros(at.second * 10**6 + at.microsecond),
    "epoch": lambda at: _micros((at - _EPOCH) // _MICROSECOND),
}


def field(type_: SqlType, name: str) -> Callable[[Value], Decimal] | None:
    """Returns what reads the field of a date or timestamp; None if there is none, or if it depends on the session's
    time zone."""
    if type_ in (DATE, TIMESTAMP) and (of_days := _OF_DAYS.get(name)) is not None:
        return lambda value: Decimal(of_days(value))
    if type_ is DATE:
        return (lambda value: Decimal((value - _EPOCH.date()).days * 86_400)) if name == "epoch" else None
    is_known = type_ is TIMESTAMP or (type_ is TIMESTAMPTZ and name == "epoch")
    return _OF_TIMES.get(name) if is_known else None


FIELDS: Final = (*_OF_DAYS, *_OF_TIMES)

# ---- texts of values


def text_of(type_: SqlType) -> Callable[[Value], str]:
    """Returns what casts a value of the type to text."""
    if type_ is NUMERIC:
        return lambda value: f"{value:f}"
    return str if type_.family == "number" else _text_of_other


def _text_of_other(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
