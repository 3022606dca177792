"""Debezium's own Avro for the same rows, beside capture in profile `debezium`: its connector in Kafka Connect, with
Apicurio's converter, which makes schemas by a copy of Confluent's AvroData.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdc.formats.avro_schemas import ORIGINAL_NAME
from cdc.formats.wire_format import schema_id_of
from tests.bench.public.systems import Debezium
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.schema_registry import RegistryServer, schema_registry
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

THINGS: Final = "public.things"
CREATE: Final = """
CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
CREATE TABLE things (
    id int, part bigint, small smallint, flag boolean, name text, title varchar(20) NOT NULL, code char(4),
    price numeric(12,2), loose numeric, whole numeric(10), weight real, mass double precision, cash money,
    day date, clock time, clock_ms time(3), zoned timetz, at timestamp, at_ms timestamp(3), at_zone timestamptz,
    span interval, doc json, docb jsonb, tag uuid, raw bytea, flags bit(3), more varbit(8), bit1 bit(1),
    feeling mood, "createdAt" timestamp, "größe" int, "a b" text, words text[], numbers bigint[],
    sums numeric(8,2)[], days date[], spot point, address inet, net cidr, mac macaddr,
    span4 int4range, span_day daterange, vec tsvector, PRIMARY KEY (id, part)
);
ALTER TABLE things REPLICA IDENTITY FULL
"""
FILLED: Final = """
INSERT INTO things VALUES (
    1, 9007199254740993, -7, true, 'größe €', 'titel', 'ab', 1234.50, 1e-7, 12345, 0.1, 1e300, '12.34',
    '0099-12-31', '23:59:59.999999', '01:02:03.456', '12:00:00+02', '1999-12-31 23:59:59.123456',
    '2024-02-29 00:00:00.001', '2024-02-29 12:00:00.5+02', '1 year 2 mons 3 days 04:05:06.7', '{"a": [1, null]}',
    '{"b": "ü"}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\x00ff10', B'101', B'10110', B'1', 'it''s ok',
    '2001-02-03 04:05:06', 5, 'c', ARRAY['x', NULL, ''], ARRAY[1, -9007199254740993], ARRAY[1.25, NULL],
    ARRAY['2000-01-01'::date], '(1.5,-2)', '10.0.0.1', '10.0.0.0/8', '08:00:2b:01:02:03',
    '[1,10)', '[2000-01-01,2000-02-01)', 'fat & rat'::text::tsvector)
"""
EMPTY: Final = "INSERT INTO things (id, part, title) VALUES (2, 0, '')"
CHANGES: Final = (
    "UPDATE things SET name = NULL, words = '{}', price = -0.01 WHERE id = 1",
    "UPDATE things SET title = 'now', flag = false WHERE id = 2",
    "UPDATE things SET id = 3 WHERE id = 2",
    "DELETE FROM things WHERE id = 1",
)
RECORDS: Final = 2 + 2 + 3 + 2  # existing rows; updates; a row that moved, in three; a delete with its tombstone
OF_DEBEZIUM: Final = 16  # fields of `source` behind which Watershed's own are
# What tells of the system that wrote the record, or of its own moment.
OWN: Final = ("version", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "sequence", "lsn", "xmin")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with schema_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def ours(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, CREATE, [THINGS]) as made:
        yield made


def converter(registry: RegistryServer) -> dict[str, str]:
    """The worker's options: Avro in Confluent's wire format."""
    options = {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.url": registry.url.replace("ccompat/v7", "registry/v2"),
        ".apicurio.registry.auto-register": "true",
        ".apicurio.registry.headers.enabled": "false",
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.use-id": "contentId",
    }
    return {f"{part}.converter{name}": value for part in ("key", "value") for name, value in options.items()}


@pytest.mark.parametrize("mode", ["avro", "avro_unicode"])
def test_our_avro_is_debeziums_field_by_field(ours: Captured, registry: RegistryServer, mode: str) -> None:
    theirs = replace(ours, name=f"{ours.name}d", folder=ours.folder / "debezium")
    theirs.folder.mkdir()
    names = {"field.name.adjustment.mode": mode}
    settings = {"snapshot.mode": "initial", "schema.name.adjustment.mode": "avro", **names}
    debezium = Debezium(theirs, settings, converter(registry), ("debezium-avro",))
    ours.settings = {
        "kafka": {"schema_registry": {"url": registry.url}},
        "format": {"encoding": "avro", "profile": "debezium", **names},
    }
    with ours.connect() as connection:
        connection.execute(FILLED)
        connection.execute(EMPTY)
    debezium.prepare_first_start()
    try:
        ours.start()
        ours.await_caught_up()
        debezium.start()
        debezium.wait_streaming()
        with ours.connect() as connection:
            for statement in CHANGES:
                connection.execute(statement)
        ours.await_caught_up()
        eventually(lambda: len(theirs.records(THINGS)) >= RECORDS, 60.0, lambda: str(len(theirs.records(THINGS))))
        debezium.check()
        compare(ours, theirs, SchemaRegistryClient({"url": registry.url, "timeout": 20}))
    finally:
        debezium.remove()


def compare(ours: Captured, theirs: Captured, client: SchemaRegistryClient) -> None:
    read = AvroDeserializer(client)

    def records(of: Captured) -> list[tuple[Any, Any]]:
        topic = f"{of.name}.{THINGS}"
        key, value = (SerializationContext(topic, part) for part in (MessageField.KEY, MessageField.VALUE))
        return [(read(found.key, key), found.value and read(found.value, value)) for found in of.records(THINGS)]

    def schema(of: Captured, content: bytes) -> Any:
        """Without the prefix of the topics, and without the property by which our readers find renamed columns."""
        text = client.get_schema(schema_id_of(content) or 0).schema_str or ""
        return json.loads(
            text.replace(f"{of.name}.", "prefix."),
            object_hook=lambda found: {name: value for name, value in found.items() if name != ORIGINAL_NAME},
        )

    [mine], [other] = (found.records(THINGS)[:1] for found in (ours, theirs))
    assert schema(ours, mine.key) == schema(theirs, other.key)
    expected, found = (schema(of, record.value or b"") for of, record in ((theirs, other), (ours, mine)))
    sources = [source_of(one) for one in (found, expected)]
    assert sources[0].pop("fields")[:OF_DEBEZIUM] == sources[1].pop("fields")
    assert sources[0] == sources[1]
    for one in (found, expected):
        source_of(one).clear()
    assert found == expected

    # Of each key in its order: partitions are read one after the other, and the two choose them differently.
    written, by_debezium = (sorted(records(of), key=lambda found: sorted(found[0].items())) for of in (ours, theirs))
    assert len(written) == len(by_debezium) == RECORDS
    for (key, value), (their_key, their_value) in zip(written, by_debezium, strict=True):
        assert key == their_key
        assert (value is None) == (their_value is None)
        if value is None:
            continue
        for row in ("before", "after"):
            assert value[row] == their_value[row]
        assert value["op"] == their_value["op"]
        assert list(value) == list(their_value)
        source, their_source = value["source"], their_value["source"]
        assert list(source)[:OF_DEBEZIUM] == list(their_source)
        own = (*OWN, "txId") if value["op"] == "r" else OWN  # each has read existing rows in a transaction of its own
        assert {name: source[name] for name in their_source if name not in own} == {
            name: their_source[name] for name in their_source if name not in own
        }


def source_of(schema: Any) -> Any:
    [found] = (field["type"] for field in schema["fields"] if field["name"] == "source")
    return found
