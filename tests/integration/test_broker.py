"""The transactional producer on a real broker."""

import gc
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from cdc.config.logs import configure_logs
from cdc.config.settings import KafkaConfig
from cdc.kafka.broker import QUEUE_MESSAGES_MAX, KafkaBroker, StoredRecord
from cdc.kafka.client import MESSAGE_BYTES_MAX
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import BrokerError, ConnectionLost
from cdc.model.topic_record import EventDestination, TopicRecord
from tests import conftest
from tests.checker.records import partition_of, read_topics
from tests.support.captured import frozen
from tests.support.topics import create_topic, delete_topic, producer_config
from tests.support.waiting import eventually

PARTITIONS = 3


@pytest.fixture
def settings(kafka: conftest.KafkaBroker) -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def topic(kafka: conftest.KafkaBroker, unique: str) -> Iterator[str]:
    create_topic(kafka.bootstrap_servers, unique, partitions=PARTITIONS)
    yield unique
    delete_topic(kafka.bootstrap_servers, unique)


def made(settings: KafkaConfig, topic: str, admin: TopicAdmin | None = None) -> KafkaBroker:
    """A producer that has fenced the ones before it."""
    admin = admin or TopicAdmin(settings)
    config = producer_config(settings.bootstrap_servers, topic)
    broker = KafkaBroker(config, admin, admin.describe([topic]).values())
    broker.fence_predecessors(do_nothing)
    return broker


def record(topic: str, number: int, size: int = 1) -> TopicRecord:
    return TopicRecord(topic, b'{"id":%d}' % number, random.Random(number).randbytes(size))  # can't be compressed


def keys(settings: KafkaConfig, topic: str) -> list[bytes]:
    """Of what a `read_committed` consumer sees."""
    return sorted(r.key for r in read_topics(settings.bootstrap_servers, [topic])[0])


def test_records_lie_where_javas_producers_put_them_with_their_headers(settings: KafkaConfig, topic: str) -> None:
    broker = made(settings, topic)
    broker.produce([record(topic, number) for number in range(200)], do_nothing)
    broker.produce([TopicRecord(topic, b"gone", None, [("watershed.version", b"7")])], do_nothing)
    broker.commit(do_nothing)
    records, _ = read_topics(settings.bootstrap_servers, [topic])
    assert len(records) == 201
    assert all(r.partition == partition_of(r.key, PARTITIONS) for r in records)
    assert [(r.value, r.headers) for r in records if r.key == b"gone"] == [(None, (("watershed.version", b"7"),))]
    broker.abort()


def test_what_is_aborted_is_not_seen_and_the_next_transaction_is(settings: KafkaConfig, topic: str) -> None:
    broker = made(settings, topic)
    broker.produce([record(topic, 1)], do_nothing)
    broker.abort()
    broker.abort()  # nothing is open
    broker.produce([record(topic, 2)], do_nothing)
    broker.commit(do_nothing)
    assert keys(settings, topic) == [b'{"id":2}']


