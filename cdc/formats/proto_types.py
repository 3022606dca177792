"""Kafka Connect's logical types in Protobuf: published messages that Confluent's converter uses for them. Pure.

Connect    message                    JSON of encoding json
Decimal    confluent.type.Decimal     base64 of the unscaled number
Date       google.type.Date           days since 1970
Time       google.type.TimeOfDay      ms since midnight
Timestamp  google.protobuf.Timestamp  ms since 1970
"""

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdc.formats.calendar import date_of, days_of
from cdc.formats.proto_files import Message, parsed_file


@dataclass(frozen=True, slots=True)
class KnownType:
    """A message, and how values in JSON become its fields and back."""

    path: str  # which files import
    message: Message
    fields: Callable[[Any, int | None], dict[str, Any]]  # of a value and the scale of its column
    value: Callable[[dict[str, Any]], Any]


def _decimal_fields(text: str, scale: int | None) -> dict[str, Any]:
    number = int.from_bytes(b64decode(text), signed=True)
    return {"value": text, "precision": len(str(abs(number))), "scale": scale or 0}


def _date_fields(days: int, _: int | None) -> dict[str, Any]:
    return dict(zip(("year", "month", "day"), date_of(days), strict=True))


def _days(fields: dict[str, Any]) -> int:
    return days_of(fields["year"], fields["month"], fields["day"])


def _time_fields(number_ms: int, _: int | None) -> dict[str, Any]:
    seconds, rest_ms = divmod(number_ms, 1_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return {"hours": hours, "minutes": minutes, "seconds": seconds, "nanos": rest_ms * 1_000_000}


def _time_ms(fields: dict[str, Any]) -> int:
    seconds = (fields["hours"] * 60 + fields["minutes"]) * 60 + fields["seconds"]
    return int(seconds * 1_000 + fields["nanos"] // 1_000_000)


def _timestamp_fields(number_ms: int, _: int | None) -> dict[str, Any]:
    seconds, rest_ms = divmod(number_ms, 1_000)
    return {"seconds": seconds, "nanos": rest_ms * 1_000_000}


def _timestamp_ms(fields: dict[str, Any]) -> int:
    return int(fields["seconds"] * 1_000 + fields["nanos"] // 1_000_000)


def _known(path: str, package: str, text: str, fields: Any, value: Any) -> KnownType:
    [message] = parsed_file(f'syntax = "proto3"; package {package}; message {text}', {}).messages
    return KnownType(path, message, fields, value)


_CONNECT: Final = "org.apache.kafka.connect.data."
LOGICAL_TYPES: Final[Mapping[str, KnownType]] = {
    f"{_CONNECT}Decimal": _known(
        "confluent/type/decimal.proto",
        "confluent.type",
        "Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }",
        _decimal_fields,
        lambda fields: fields["value"],
    ),
    f"{_CONNECT}Date": _known(
        "google/type/date.proto",
        "google.type",
        "Date { int32 year = 1; int32 month = 2; int32 day = 3; }",
        _date_fields,
        _days,
    ),
    f"{_CONNECT}Time": _known(
        "google/type/timeofday.proto",
        "google.type",
        "TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }",
        _time_fields,
        _time_ms,
    ),
    f"{_CONNECT}Timestamp": _known(
        "google/protobuf/timestamp.proto",
        "google.protobuf",
        "Timestamp { int64 seconds = 1; int32 nanos = 2; }",
        _timestamp_fields,
        _timestamp_ms,
    ),
}
KNOWN_TYPES: Final[Mapping[str, KnownType]] = {known.message.name: known for known in LOGICAL_TYPES.values()}
KNOWN_MESSAGES: Final[dict[str, Message]] = {name: known.message for name, known in KNOWN_TYPES.items()}
