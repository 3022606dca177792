"""PostgreSQL's dates, times and intervals as numbers. Proleptic Gregorian, years before Christ included, UTC.

Texts are as PostgreSQL prints them in Watershed's session (ISO, style postgres); others are a MalformedValueError.
"""

import re
from datetime import date
from typing import Final, NamedTuple

from cdc.model.errors import MalformedValueError

DAY_US = 86_400_000_000
# Java's mean month, with which Debezium turns months into time: 365.25 days / 12.
MONTH_US = 2_629_800_000_000

# Python's calendar has the years 1 to 9999; any calendar repeats after 400 years.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_EPOCH: Final = date(1970, 1, 1).toordinal()

_DATE = re.compile(r"([0-9]{4,7})-([0-9]{2})-([0-9]{2})( BC)?").fullmatch
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?").fullmatch
_TIMESTAMP = re.compile(r"([0-9]{4,7}-[0-9]{2}-[0-9]{2}) ([0-9:.]+)(\+00)?( BC)?").fullmatch
_ZONED_TIME = re.compile(r"([0-9:.]+)([+-])([0-9]{2})(?::([0-9]{2}))?(?::([0-9]{2}))?").fullmatch
_INTERVAL = re.compile(
    r"(?:(?P<years>[+-]?[0-9]+) years?)? ?(?:(?P<months>[+-]?[0-9]+) mons?)? ?(?:(?P<days>[+-]?[0-9]+) days?)? ?"
    r"(?:(?P<sign>[+-]?)(?P<hours>[0-9]+):(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2}(?:\.[0-9]{1,6})?))?"
).fullmatch


class Interval(NamedTuple):
    """An interval as PostgreSQL prints it. Each part has its own sign."""

    years: int
    months: int
    days: int
    time_us: int


def epoch_days(text: str) -> int:
    """Returns the days from 1970-01-01 to a finite date."""
    found = _DATE(text)
    if found is None:
        raise MalformedValueError("a date in ISO style")
    year = 1 - int(found[1]) if found[4] else int(found[1])
    try:
        return days_of(year, int(found[2]), int(found[3]))
    except ValueError:
        raise MalformedValueError("a date in ISO style") from None


def days_of(year: int, month: int, day: int) -> int:
    """Returns the days from 1970-01-01 to a date; year 0 is 1 BC. Raises ValueError for a date that does not exist."""
    cycles, year_of_cycle = divmod(year - 1, _CYCLE_YEARS)
    return cycles * _CYCLE_DAYS + date(year_of_cycle + 1, month, day).toordinal() - _EPOCH


def date_of(days: int) -> tuple[int, int, int]:
    """Returns year, month and day: the inverse of `days_of`."""
    cycles, day_of_cycle = divmod(days + _EPOCH - 1, _CYCLE_DAYS)
    day = date.fromordinal(day_of_cycle + 1)
    return cycles * _CYCLE_YEARS + day.year, day.month, day.day


def time_us(text: str) -> int:
    """Returns µs since midnight; 24:00:00 is a whole day."""
    found = _TIME(text)
    if found is None:
        raise MalformedValueError("a time in ISO style")
    seconds = int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])
    return seconds * 1_000_000 + int((found[4] or "").ljust(6, "0"))


def epoch_us(text: str, *, has_zone: bool) -> int:
    """µs since 1970 of a finite timestamp; `has_zone`: with time zone, printed in UTC."""
    found = _TIMESTAMP(text)
    if found is None or bool(found[3]) != has_zone:
        raise MalformedValueError("a timestamp in ISO style" + (" and UTC" if has_zone else ""))
    return epoch_days(found[1] + (found[4] or "")) * DAY_US + time_us(found[2])


def time_utc_us(text: str) -> int:
    """µs since midnight, in UTC, of a time with time zone; 24:00:00+00 stays a whole day's."""
    found = _ZONED_TIME(text)
    if found is None:
        raise MalformedValueError("a time with time zone in ISO style")
    offset_s = int(found[3]) * 3600 + int(found[4] or 0) * 60 + int(found[5] or 0)
    utc = time_us(found[1]) - (offset_s if found[2] == "+" else -offset_s) * 1_000_000
    return utc if 0 <= utc <= DAY_US and (utc < DAY_US or offset_s == 0) else utc % DAY_US


def interval(text: str) -> Interval:
    """Reads a finite interval."""
    found = _INTERVAL(text)
    if found is None or not text:
        raise MalformedValueError("an interval in style postgres")
    us = 0
    if found["hours"]:
        seconds, _, fraction = found["seconds"].partition(".")
        whole = int(found["hours"]) * 3600 + int(found["minutes"]) * 60 + int(seconds)
        us = whole * 1_000_000 + int(fraction.ljust(6, "0"))
    years, months, days = (int(found[part] or 0) for part in ("years", "months", "days"))
    return Interval(years, months, days, -us if found["sign"] == "-" else us)


def iso_date(days: int) -> str:
    """Returns the date as Java prints it: years above 9999 with a plus, 1 BC as 0000, 2 BC as -0001."""
    year, month, day = date_of(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def iso_time(us: int, digits: int | None = None) -> str:
    """Returns HH:MM:SS with `digits` of the fraction; None: as many as there are."""
    seconds, fraction = divmod(us, 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    shown = f"{fraction:06}".rstrip("0") if digits is None else f"{fraction:06}"[:digits]
    return f"{text}.{shown}" if shown else text
