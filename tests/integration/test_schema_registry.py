"""Tables' records in Avro, JSON Schema and Protobuf, with a real schema registry (Apicurio's)."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import MessageToDict

from cdc.config.format_options import Encoding, FormatOptions
from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.formats.connect import STRING, Node, optional, required, struct_of
from cdc.formats.encodings import SCHEMA_TYPES, Form, form_of
from cdc.formats.wire_format import schema_id_of
from cdc.kafka.schema_registry import SchemaRefusedError, SchemaRegistry
from cdc.model.errors import UnknownIdError, UnreachableError
from spark_jobs.source import register
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.protoc import message_class
from tests.support.schema_registry import RegistryServer, schema_registry
from tests.support.sink_job import SinkJob
from tests.support.stores import sinks_section
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession  # importing it takes a second

pytestmark = pytest.mark.long

OTHER: Final = "public.other"
TABLES: Final = (
    "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(8,2), weight real, tags text[]);"
    "CREATE TABLE other (id int PRIMARY KEY, name text)"
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with schema_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def items(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [ITEMS, OTHER]) as made:
        yield made


def use(items: Captured, registry: RegistryServer, encoding: Encoding, **sections: Any) -> None:
    items.settings = {
        "kafka": {"schema_registry": {"url": registry.url, "options": {"timeout": "3", "max.retries": "0"}}},
        "format": {"encoding": encoding},
        **sections,
    }


def write_rows(items: Captured) -> None:
    with items.connect() as connection:
        connection.execute(
            "INSERT INTO items SELECT n, 'name ' || n, n / 3.0, n / 7.0, ARRAY['a', NULL, n::text] "
            "FROM generate_series(1, 200) n"
        )
        connection.execute("INSERT INTO other SELECT n, 'grüße' FROM generate_series(1, 50) n")
        connection.execute("UPDATE items SET name = NULL WHERE id % 5 = 0")
        connection.execute("UPDATE items SET id = id + 1000 WHERE id % 7 = 0")
        connection.execute("DELETE FROM items WHERE id % 11 = 0")


def await_equal(items: Captured, *tables: str) -> None:
    items.await_caught_up()
    eventually(lambda: not items.unlike(tables or items.tables), 60.0, lambda: str(items.unlike(items.tables)))


def form(*columns: tuple[str, Node]) -> Form:
    node = {**required(struct_of(columns)), "name": "shop.public.t.Value"}
    return form_of(node, FormatOptions(encoding="avro"), "public.t")


def client(registry: RegistryServer, **options: Any) -> SchemaRegistry:
    return SchemaRegistry(SchemaRegistryConfig(url=registry.url, **options))


def test_the_registry_registers_refuses_and_finds(registry: RegistryServer, unique: str) -> None:
    asked, topic = client(registry), f"{unique}.public.t"
    for kind in SCHEMA_TYPES.values():
        asked.check(kind)
    one, two = form(("a", optional(STRING))), form(("a", optional(STRING)), ("b", required(STRING)))
    first = asked.register(topic, "value", one)
    assert client(registry).register(topic, "value", one) == first
    found, schema = client(registry).fetch(first)
    assert (found, json.loads(schema)) == ("AVRO", json.loads(one.schema))
    SchemaRegistryClient({"url": registry.url}).set_compatibility(f"{topic}-value", "BACKWARD")
    with pytest.raises(SchemaRefusedError, match=f"refuses a schema for subject {topic}-value: ") as refusal:
        asked.register(topic, "value", two)
    assert "compatibility" in refusal.value.hint
    with pytest.raises(UnknownIdError, match="has no schema with id 123456"):
        asked.fetch(123_456)
    latest = client(registry, use_latest_version=True)
    assert latest.register(topic, "value", one) == first
    with pytest.raises(SchemaRefusedError, match=r"\(version 1\) is not that of the table"):
        latest.register(topic, "value", two)
    with pytest.raises(SchemaRefusedError, match=f"has no schema of subject {topic}-key"):
        latest.register(topic, "key", one)
    looking = client(registry, auto_register_schemas=False)
    assert looking.register(topic, "value", one) == first
    with pytest.raises(SchemaRefusedError, match="does not have the schema"):
        looking.register(topic, "value", two)
    away = SchemaRegistry(SchemaRegistryConfig(url="http://127.0.0.1:1/apis/ccompat/v7"))
    with pytest.raises(UnreachableError, match="does not answer"):
        away.check("AVRO")


@pytest.mark.parametrize(
    "encoding",
    [
        pytest.param("avro", marks=pytest.mark.combination("encodings", "avro", "readable", "capture")),
        pytest.param("json_schema", marks=pytest.mark.combination("encodings", "json_schema", "readable", "capture")),
        pytest.param("protobuf", marks=pytest.mark.combination("encodings", "protobuf", "readable", "capture")),
    ],
)
def test_topics_have_the_rows_in_every_encoding(items: Captured, registry: RegistryServer, encoding: Encoding) -> None:
    use(items, registry, encoding)
    write_rows(items)
    items.start()
    await_equal(items)
    with items.connect() as connection:
        connection.execute("ALTER TABLE items ADD note text; INSERT INTO items VALUES (5000, 'x', 1, 2, '{}', 'y')")
        connection.execute("UPDATE items SET name = 'again' WHERE id < 20")
    await_equal(items)
    keys = [record for record in items.records("public.items") if record.key]
    assert len({schema_id_of(record.key) for record in keys}) == 1, "a key's schema never changes"
    assert len({schema_id_of(record.value) for record in keys if record.value}) == 2
    assert items.running().terminate() == 0
    other: Encoding = "json" if encoding == "avro" else "avro"
    use(items, registry, other)
    refused = items.run_once("check")
    assert refused.returncode == 1
    assert (
        f"format.encoding is {other}, but the topic of table public.items has records in {encoding}" in refused.stderr
    )


def test_a_refused_schema_stops_its_table_and_no_other(items: Captured, registry: RegistryServer) -> None:
    use(items, registry, "avro")
    write_rows(items)
    items.start()
    await_equal(items)
    SchemaRegistryClient({"url": registry.url}).set_compatibility(f"{items.name}.public.items-value", "BACKWARD")
    with items.connect() as connection:
        connection.execute("ALTER TABLE items ALTER weight TYPE boolean USING true; UPDATE items SET name = 'now'")
        connection.execute("INSERT INTO other VALUES (100, 'on')")
    eventually(lambda: items.states()[ITEMS]["status"] == "stopped", 60.0, "the table is stopped")
    await_equal(items, OTHER)
    state = items.states()[ITEMS]
    assert f"refuses a schema for subject {items.name}.public.items-value" in state["message"]
    assert "cdc table start public.items" in state["next"]
    SchemaRegistryClient({"url": registry.url}).set_compatibility(f"{items.name}.public.items-value", "NONE")
    assert items.ask("start_table", tables=(ITEMS,)).is_accepted
    eventually(lambda: items.states()[ITEMS]["status"] != "stopped", 60.0, "the table is captured again")
    await_equal(items)


def test_a_registry_that_is_away_is_waited_for(items: Captured, registry: RegistryServer) -> None:
    use(items, registry, "avro")
    write_rows(items)
    capture = items.start()
    await_equal(items)
    registry.freeze()
    try:
        with items.connect() as connection:
            connection.execute("INSERT INTO other VALUES (100, 'known')")
        await_equal(items)
        with items.connect() as connection:
            connection.execute("ALTER TABLE other ADD more text; INSERT INTO other VALUES (101, 'new', 'schema')")
        capture.await_said("does not answer")
    finally:
        registry.thaw()
    await_equal(items)
    assert items.states()[OTHER]["status"] == "captured"


def test_stores_comparisons_and_heals_read_avro(items: Captured, registry: RegistryServer, redis: str) -> None:
    spark: Mapping[str, Any] = {"checkpoint_location": str(items.folder / "checkpoints"), "options": INTERPRETED}
    use(items, registry, "avro", sinks={"cache": {"url": redis}}, spark=spark)
    write_rows(items)
    items.start()
    await_equal(items)
    config = items.config()
    with SinkJob(config, "cache", log_level="info") as job:
        job.wait_applied(items.log_end(), "cache")
        with items.connect() as connection:
            connection.execute("UPDATE items SET price = 9 WHERE id % 3 = 0; DELETE FROM items WHERE id = 1")
        items.await_caught_up()
        job.wait_applied(items.log_end(), "cache")
        done = run(["verify", "--sink", "cache", "--config", str(config)], deadline_s=120.0)
        assert done.returncode == 0, done.stdout + done.stderr
    before = len(items.records("public.items"))
    assert items.running().terminate() == 0
    items.drop_slot()
    with items.connect() as connection:
        connection.execute("UPDATE items SET name = 'unseen' WHERE id = 2; DELETE FROM items WHERE id = 3")
    items.settings["source"] = {"on_gap": "heal"}
    items.start()
    await_equal(items)
    added = items.records("public.items")[before:]
    assert len(added) <= 3, "a heal publishes what differs, by the decoded records: one row, one delete"


@pytest.mark.parametrize(
    "encoding",
    [
        pytest.param(
            "avro",
            marks=[
                pytest.mark.combination("encodings", "avro", "readable", "search"),
                pytest.mark.combination("encodings", "avro", "readable", "cache"),
                pytest.mark.combination("encodings", "avro", "readable", "SQL"),
                pytest.mark.combination("encodings", "avro", "readable", "warehouse"),
            ],
        ),
        pytest.param(
            "json_schema",
            marks=[
                pytest.mark.combination("encodings", "json_schema", "readable", "search"),
                pytest.mark.combination("encodings", "json_schema", "readable", "cache"),
                pytest.mark.combination("encodings", "json_schema", "readable", "SQL"),
                pytest.mark.combination("encodings", "json_schema", "readable", "warehouse"),
            ],
        ),
        pytest.param(
            "protobuf",
            marks=[
                pytest.mark.combination("encodings", "protobuf", "readable", "search"),
                pytest.mark.combination("encodings", "protobuf", "readable", "cache"),
                pytest.mark.combination("encodings", "protobuf", "readable", "SQL"),
                pytest.mark.combination("encodings", "protobuf", "readable", "warehouse"),
            ],
        ),
    ],
)
def test_every_store_reads_it(
    items: Captured, registry: RegistryServer, encoding: Encoding, opensearch: str, redis: str
) -> None:
    folder = items.folder
    sinks = sinks_section(folder, opensearch, redis) | {"sql": {"url": f"sqlite:///{folder}/store.db"}}
    spark = {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED}
    use(items, registry, encoding, sinks=sinks, spark=spark)
    write_rows(items)
    items.start()
    await_equal(items)
    config = items.config()
    with SinkJob(config, *sinks, log_level="info") as job:
        with items.connect() as connection:
            connection.execute("UPDATE items SET price = 9 WHERE id % 3 = 0; DELETE FROM items WHERE id = 1")
            connection.execute("ALTER TABLE items ADD note text; INSERT INTO items VALUES (5000, 'x', 1, 2, '{}', 'y')")
        items.await_caught_up()
        job.wait_applied(items.log_end(), *sinks)
        for sink in sinks:
            done = run(["verify", "--sink", sink, "--config", str(config)], deadline_s=120.0)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "encoding",
    [
        pytest.param("avro", marks=pytest.mark.combination("encodings", "avro", "readable", 'format("watershed")')),
        pytest.param(
            "json_schema", marks=pytest.mark.combination("encodings", "json_schema", "readable", 'format("watershed")')
        ),
        pytest.param(
            "protobuf", marks=pytest.mark.combination("encodings", "protobuf", "readable", 'format("watershed")')
        ),
    ],
)
def test_a_job_on_spark_reads_it(
    items: Captured, registry: RegistryServer, encoding: Encoding, spark: "SparkSession"
) -> None:
    use(items, registry, encoding)
    write_rows(items)
    items.start()
    await_equal(items)
    session = spark.newSession()
    register(session)
    frame = (
        session.read.format("watershed").option("config", str(items.config())).option("table", "public.items").load()
    )
    found = sorted((row["id"], row["name"], row["price"], row["tags"]) for row in frame.collect())
    assert found == sorted(items.query("SELECT id, name, price, tags FROM items"))


def deserializer(encoding: Encoding, client: SchemaRegistryClient) -> Any:
    """Confluent's, which makes dicts."""
    if encoding == "avro":
        return AvroDeserializer(client)
    if encoding == "json_schema":
        return JSONDeserializer(None, schema_registry_client=client)

    def read(content: bytes, context: SerializationContext) -> Any:
        schema = client.get_schema(schema_id_of(content) or 0).schema_str
        message = ProtobufDeserializer(message_class(schema or ""), {"use.deprecated.format": False})
        return MessageToDict(message(content, context), always_print_fields_with_no_presence=True)

    return read


