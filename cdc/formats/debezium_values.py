"""Converts PostgreSQL's text of a value to JSON text as Debezium's connector and Kafka Connect's JsonConverter write
it.

Texts are latin-1 views, as in cdc.pgoutput.values. A value that its column's form can't represent (NaN in a decimal, a
timestamp outside nanoseconds) is an UnconvertibleError: see `event.converting.failure.handling.mode`.
"""

import re
from base64 import b64encode, urlsafe_b64encode
from binascii import Error as BinasciiError
from binascii import unhexlify
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from cdc.config.format_options import BinaryMode
from cdc.formats import calendar
from cdc.model.errors import MalformedValueError, UnconvertibleError
from cdc.pgoutput.values import Encoder, floating, quote

_NUMERIC = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?").fullmatch
_BITS = re.compile(r"[01]*").fullmatch
_NOT_MONEY = re.compile(r"[^0-9.,]")
_HSTORE_PAIR = re.compile(r'"((?:[^"\\]|\\.)*+)"=>(?:"((?:[^"\\]|\\.)*+)"|(NULL))(?:, |$)', re.DOTALL)
_unescape = re.compile(r"\\(.)", re.DOTALL).sub
_VECTOR = re.compile(r"\[[-+0-9.eE,]*\]").fullmatch
_SPARSE_VECTOR = re.compile(r"\{([-+0-9.eE,:]*)\}/([0-9]+)").fullmatch

# Numbers that are not finite, as Debezium writes them in decimals as strings.
_NOT_FINITE: Final = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
# Infinite values as Debezium writes them: days; pgjdbc's ms since 1970; where units are shorter, the ends of 64 bits.
INFINITE_DAYS: Final = {"infinity": 2_146_033_979, "-infinity": -2_147_472_691}
INFINITE_MS: Final = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
INFINITE_64: Final = {"infinity": (1 << 63) - 1, "-infinity": -(1 << 63)}


# ---- numbers


def decimal_bytes(scale: int) -> Encoder:
    """Connect's Decimal: base64 of the unscaled integer, big-endian two's complement."""

    def encode(text: str) -> str:
        return _base64(_java_bytes(_unscaled(text, scale)))

    return encode


def variable_decimal(text: str) -> str:
    """Encodes a VariableScaleDecimal: without trailing zeros, and no negative scale."""
    found = _number(text)
    fraction = (found[3] or "").rstrip("0")
    return f'{{"scale":{len(fraction)},"value":{_base64(_java_bytes(_integer(found[1], found[2] + fraction)))}}}'


def decimal_double(text: str) -> str:
    if text in _NOT_FINITE:
        return f'"{text}"'
    _number(text)
    return _double(float(text))


def decimal_string(text: str) -> str:
    if text in _NOT_FINITE:
        return f'"{_NOT_FINITE[text]}"'
    _number(text)
    return f'"{text}"'


def money(fraction_digits: int, encode_plain: Encoder) -> Encoder:
    """Reads money in any locale: the last point or comma separates the fraction if that many digits follow it."""

    def encode(text: str) -> str:
        digits = _NOT_MONEY.sub("", text).strip(".,")
        if not digits:
            raise MalformedValueError("an amount of money")
        sign = "-" if "-" in text or "(" in text else ""
        whole, fraction = digits, ""
        if fraction_digits and digits[-fraction_digits - 1 :][:1] in (".", ","):
            whole, fraction = digits[: -fraction_digits - 1], f".{digits[-fraction_digits:]}"
        return encode_plain(f"{sign}{re.sub(r'[.,]', '', whole)}{fraction}")

    return encode


def _number(text: str) -> re.Match[str]:
    found = _NUMERIC(text)
    if found is None:
        if text in _NOT_FINITE:
            raise UnconvertibleError("a finite number")
        raise MalformedValueError("a number")
    return found


def _unscaled(text: str, scale: int) -> int:
    found = _number(text)
    fraction = found[3] or ""
    digits = found[2] + fraction.ljust(max(scale, 0), "0")
    dropped = len(fraction) - scale if len(fraction) > scale else 0
    if dropped and set(digits[-dropped:]) != {"0"}:
        raise UnconvertibleError("a number of its column's scale")
    return _integer(found[1], digits[:-dropped] or "0" if dropped else digits)


def _integer(sign: str, digits: str) -> int:
    # Through Decimal: int() refuses texts above some thousand digits, which numeric may well have.
    number = int(Decimal(digits or "0"))
    return -number if sign else number


