"""Which rows of a topic are a sample of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.format_options import Encoding, FormatOptions
from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.config.settings import KafkaConfig
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.row_digests import RowDigests
from cdc.kafka import schema_registry, topic_sample
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.record_encoding import RecordEncoder
from cdc.kafka.topic_sample import read_sample, sample
from cdc.model.events import Column, pack_version
from cdc.model.topic_record import TopicRecord
from tests.support import wire
from tests.support.registries import FakeRegistry

SCHEMA, RELATION = wire.schema_and_relation(
    (Column("id", 23, -1, "integer", False), Column("v", 25, -1, "text", True)), ["id"]
)
DIGESTS = RowDigests(SCHEMA, EnvelopeContext("shop", "shop", 2, "0"))


def record(number: int, value: str = "x", epoch: int = 2) -> tuple[bytes, bytes]:
    encoder = TableEncoder(SCHEMA, RELATION, EnvelopeContext("shop", "shop", epoch, "0"))
    encoder.start_chunk(1_000, 1)
    key, made, _ = encoder.copy_row(wire.copy_line([str(number), value]), 1_000, 0, 1, 1)
    assert made is not None
    return key, made


def digest(number: int, value: str = "x") -> int:
    found = DIGESTS.of_line(wire.copy_line([str(number), value]))
    assert found is not None
    return found[1]


def test_of_each_key_the_last_record_counts_and_rows_that_are_gone_do_not() -> None:
    made = [record(1), record(2), record(3), record(1, "changed"), (record(2)[0], None)]
    assert sample(made, DIGESTS) == {record(1)[0]: digest(1, "changed"), record(3)[0]: digest(3)}


def test_swept_rows_are_gone() -> None:
    made = [record(1, epoch=1), record(2, epoch=2)]
    assert set(sample(made, DIGESTS, floor=pack_version(2, 0))) == {record(2)[0]}


def test_a_large_topic_gives_a_bounded_sample_in_which_every_part_of_the_keys_is() -> None:
    """A database with the newest tenth of the rows must not pass, nor one with the oldest: both halves are in it, and a
    key that was put out by others does not come back with its last record."""

    def twice() -> Iterator[tuple[bytes, bytes | None]]:
        yield from (record(number) for number in range(4_000))
        yield from (record(number, "later") for number in range(4_000))

    found = sample(twice(), DIGESTS, keys_max=200)
    assert len(found) == 200
    numbers = {record(number)[0]: number for number in range(4_000)}
    assert set(found.values()) == {digest(numbers[key], "later") for key in found}
    older = sum(numbers[key] < 2_000 for key in found)
    assert 50 < older < 150, "by chance outside of this range once in 10^11 runs"


@pytest.mark.parametrize("encoding", ["json", "avro", "json_schema"])
def test_a_sample_is_of_the_json_of_records_in_every_encoding(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the keys of a topic in Avro could not be looked up in the table, so `cdc source move` had compared no row,
    and found nothing against any database."""
    registry = FakeRegistry()
    monkeypatch.setattr(schema_registry, "registry_of", lambda _: registry)
    made = [TopicRecord(SCHEMA.topic, *record(number)) for number in (1, 2)]
    if encoding != "json":
        encoder = RecordEncoder(registry, FormatOptions(encoding=encoding), "shop", [SCHEMA], {})
        encoded = encoder.encoded(made, do_nothing)
        made = [one for one in encoded if one.topic == SCHEMA.topic]

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[Any]:
        messages = [SimpleNamespace(key=lambda one=one: one.key, value=lambda one=one: one.value) for one in made]
        yield SimpleNamespace(partitions=lambda _: [0], read=lambda *_: messages)

    monkeypatch.setattr(topic_sample, "open_reader", opened)
    kafka = KafkaConfig(bootstrap_servers="k:1", schema_registry=SchemaRegistryConfig(url=f"http://{encoding}:8081"))
    expected = {record(number)[0]: digest(number) for number in (1, 2)}
    assert read_sample(kafka, SCHEMA.topic, DIGESTS, pack_version(2, 0)) == expected
