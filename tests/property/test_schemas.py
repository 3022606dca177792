"""Every record with a schema is one of it: what servers sent, in each mode, read by the schema alone. And a row whose
large values were read for it is, in each form, byte for byte the row that was sent whole.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import pytest

from cdc.config.format_options import FormatOptions
from cdc.formats.records import Draft, EnvelopeContext, FinishedRecord, TableEncoder
from cdc.model.errors import ProtocolError, UnsupportedChangeError, WatershedError
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import NULL, UNCHANGED, Insert, TupleValue, Update
from tests.fuzz import target
from tests.fuzz.seeds import TableSeeds
from tests.support import wire
from tests.support.holes import without_holes

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
            assert list(value) == [field["field"] for field in schema["fields"] if field["field"] in value], path
            for field in schema["fields"]:  # what is absent is read as null
                require(field, value.get(field["field"]), f"{path}.{field['field']}")
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


def require_record(record: FinishedRecord) -> None:
    for content in record[:2]:
        if content is not None:
            found = json.loads(content)
            assert list(found) == ["schema", "payload"]
            require(found["schema"], found["payload"], "")


MODES: list[dict[str, Any]] = [
    {},
    {"include_unknown_datatypes": True, "binary_handling_mode": "hex", "hstore_handling_mode": "map"},
    {"decimal_handling_mode": "double", "time_precision_mode": "connect", "interval_handling_mode": "string"},
    {"decimal_handling_mode": "string", "time_precision_mode": "isostring", "binary_handling_mode": "base64"},
    {"time_precision_mode": "microseconds"},
    {"time_precision_mode": "nanoseconds"},
]
PROFILES: list[dict[str, Any]] = [{"profile": "readable"}, *({"profile": "debezium", **mode} for mode in MODES)]


@pytest.mark.parametrize("chosen", PROFILES, ids=str)
@pytest.mark.filterwarnings("ignore::cdc.formats.profiles.UnconvertibleWarning")
def test_records_fit_their_schema(chosen: dict[str, Any]) -> None:
    count = 0
    context = EnvelopeContext("shop", "shop", 1, "0.1.0", FormatOptions(schemas_enable=True, **chosen))
    for table in target.seeds().tables:
        encoder = TableEncoder(table.schema, table.relation, context)
        encoder.start_transaction(1, 2, 3, None)
        for message in table.messages:
            try:
                records = encoder.encode(message, 0, 1, 0, 1, 1)
            except (ProtocolError, UnsupportedChangeError):  # some seeds are no rows
                continue
            for record in records:
                require_record(without_holes(record))
                count += 1
        for line in table.lines:
            try:
                record = encoder.copy_row(line, 1, 0, 1, 1)
            except UnsupportedChangeError:  # profile readable writes no null for an array of two dimensions
                continue
            require_record(record)
            count += 1
    assert count > 300


# ---- rows with holes

FORMS = [*PROFILES, *({**profile, "schemas_enable": True} for profile in PROFILES[:2])]


def rows_of(table: TableSeeds) -> Iterator[list[TupleValue]]:
    """Whole rows of the table, as a server sent them."""
    for message in table.messages:
        try:
            decoded = decode(message, "0/0")
        except ProtocolError:
            continue
        if isinstance(decoded, Insert | Update) and UNCHANGED not in decoded.new:
            yield list(decoded.new)


@pytest.mark.parametrize("chosen", FORMS, ids=str)
@pytest.mark.filterwarnings("ignore::cdc.formats.profiles.UnconvertibleWarning")
def test_a_filled_row_is_the_row_that_was_sent_whole(chosen: dict[str, Any]) -> None:
    chance = Random(5)
    count = 0
    context = EnvelopeContext("shop", "shop", 1, "0.1.0", FormatOptions(**chosen))
    for table in target.seeds().tables:
        names = [column.name for column in table.schema.columns]
        oid = table.relation.oid
        for row in rows_of(table):
            encoder = TableEncoder(table.schema, table.relation, context)
            encoder.start_transaction(1, 2, 3, None)
            large = {i for i, name in enumerate(names) if name not in table.schema.key and chance.random() < 0.5}
            holed: list[TupleValue] = [UNCHANGED if i in large else value for i, value in enumerate(row)]
            try:
                [(key, whole, headers)] = encoder.encode(wire.update(oid, row), 0, 1, 0, 1, 1)
                [made] = encoder.encode(wire.update(oid, holed), 0, 1, 0, 1, 1)
            except WatershedError:  # not its types' values
                continue
            assert isinstance(whole, bytes)
            draft = made[1]
            if not isinstance(draft, Draft):  # all of it is left out of records
                assert made == (key, whole, headers)
                continue
            assert (made[0], made[2]) == (key, headers)
            missing = [i for i, value in enumerate(draft.columns) if value is None]
            assert set(missing) <= large
            columns = list(draft.columns)
            for i in missing:
                value = row[i]
                columns[i] = draft.encoded(names[i], None if value is NULL else bytes(value))  # type: ignore[arg-type]
            lists = ',"filled":' + json.dumps([names[i] for i in missing], ensure_ascii=False, separators=(",", ":"))
            filled = draft.finished(columns, missing)
            assert lists.encode() in filled
            assert filled.replace(lists.encode(), b"", 1) == whole
            assert draft.finished(columns, ()) == whole  # all of it from the record before
            assert draft.encoder.columns_of(whole) == tuple(columns)
            assert draft.encoder.columns_of(draft.without_holes()) is None
            count += 1
    assert count > 100


# ---- the reader itself


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