@pytest.mark.parametrize(
    "encoding",
    [
        pytest.param("avro", marks=pytest.mark.combination("encodings", "avro", "debezium", "capture")),
        pytest.param("json_schema", marks=pytest.mark.combination("encodings", "json_schema", "debezium", "capture")),
        pytest.param("protobuf", marks=pytest.mark.combination("encodings", "protobuf", "debezium", "capture")),
    ],
)
def test_confluents_deserializers_read_profile_debezium(
    items: Captured, registry: RegistryServer, encoding: Encoding
) -> None:
    use(items, registry, encoding)
    items.settings["format"]["profile"] = "debezium"
    write_rows(items)
    items.start()
    items.await_caught_up()
    client = SchemaRegistryClient({"url": registry.url})
    read = deserializer(encoding, client)
    topic = f"{items.name}.public.items"

    def rows() -> dict[int, str | None]:
        """The key and the name of each row, as the newest record of its key says."""
        found: dict[int, str | None] = {}
        for record in items.records("public.items"):
            key = read(record.key, SerializationContext(topic, MessageField.KEY))
            value = read(record.value, SerializationContext(topic, MessageField.VALUE)) if record.value else None
            after = value and value.get("after")
            found.pop(key["id"], None)
            if after:
                found[after["id"]] = after.get("name")
        return found

    assert rows() == dict(items.query("SELECT id, name FROM items"))
