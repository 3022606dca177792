"""Every record with a schema is one of it: what servers sent, in each mode, read by the schema alone."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from cdc.errors import ProtocolError, UnsupportedChangeError
from cdc.formats.debezium import EnvelopeContext, OutRecord, TableEncoder
from cdc.formats.options import FormatOptions
from tests.fuzz import target

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def require(schema: Mapping[str, Any], value: Any, path: str) -> None:
    """Whether Connect's converter would take the value: it does not convert, it demands the very type."""
    kind = schema["type"]
    if value is None:
        assert schema["optional"], f"{path} is required"
        return
    match kind:
        case "struct":
            assert isinstance(value, dict), path
            assert list(value) == [field["field"] for field in schema["fields"]], path
            for field in schema["fields"]:
                require(field, value[field["field"]], f"{path}.{field['field']}")
        case "array":
            assert isinstance(value, list), path
            for item in value:
                require(schema["items"], item, f"{path}[]")
        case "map":
            pairs = value.items() if isinstance(value, dict) else value
            assert isinstance(value, dict) == (schema["keys"]["type"] == "string"), path
            for key, item in pairs:
                require(schema["keys"], key, f"{path} key")
                require(schema["values"], item, f"{path}{{}}")
        case "boolean":
            assert isinstance(value, bool), path
        case "string":
            assert isinstance(value, str), path
        case "bytes":
            base64.b64decode(value, validate=True)
        case "float" | "double":
            assert type(value) in (int, float) or value in ("NaN", "Infinity", "-Infinity"), path
        case _:
            limit = 1 << INTEGERS[kind] - 1
            assert type(value) is int, path
            assert -limit <= value < limit, path


def require_record(record: OutRecord) -> None:
    for content in record[:2]:
        if content is not None:
            found = json.loads(content)
            assert list(found) == ["schema", "payload"]
            require(found["schema"], found["payload"], "")


MODES = [
    {},
    {"include_unknown_datatypes": True, "binary_handling_mode": "hex", "hstore_handling_mode": "map"},
    {"decimal_handling_mode": "double", "time_precision_mode": "connect", "interval_handling_mode": "string"},
    {"decimal_handling_mode": "string", "time_precision_mode": "isostring", "binary_handling_mode": "base64"},
    {"time_precision_mode": "microseconds"},
    {"time_precision_mode": "nanoseconds"},
]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.filterwarnings("ignore::cdc.formats.profiles.UnconvertibleWarning")
def test_records_of_debeziums_profile_fit_their_schema(mode: dict[str, Any]) -> None:
    count = 0
    context = EnvelopeContext("shop", "shop", 1, "0.1.0", FormatOptions("debezium", schemas_enable=True, **mode))
    for table in target.seeds().tables:
        encoder = TableEncoder(table.schema, table.relation, context)
        encoder.start_transaction(1, 2, 3, None)
        for message in table.messages:
            try:
                records = encoder.encode(message, 0, 1, 0, 1, 1)
            except (ProtocolError, UnsupportedChangeError):  # some seeds are no rows, or lack a large value
                continue
            for record in records:
                require_record(record)
                count += 1
        for line in table.lines:
            require_record(encoder.copy_row(line, 1, 0, 1, 1))
            count += 1
    assert count > 300


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "int32", "optional": False}, None),
        ({"type": "int16", "optional": False}, 40_000),
        ({"type": "int32", "optional": False}, "1"),
        ({"type": "string", "optional": True}, 1),
        ({"type": "struct", "optional": True, "fields": []}, {"a": 1}),
        ({"type": "array", "optional": True, "items": {"type": "string", "optional": False}}, [None]),
    ],
)
def test_what_does_not_fit_is_found(schema: dict[str, Any], value: object) -> None:
    with pytest.raises(AssertionError):
        require(schema, value, "")