def test_a_fenced_producer_writes_nothing_more(
    settings: KafkaConfig, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logs(as_json=True)
    first = made(settings, topic)
    first.produce([record(topic, 1)], do_nothing)
    second = made(settings, topic)
    with pytest.raises(ConnectionLost):
        first.commit(do_nothing)
    with pytest.raises(ConnectionLost):  # said in other words once the client has given up
        first.produce([record(topic, 4)], do_nothing)
    second.produce([record(topic, 2)], do_nothing)
    second.commit(do_nothing)
    first.abort()
    assert keys(settings, topic) == [b'{"id":2}']
    second.produce([record(topic, 3)], do_nothing)
    second.commit(do_nothing)  # the first one's end has not fenced it
    message = [json.loads(line) for line in capfd.readouterr().err.splitlines()]  # nothing in between by librdkafka
    assert {line["level"] for line in message} <= {"warning"}


def test_end_offsets_lie_above_what_was_committed(settings: KafkaConfig, topic: str) -> None:
    broker = made(settings, topic)
    for number in range(20):
        broker.produce([record(topic, number)], do_nothing)
        broker.commit(do_nothing)
        answer = broker.request_end_offsets()
        ends = eventually(answer.result)
        assert ends is not None
        records, _ = read_topics(settings.bootstrap_servers, [topic])
        newest = [r for r in records if r.key == b'{"id":%d}' % number]
        assert not newest or newest[0].offset < ends[topic][newest[0].partition]


def test_a_record_that_is_too_large_for_us_is_named(settings: KafkaConfig, topic: str) -> None:
    broker = made(settings, topic)
    with pytest.raises(BrokerError, match=f"topic {topic}: a record is larger") as refused:
        broker.produce([record(topic, 1, size=MESSAGE_BYTES_MAX + 1)], do_nothing)
    assert "leave the large column out of the publication" in refused.value.hint
    broker.abort()
    assert keys(settings, topic) == []


def test_a_record_that_is_too_large_for_its_topic_is_named(settings: KafkaConfig, unique: str) -> None:
    create_topic(settings.bootstrap_servers, unique, partitions=PARTITIONS, max_message_bytes="2000")
    broker = made(settings, unique)
    with pytest.raises(BrokerError, match=f"topic {unique}: a record is larger"):
        broker.produce([record(unique, 1, size=100_000)], do_nothing)
        broker.commit(do_nothing)
    broker.abort()
    assert keys(settings, unique) == []


def test_a_topic_that_takes_less_than_it_did_is_looked_at_anew(settings: KafkaConfig, unique: str) -> None:
    """Its records were thought to fit. Small ones share a batch: it is no larger than one record may be."""
    create_topic(settings.bootstrap_servers, unique, partitions=PARTITIONS, max_message_bytes="20000")
    admin = TopicAdmin(settings)
    found = admin.describe([unique])[unique]
    assert found.record_bytes_max == 20_000
    config = producer_config(settings.bootstrap_servers, unique)
    broker = KafkaBroker(config, admin, [replace(found, record_bytes_max=21_000)])
    broker.fence_predecessors(do_nothing)
    broker.produce([record(unique, number, size=15_000) for number in range(20)], do_nothing)
    broker.commit(do_nothing)
    with pytest.raises(ConnectionLost, match=f"topic {unique} takes records of 20000 bytes, instead of 21000"):
        broker.produce([record(unique, 1, size=20_500)], do_nothing)
        broker.commit(do_nothing)
    broker.abort()


def test_a_topic_of_events_that_takes_little_is_met_once_and_has_small_batches(
    settings: KafkaConfig, topic: str
) -> None:
    """It is the application's: who made it chose how much it takes. Its name is noted in state."""
    events, state = f"{topic}-events", f"{topic}.state"
    create_topic(settings.bootstrap_servers, events, partitions=1, max_message_bytes="20000")
    create_topic(settings.bootstrap_servers, state, partitions=1)
    admin = TopicAdmin(settings)
    destination = EventDestination(
        None, 1, has_key=True, refused=lambda reason: TopicRecord(topic, b"k", reason.encode())
    )
    sent = [record(events, number, size=15_000)._replace(headers=(), destination=destination) for number in range(5)]
    broker = made(settings, topic, admin)
    with pytest.raises(ConnectionLost, match=f"topic {events} accepts 20000 bytes at once"):
        broker.produce(sent, do_nothing)
    broker.abort()
    broker = made(settings, topic, admin)
    broker.produce(sent, do_nothing)
    broker.commit(do_nothing)
    eventually(lambda: len(keys(settings, events)) == 5)  # a commit returns before its end is in the partitions
    assert keys(settings, state) == [f"event-topic/{events}".encode()]
    for name in (events, state):
        delete_topic(settings.bootstrap_servers, name)


def test_a_record_that_the_brokers_refuse_is_not_tried_again(settings: KafkaConfig, topic: str) -> None:
    broker = made(settings, topic)
    without_key = TopicRecord(topic, None, b"v")  # type: ignore[arg-type]
    with pytest.raises(BrokerError, match=f"topic {topic}"):
        broker.produce([without_key], do_nothing)  # a compacted topic takes no such record
        broker.commit(do_nothing)
    broker.abort()
    assert keys(settings, topic) == []


def test_more_than_the_queue_holds_waits_and_arrives(settings: KafkaConfig, topic: str) -> None:
    broker = made(settings, topic)
    count = QUEUE_MESSAGES_MAX + 20_000
    broker.produce((record(topic, number) for number in range(count)), do_nothing)
    broker.commit(do_nothing)
    assert len(keys(settings, topic)) == count


def test_brokers_that_hang_are_waited_for_while_others_hear_from_us(
    settings: KafkaConfig, topic: str, kafka: conftest.KafkaBroker
) -> None:
    broker = made(settings, topic)
    broker.produce([record(topic, 1)], do_nothing)
    heard: list[float] = []
    with frozen(kafka.stack, "kafka"):

        def hear() -> None:
            heard.append(time.monotonic())
            if heard[-1] - heard[0] > 3:
                raise GivenUpError

        with pytest.raises(GivenUpError):
            broker.commit(hear)
    pauses = [later - earlier for earlier, later in pairwise(heard)]
    assert max(pauses) < 1.0
    broker.commit(do_nothing)  # asked again, it succeeds
    assert keys(settings, topic) == [b'{"id":1}']


class GivenUpError(Exception):
    pass


def test_where_a_server_is_down_what_is_open_stops_a_transaction_and_not_who_ends_it(
    settings: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each producer meets the dead ones, also that of a session which begins to end what was left open."""
    monkeypatch.setattr("cdc.kafka.broker.MARKED_S_MAX", 0.1)
    dead = ",".join(f"127.0.0.1:{port}" for port in range(1, 10))
    mostly_dead = KafkaConfig(bootstrap_servers=f"{dead},{settings.bootstrap_servers}")

    def unlucky() -> KafkaBroker | None:  # the client asks them in any order
        broker = made(mostly_dead, topic)
        return broker if broker.has_lost_connection else None

    other = Producer(
        {"bootstrap.servers": settings.bootstrap_servers, "transactional.id": f"{topic}-other", "log_level": 0}
    )
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(topic, b"theirs", b"k", 0)
    other.flush(30)
    broker = eventually(unlucky)
    assert broker is not None
    assert [part.partition for part in TopicAdmin(settings).open_parts([topic], 0)] == [0]
    broker.put([StoredRecord(topic, 1, b"ours", b"v")], do_nothing)
    broker.commit(do_nothing)
    with pytest.raises(ConnectionLost, match=f"a transaction hangs in topic {topic}"):
        broker.produce([record(topic, 1)], do_nothing)
    other.commit_transaction(30)
    eventually(lambda: sorted(keys(settings, topic)) == [b"k", b"ours"])


def test_a_transaction_ends_with_the_connection_to_the_only_broker_of_its_topics(
    settings: KafkaConfig, topic: str, without_collector: None
) -> None:
    """Right behind a commit: not even an abort may reach partitions in which that one may still be open."""
    admin = TopicAdmin(settings)
    broker = made(settings, topic, admin)
    broker.produce([record(topic, 0)], do_nothing)
    loses_connection(broker)
    broker.produce([record(topic, 0)], do_nothing)  # nothing was committed just before
    broker.commit(do_nothing)
    before = thread_count()
    broken = made(settings, topic, admin)
    broken.produce([record(topic, 1)], do_nothing)
    broken.commit(do_nothing)
    broken.produce([record(topic, 2)], do_nothing)
    loses_connection(broken)
    with pytest.raises(ConnectionLost, match="a broker was lost while a transaction was open"):
        broken.produce([record(topic, 2)], do_nothing)
    broken.abort()
    assert thread_count() <= before, "it is gone, though its error is still at hand"
    eventually(lambda: keys(settings, topic) == [b'{"id":0}', b'{"id":0}', b'{"id":1}'])


def test_with_other_replicas_it_goes_on(settings: KafkaConfig, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = TopicAdmin(settings)
    monkeypatch.setattr(admin, "are_replicated", lambda names: topic in names)
    broker = made(settings, topic, admin)
    for number in (3, 4):
        broker.produce([record(topic, number)], do_nothing)
        loses_connection(broker)
        broker.produce([record(topic, number)], do_nothing)
        broker.commit(do_nothing)
    eventually(lambda: len(keys(settings, topic)) == 4)


def loses_connection(broker: KafkaBroker) -> None:
    """As librdkafka says it."""
    broker._outage.note(KafkaError(KafkaError._TRANSPORT))


def thread_count() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_closed_producer_leaves_no_thread(settings: KafkaConfig, topic: str, without_collector: None) -> None:
    """A service outlives many sessions, each with a producer of its own."""
    before = thread_count()
    for _ in range(3):
        broker = made(settings, topic)
        broker.produce([record(topic, 1)], do_nothing)
        broker.abort()
        del broker
    assert thread_count() <= before


def test_ends_are_not_known_while_the_topic_has_other_partitions(settings: KafkaConfig, topic: str) -> None:
    """The producer may have written to a new partition already. Published without it, the ends would have told every
    sink that it had applied all."""
    broker = made(settings, topic)
    broker.produce([record(topic, 1)], do_nothing)
    broker.commit(do_nothing)
    assert eventually(broker.request_end_offsets().result)
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result(20)
    with pytest.raises(ConnectionLost, match=f"topic {topic} was recreated or repartitioned"):
        # A broker may answer from what it knew before for a moment.
        eventually(lambda: not eventually(broker.request_end_offsets().result))
