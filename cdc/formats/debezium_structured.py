"""Times as Debezium's structs (`time.precision.mode: structured`), as its connector 3.7.0.Final writes them.

date         {"year":-43,"month":3,"day":15,"specialValue":null}       44 BC; year 0 is 1 BC
time         {"hour":13,"minute":51,"second":30,"nanos":123000000,"precision":3}
timestamp    date's and time's fields, `specialValue` before `precision`
timestamptz  the same in UTC, with "offsetSeconds":0,"zoneId":"Z" before `specialValue`
timetz       time's fields with `offsetSeconds`, which is the value's own, before `precision`
interval     {"years":1,"months":2,"days":3,"hours":4,"minutes":5,"seconds":6,"nanos":780000000,"precision":6}

An infinite date or timestamp has its `specialValue`; all other fields except the precision are null. `precision` is the
column's, also if that is an interval's "none" (65535). Every field is optional.
"""

from collections.abc import Iterable
from typing import Final

from cdc.formats import calendar
from cdc.formats.connect import INT8, INT32, INT64, STRING, Node, named, optional, struct_of
from cdc.formats.kinds import PRECISION_DEFAULT, Kind, ValueType
from cdc.pgoutput.values import Encoder, UnconvertibleError

_SPECIAL: Final = {"infinity": "POSITIVE_INFINITY", "-infinity": "NEGATIVE_INFINITY"}
_INTERVAL_PRECISION: Final = 0xFFFF  # of its modifier; the other half says which fields it has
_INT32_MAX: Final = (1 << 31) - 1

_Fields = tuple[tuple[str, Node], ...]
_DATE: Final[_Fields] = (("year", INT32), ("month", INT8), ("day", INT8))
_TIME: Final[_Fields] = (("hour", INT8), ("minute", INT8), ("second", INT8), ("nanos", INT32))
_OFFSET: Final[_Fields] = (("offsetSeconds", INT32),)
_SPECIAL_VALUE: Final[_Fields] = (("specialValue", STRING),)
_PRECISION: Final[_Fields] = (("precision", INT32),)
_DURATION: Final[_Fields] = (
    *((part, INT32) for part in ("years", "months", "days", "hours", "minutes")),
    ("seconds", INT64),
    ("nanos", INT32),
)


def structured(of: ValueType) -> Kind:
    """Encodes date, time, timestamp, both with time zone, and interval."""
    precision = of.modifier if of.modifier >= 0 else PRECISION_DEFAULT
    match of.oid:
        case 1082:
            return Kind(date, _node("Date", *_DATE, *_SPECIAL_VALUE), date("1970-01-01"))
        case 1083:
            encode = time(precision)
            return Kind(encode, _node("Time", *_TIME, *_PRECISION), encode("00:00:00"))
        case 1114:
            encode = timestamp(precision)
            node = _node("Timestamp", *_DATE, *_TIME, *_SPECIAL_VALUE, *_PRECISION)
            return Kind(encode, node, encode("1970-01-01 00:00:00"))
        case 1184:
            encode, zone = zoned_timestamp(precision), (*_OFFSET, ("zoneId", STRING))
            node = _node("ZonedTimestamp", *_DATE, *_TIME, *zone, *_SPECIAL_VALUE, *_PRECISION)
            # Debezium's zero has an offset and no zone.
            zero = encode("1970-01-01 00:00:00+00").replace('"zoneId":"Z"', '"zoneId":null')
            return Kind(encode, node, zero)
        case 1266:
            encode = zoned_time(precision)
            return Kind(encode, _node("ZonedTime", *_TIME, *_OFFSET, *_PRECISION), encode("00:00:00+00"))
        case _:
            assert of.oid == 1186, of
            encode = interval(of.modifier & _INTERVAL_PRECISION if of.modifier >= 0 else PRECISION_DEFAULT)
            return Kind(encode, _node("Duration", *_DURATION, *_PRECISION), encode("00:00:00"))


def _node(name: str, *fields: tuple[str, Node]) -> Node:
    return named(struct_of((field, optional(node)) for field, node in fields), f"io.debezium.time.Structured{name}")


def date(text: str) -> str:
    return _INFINITE_DATES.get(text) or f'{{{_day(calendar.civil_date(text))},"specialValue":null}}'


def time(precision: int) -> Encoder:
    def encode(text: str) -> str:
        us = calendar.time_us(text)
        if us == calendar.DAY_US:  # in Debezium it is a Java LocalTime, which ends before; with time zone it is none
            raise UnconvertibleError("a time before 24:00:00")
        return f'{{{_clock(us)},"precision":{precision}}}'

    return encode


def timestamp(precision: int) -> Encoder:
    return _timestamp(precision, "")


def zoned_timestamp(precision: int) -> Encoder:
    """The session's time zone is UTC."""
    return _timestamp(precision, ',"offsetSeconds":0,"zoneId":"Z"')


def _timestamp(precision: int, zone: str) -> Encoder:
    fields = (field for field, _ in (*_DATE, *_TIME))
    infinite = _infinite([*fields, *(["offsetSeconds", "zoneId"] if zone else [])], f',"precision":{precision}')
    tail = f'{zone},"specialValue":null,"precision":{precision}}}'

    def encode(text: str) -> str:
        if text in infinite:
            return infinite[text]
        day, us = calendar.civil_timestamp(text, has_zone=bool(zone))
        return f"{{{_day(day)},{_clock(us)}{tail}"

    return encode


def zoned_time(precision: int) -> Encoder:
    def encode(text: str) -> str:
        us, offset_s = calendar.zoned_time(text)
        return f'{{{_clock(us)},"offsetSeconds":{offset_s},"precision":{precision}}}'

    return encode


def interval(precision: int) -> Encoder:
    """Each part has its own sign; those of the time share one."""

    def encode(text: str) -> str:
        if text in _SPECIAL:
            raise UnconvertibleError("a finite interval")
        found = calendar.interval(text)
        sign = "-" if found.time_us < 0 else ""
        seconds, us = divmod(abs(found.time_us), 1_000_000)
        hours, minutes = seconds // 3600, seconds // 60 % 60
        if hours > _INT32_MAX:
            raise UnconvertibleError("an interval of 32 bits of hours")
        parts = (("hours", hours), ("minutes", minutes), ("seconds", seconds % 60), ("nanos", us * 1000))
        clock = ",".join(f'"{part}":{sign if number else ""}{number}' for part, number in parts)
        return f'{{"years":{found.years},"months":{found.months},"days":{found.days},{clock},"precision":{precision}}}'

    return encode


def _day(day: tuple[int, int, int]) -> str:
    return f'"year":{day[0]},"month":{day[1]},"day":{day[2]}'


def _clock(us: int) -> str:
    seconds, fraction = divmod(us, 1_000_000)
    return f'"hour":{seconds // 3600},"minute":{seconds // 60 % 60},"second":{seconds % 60},"nanos":{fraction * 1000}'


def _infinite(fields: Iterable[str], tail: str) -> dict[str, str]:
    nulls = "".join(f'"{field}":null,' for field in fields)
    return {text: f'{{{nulls}"specialValue":"{value}"{tail}}}' for text, value in _SPECIAL.items()}


_INFINITE_DATES: Final = _infinite((field for field, _ in _DATE), "")
