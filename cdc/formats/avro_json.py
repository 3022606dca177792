"""Avro's binary form to the JSON that capture would have written instead: what readers of topics work with. Pure.

The JSON is the same byte for byte, except that a column which is not known in `before` is null there. Numbers with a
fraction get PostgreSQL's text, so a key has one text only.
"""

import struct
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from typing import Any, Final

import orjson
from fastavro import parse_schema, schemaless_reader
from fastavro.types import Schema

from cdc.formats.avro_schemas import MAP_ENTRY, ORIGINAL_NAME

_Convert = Callable[[Any], Any] | None  # None: the value is JSON's already
_FLOAT: Final = struct.Struct("<f")
_DOUBLE_DIGITS: Final = 15  # from this power of ten on PostgreSQL prints an exponent, of double precision
_REAL_DIGITS: Final = 6  # the same of real
# Which columns are not known, or were read from the table: absent in a record without any.
_LISTS: Final = ("unchanged", "filled")


class JsonOfAvro:
    """Reads what was written with one Avro schema."""

    def __init__(self, schema: Any) -> None:
        """`schema`: parsed from JSON. Raises ValueError or fastavro's SchemaParseException if it is none."""
        # fastavro makes every name a full one, which registries may have shortened.
        self._parsed: Schema = parse_schema(without_logical_types(schema))
        self._convert = _Converters().converter(self._parsed) or _same

    def read(self, content: bytes, begin: int) -> bytes:
        """Returns the JSON of the Avro in `content[begin:]`. Raises ValueError for other bytes."""
        stream = BytesIO(content)
        stream.seek(begin)
        try:
            found = schemaless_reader(stream, self._parsed, None)
        except (EOFError, IndexError, StopIteration, ValueError) as error:
            raise ValueError("not Avro of this schema") from error
        if stream.tell() != len(content):
            raise ValueError("not Avro of this schema: bytes are left")
        without_absent_lists(found)
        return orjson.dumps(self._convert(found))


def without_absent_lists(record: Any) -> None:
    """Removes the lists that are in few records only, where they are null."""
    if isinstance(record, dict) and isinstance(source := record.get("source"), dict):
        for name in _LISTS:
            if source.get(name, record) is None:
                del source[name]


def _same(value: Any) -> Any:
    return value


def without_logical_types(schema: Any) -> Any:
    """fastavro would make objects of values with a logical type, and refuses decimals of a negative scale, which
    Confluent's AvroData writes."""
    if isinstance(schema, list):
        return [without_logical_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: without_logical_types(part) for key, part in schema.items() if key != "logicalType"}


class _Converters:
    """Makes the functions that turn fastavro's values into orjson's."""

    def __init__(self) -> None:
        self._records: dict[str, _Convert] = {}

    def converter(self, schema: Any) -> _Convert:
        if isinstance(schema, list):
            return next((found for part in schema if (found := self.converter(part)) is not None), None)
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._records.get(schema)
        match schema["type"]:
            case "record":
                return self._record(schema)
            case "array":
                return self._array(schema["items"])
            case "map":
                item = _or_null(self.converter(schema["values"]))
                return None if item is None else lambda found: {key: item(value) for key, value in found.items()}
            case inner:
                return self.converter(inner)

    def _array(self, items: Any) -> _Convert:
        item = _or_null(self.converter(items))
        if isinstance(items, dict) and items.get("name", "").endswith(f".{MAP_ENTRY}"):
            of = item or _same
            return lambda found: [list(of(entry).values()) for entry in found]
        return None if item is None else lambda found: [item(value) for value in found]

    def _record(self, schema: Mapping[str, Any]) -> _Convert:
        fields = [
            (field["name"], field.get(ORIGINAL_NAME, field["name"]), _or_null(self.converter(field["type"])))
            for field in schema["fields"]
        ]
        found = None
        if any(name != original or convert is not None for name, original, convert in fields):
            found = _record_converter(fields)
        self._records[schema["name"]] = found
        return found


def _record_converter(fields: list[tuple[str, str, _Convert]]) -> _Convert:
    def convert(record: dict[str, Any]) -> dict[str, Any]:
        return dict(_members(record, fields))

    return convert


def _members(record: dict[str, Any], fields: list[tuple[str, str, _Convert]]) -> Iterator[tuple[str, Any]]:
    for name, original, convert in fields:
        if name in record:
            value = record[name]
            yield original, value if convert is None else convert(value)


def _or_null(convert: _Convert) -> _Convert:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def double_text(number: float) -> str:
    """Returns the text of a double precision as PostgreSQL prints it, and as JSON."""
    return _number_text(number, repr(number), _DOUBLE_DIGITS)


def real_text(number: float) -> str:
    """Returns the text of a real: as few digits as name it."""
    if number != number or number in (float("inf"), float("-inf")):
        return _number_text(number, "", _REAL_DIGITS)
    packed = _FLOAT.pack(number)
    for digits in range(1, 10):
        text = f"{number:.{digits}g}"
        with suppress(OverflowError):  # rounded above the largest one
            if _FLOAT.pack(float(text)) == packed:
                break
    return _number_text(number, repr(float(text)), _REAL_DIGITS)


def _number_text(number: float, shortest: str, digits_max: int) -> str:
    """`shortest`: Python's text of it."""
    if number != number:
        return '"NaN"'
    if number in (float("inf"), float("-inf")):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    if number == 0:
        return "-0.0" if shortest.startswith("-") else "0"
    mantissa, _, exponent = shortest.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).strip("0")
    power = int(exponent or 0) + (len(whole) if whole != "0" else -(len(fraction) - len(fraction.lstrip("0"))))
    sign = "-" if number < 0 else ""
    return sign + _placed(digits, power, digits_max)


def _placed(digits: str, power: int, digits_max: int) -> str:
    """Returns 0.DIGITS * 10^power as PostgreSQL prints it."""
    if not -4 < power <= digits_max:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{digits[0]}{tail}e{'-' if power < 1 else '+'}{abs(power - 1):02}"
    if power <= 0:
        return f"0.{'0' * -power}{digits}"
    whole = digits[:power].ljust(power, "0")
    return whole + (f".{digits[power:]}" if len(digits) > power else "")


def _double(number: float) -> orjson.Fragment:
    return orjson.Fragment(double_text(number))


def _real(number: float) -> orjson.Fragment:
    return orjson.Fragment(real_text(number))


_PRIMITIVES: Final[Mapping[str, _Convert]] = {
    "null": None,
    "boolean": None,
    "int": None,
    "long": None,
    "string": None,
    "double": _double,
    "float": _real,
    "bytes": _base64,
}
