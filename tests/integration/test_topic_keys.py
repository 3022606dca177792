"""Keys that a topic holds a row of, from a real broker."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from cdc.config.settings import KafkaConfig
from cdc.formats.records import EnvelopeContext
from cdc.kafka import topic_reader
from cdc.kafka.topic_keys import PAGE_KEYS, KafkaKeyReader
from cdc.model.events import pack_version
from cdc.ports.chunk_reader import Answer, KeyPage, KeysRead, ReadFailed
from tests.conftest import KafkaBroker
from tests.support.topics import create_topic, delete_topic
from tests.support.waiting import eventually

COUNT = 2 * PAGE_KEYS + 500


def value(seq: int, **columns: object) -> bytes:
    """As capture writes it, as far as it matters; a user's columns may be called like ours."""
    row = {"epoch": 9, "seq": 9, "commit_lsn": 9, **columns}
    source = {"name": "shop", "epoch": 1, "seq": seq, "commit_lsn": 5, "tx_index": 0}
    envelope = {"before": None, "after": row, "source": source, "transaction": None, "op": "c"}
    return json.dumps(envelope, separators=(",", ":")).encode()


@pytest.fixture(scope="module")
def topic(kafka: KafkaBroker) -> Iterator[str]:
    """Keys from 0; each third one is deleted, of those each second one has come back. Something is not committed."""
    name = "topic-keys"
    create_topic(kafka.bootstrap_servers, name, partitions=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(20)
    producer.begin_transaction()
    for number in range(COUNT):
        producer.produce(name, value(number), key(number))
        producer.poll(0)
    for number in range(0, COUNT, 3):
        producer.produce(name, None, key(number))
    for number in range(0, COUNT, 6):
        producer.produce(name, value(COUNT + number), key(number))
    producer.commit_transaction(20)
    producer.begin_transaction()
    producer.produce(name, value(1), b"not committed")
    producer.flush(20)
    producer.abort_transaction(20)
    yield name
    delete_topic(kafka.bootstrap_servers, name)


def key(number: int) -> bytes:
    return b'{"id":%d}' % number


LIVE = {key(number) for number in range(COUNT) if number % 3 or not number % 6}


CONTEXT = EnvelopeContext("shop", "shop", 1, "0")


def answer(reader: KafkaKeyReader, page: KeyPage) -> Answer:
    reader.ask(page)
    found: list[Answer] = []

    def has_come() -> bool:
        found.extend(reader.answers())
        return bool(found)

    eventually(has_come, 90.0, "an answer")
    (only,) = found
    assert only.nonce == page.nonce
    return only


def scanned(reader: KafkaKeyReader, topic: str, scan: str, below: int | None = None) -> list[bytes]:
    keys: list[bytes] = []
    while True:
        page = answer(reader, KeyPage(f"{scan}-{len(keys)}", scan, topic, below))
        assert isinstance(page, KeysRead), page
        assert len(page.keys) <= PAGE_KEYS
        keys += page.keys
        if page.is_end:
            return keys


def test_each_key_whose_last_record_is_a_row_comes_once(kafka: KafkaBroker, topic: str) -> None:
    with closing(KafkaKeyReader(KafkaConfig(bootstrap_servers=kafka.bootstrap_servers), CONTEXT)) as reader:
        keys = scanned(reader, topic, "a")
        assert len(keys) == len(set(keys))
        assert set(keys) == LIVE
        below = {k for k in LIVE if int(k[6:-1]) < 100 and int(k[6:-1]) % 6}
        assert set(scanned(reader, topic, "b", below=pack_version(1, 100))) == below


def test_another_scan_ends_the_one_before(kafka: KafkaBroker, topic: str) -> None:
    with closing(KafkaKeyReader(KafkaConfig(bootstrap_servers=kafka.bootstrap_servers), CONTEXT)) as reader:
        first = answer(reader, KeyPage("1", "a", topic, None))
        assert isinstance(first, KeysRead)
        assert not first.is_end
        assert set(scanned(reader, topic, "b")) == LIVE


def test_without_brokers_it_fails_for_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "ANSWER_S_MAX", 0.5)
    settings = KafkaConfig(bootstrap_servers="127.0.0.1:1")
    with closing(KafkaKeyReader(settings, CONTEXT)) as reader:
        failure = answer(reader, KeyPage("1", "a", "t", None))
    assert isinstance(failure, ReadFailed)
    assert not failure.is_permanent
