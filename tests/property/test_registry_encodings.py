"""Records in the encodings of a registry, of what servers sent, in each mode. Avro is what fastavro writes and reads,
Protobuf what its own library does, JSON is what its JSON Schema says, and all read as the JSON that capture would have
written.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from itertools import islice
from random import Random
from typing import Any, Final

import fastavro
import pytest
from jsonschema import Draft7Validator

from cdc.config.format_options import Encoding, FormatOptions, NameAdjustment
from cdc.formats.avro_json import without_logical_types
from cdc.formats.connect import Node
from cdc.formats.encodings import Form, forms_of, reader_of
from cdc.formats.profiles import column_formats, record_nodes
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.wire_format import head
from cdc.model.errors import ProtocolError, UnsupportedChangeError
from tests.fuzz import target
from tests.fuzz.seeds import TableSeeds
from tests.property.test_schemas import PROFILES
from tests.support.holes import without_holes
from tests.support.protoc import message_class

WARNINGS = "ignore::cdc.formats.profiles.UnconvertibleWarning"


def records_of(table: TableSeeds, options: FormatOptions) -> Iterator[tuple[bytes, bytes | None]]:
    encoder = TableEncoder(table.schema, table.relation, EnvelopeContext("shop", "shop", 1, "0.1.0", options))
    encoder.start_transaction(1, 2, 3, None)
    for message in table.messages:
        try:
            records = encoder.encode(message, 0, 1, 0, 1, 1)
        except (ProtocolError, UnsupportedChangeError):  # some seeds are no rows
            continue
        yield from (without_holes(record)[:2] for record in records)
    for line in table.lines:
        try:
            yield encoder.copy_row(line, 1, 0, 1, 1)[:2]
        except UnsupportedChangeError:
            continue


def filled(node: Node, value: Any) -> Any:
    """The value with each absent field as null, but those that are in few records only."""
    match node["type"]:
        case "struct" if value is not None:
            fields = {member["field"]: member for member in node["fields"]}
            return {
                name: filled(member, value.get(name))
                for name, member in fields.items()
                if name in value or name not in ("unchanged", "filled")
            }
        case _:
            return value


def options_of(encoding: Encoding, chosen: dict[str, Any]) -> FormatOptions:
    adjustment: NameAdjustment = "none" if encoding == "json_schema" else "avro_unicode"
    return FormatOptions(encoding=encoding, field_name_adjustment_mode=adjustment, **chosen)


def require_as_fastavro(form: Form, encoded: bytes) -> None:
    """fastavro reads the bytes by the schema alone, and writes what it has read as the same bytes."""
    parsed = fastavro.parse_schema(without_logical_types(json.loads(form.schema)))
    stream, again = BytesIO(encoded), BytesIO()
    found = fastavro.schemaless_reader(stream, parsed, None)
    assert stream.tell() == len(encoded)
    fastavro.schemaless_writer(again, parsed, found)
    assert again.getvalue() == encoded


def require_as_library(form: Form, encoded: bytes) -> None:
    """Protobuf's library reads the bytes by the schema alone, and writes what it has read as the same bytes."""
    found = message_class(form.schema).FromString(encoded[1:])
    assert b"\0" + found.SerializeToString(deterministic=True) == encoded


ORACLES: Final[Mapping[Encoding, Callable[[Form, bytes], None]]] = {
    "avro": require_as_fastavro,
    "protobuf": require_as_library,
}


@pytest.mark.parametrize("encoding", ORACLES)
@pytest.mark.parametrize("chosen", PROFILES, ids=str)
@pytest.mark.filterwarnings(WARNINGS)
def test_records_are_their_librarys_and_read_as_the_json_that_they_were_made_of(
    chosen: dict[str, Any], encoding: Encoding
) -> None:
    options, count, require = options_of(encoding, chosen), 0, ORACLES[encoding]
    for table in target.seeds().tables:
        key_form, value_form = forms_of(table.schema, options, "shop")
        assert key_form is not None
        _, envelope = record_nodes(table.schema, column_formats(table.schema, options), "shop")
        read_key, read_value = (reader_of(form.schema_type, form.schema) for form in (key_form, value_form))
        every = 1 if chosen in PROFILES[:2] else 5  # the modes differ in few types
        for key, value in islice(records_of(table, options), 0, None, every):
            encoded_key = key_form.encode(key)
            assert read_key(head(77) + encoded_key) == key, "another text would be another key"
            if value is None:
                continue
            encoded = value_form.encode(value)
            if count % 10 == 0:
                require(key_form, encoded_key)
                require(value_form, encoded)
            read = read_value(head(77) + encoded)
            assert json.loads(read) == filled(envelope, json.loads(value))
            if chosen["profile"] == "readable" and b'"before":null' in value and b"unchanged" not in value:
                assert read == value
            count += 1
    assert count > 100


@pytest.mark.parametrize("chosen", PROFILES[:3], ids=str)
@pytest.mark.filterwarnings(WARNINGS)
def test_json_is_what_its_json_schema_says(chosen: dict[str, Any]) -> None:
    options, count = options_of("json_schema", chosen), 0
    for table in target.seeds().tables:
        key_form, value_form = forms_of(table.schema, options, "shop")
        assert key_form is not None
        validators = {form: Draft7Validator(json.loads(form.schema)) for form in (key_form, value_form)}
        for key, value in list(records_of(table, options))[::5]:
            for form, content in ((key_form, key), (value_form, value)):
                if content:
                    validators[form].validate(json.loads(content))
                    assert reader_of("JSON", form.schema)(head(1) + form.encode(content)) == content
                    count += 1
    assert count > 100


@pytest.mark.parametrize("encoding", ORACLES)
def test_damaged_records_are_refused_or_read_and_nothing_else(encoding: Encoding) -> None:
    """No other error than ValueError, and no hanging, whatever the bytes are."""
    chance, table = Random(7), target.seeds().tables[0]
    options = options_of(encoding, PROFILES[0])
    _, form = forms_of(table.schema, options, "shop")
    read = reader_of(form.schema_type, form.schema)
    contents = [form.encode(value) for _, value in islice(records_of(table, options), 20) if value is not None]
    refused = 0
    for _ in range(3_000):
        content = bytearray(chance.choice(contents))
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        cut = bytes(content)[: chance.choice((len(content), chance.randrange(len(content))))]
        try:
            read(head(1) + cut)
        except ValueError:
            refused += 1
    assert refused > 1_000