def _java_bytes(number: int) -> bytes:
    """Returns the bytes of BigInteger.toByteArray: as few as hold the number with its sign."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def _double(number: float) -> str:
    return f'"{"-" if number < 0 else ""}Infinity"' if number in (float("inf"), float("-inf")) else repr(number)


# ---- bits and bytes


def bit(text: str) -> str:
    if text not in ("0", "1"):
        raise MalformedValueError("a bit")
    return "true" if text == "1" else "false"


def bits(text: str) -> str:
    """Encodes little-endian, in only as many bytes as are needed."""
    if not _BITS(text):
        raise MalformedValueError("a bit string")
    number = int(text or "0", 2)
    return _base64(number.to_bytes((number.bit_length() + 7) // 8, "little"))


def bytes_as(mode: BinaryMode) -> Callable[[bytes], str]:
    match mode:
        case "bytes" | "base64":
            return _base64
        case "base64-url-safe":
            return lambda content: f'"{urlsafe_b64encode(content).decode()}"'
        case "hex":
            return lambda content: f'"{content.hex()}"'


def bytea(mode: BinaryMode) -> Encoder:
    write = bytes_as(mode)

    def encode(text: str) -> str:
        if text.startswith("\\x"):
            try:
                return write(unhexlify(text[2:]))
            except (BinasciiError, ValueError):
                pass
        raise MalformedValueError("bytea in hex format")

    return encode


def text_bytes(mode: BinaryMode) -> Encoder:
    """Encodes a type that Debezium does not know: its text, as bytes."""
    write = bytes_as(mode)
    return lambda text: write(text.encode("latin-1"))


def _base64(content: bytes) -> str:
    return f'"{b64encode(content).decode()}"'


# ---- times


def date_number(text: str) -> str:
    return str(INFINITE_DAYS[text] if text in INFINITE_DAYS else calendar.epoch_days(text))


def date_iso(text: str) -> str:
    return f'"{calendar.iso_date(int(date_number(text)))}Z"'


def time_in(unit_ns: int) -> Encoder:
    """Encodes a time as the number of such units since midnight."""
    return lambda text: str(calendar.time_us(text) * 1000 // unit_ns)


def time_iso(text: str) -> str:
    return f'"{calendar.iso_time(calendar.time_us(text))}Z"'


def timestamp_in(unit_ns: int) -> Encoder:
    """Encodes a timestamp as the number of such units since 1970."""
    infinite = INFINITE_MS if unit_ns == 1_000_000 else INFINITE_64

    def encode(text: str) -> str:
        if text in infinite:
            return str(infinite[text])
        number = calendar.epoch_us(text, has_zone=False) * 1000 // unit_ns
        # PostgreSQL counts its own 64 bits of microseconds from the year 2000.
        if not -(1 << 63) <= number < 1 << 63:
            raise UnconvertibleError("a timestamp of 64 bits since 1970")
        return str(number)

    return encode


def timestamp_iso(text: str) -> str:
    us = INFINITE_MS[text] * 1000 if text in INFINITE_MS else calendar.epoch_us(text, has_zone=False)
    return f'"{_iso_timestamp(us, None)}"'


def zoned_timestamp(digits: int) -> Encoder:
    """Encodes in UTC, with exactly `digits` digits of the second."""

    def encode(text: str) -> str:
        if text in INFINITE_64:
            return f'"{text}"'
        return f'"{_iso_timestamp(calendar.epoch_us(text, has_zone=True), digits)}"'

    return encode


def zoned_time(text: str) -> str:
    return f'"{calendar.iso_time(calendar.time_utc_us(text))}Z"'


def interval_us(text: str) -> str:
    found = _finite_interval(text)
    months = found.years * 12 + found.months
    us = months * calendar.MONTH_US + found.days * calendar.DAY_US + found.time_us
    if not -(1 << 63) <= us < 1 << 63:
        raise UnconvertibleError("an interval of 64 bits of microseconds")
    return str(us)


def interval_iso(text: str) -> str:
    found = _finite_interval(text)
    sign = "-" if found.time_us < 0 else ""
    seconds, us = divmod(abs(found.time_us), 1_000_000)
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, f"{seconds % 60}.{us:06}".rstrip("0").rstrip(".")
    clock = [f"{sign if part != '0' else ''}{part}" for part in (str(hours), str(minutes), rest)]
    return f'"P{found.years}Y{found.months}M{found.days}DT{clock[0]}H{clock[1]}M{clock[2]}S"'


def _finite_interval(text: str) -> calendar.Interval:
    if text in INFINITE_64:
        raise UnconvertibleError("a finite interval")
    return calendar.interval(text)


def _iso_timestamp(us: int, digits: int | None) -> str:
    days, of_day = divmod(us, calendar.DAY_US)
    return f"{calendar.iso_date(days)}T{calendar.iso_time(of_day, digits)}Z"


# ---- extensions


def hstore_map(text: str) -> str:
    members: list[str] = []
    place = 0
    while place < len(text):
        pair = _HSTORE_PAIR.match(text, place)
        if pair is None:
            raise MalformedValueError("an hstore")
        place = pair.end()
        name, value = quote(_unescape(r"\1", pair[1])), "null" if pair[3] else quote(_unescape(r"\1", pair[2]))
        members.append(f"{name}:{value}")
    return "{" + ",".join(members) + "}"


def hstore_json(text: str) -> str:
    return quote(hstore_map(text))


def vector(text: str) -> str:
    if not _VECTOR(text):
        raise MalformedValueError("a vector")
    return f"[{','.join(map(floating, text[1:-1].split(',') if text != '[]' else []))}]"


def sparse_vector(text: str) -> str:
    found = _SPARSE_VECTOR(text)
    if found is None:
        raise MalformedValueError("a sparse vector")
    entries = [entry.partition(":") for entry in found[1].split(",") if entry]
    members = ",".join(f"[{int(index)},{floating(value)}]" for index, _, value in entries)
    return f'{{"dimensions":{int(found[2])},"vector":[{members}]}}'
