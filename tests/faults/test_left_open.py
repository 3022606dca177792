"""Brokers that decide on a transaction and forget to end it: what was committed is there once, whoever dies when.

That they do is seen now and then when a broker is killed; here the end is taken out of their logs.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from cdc.kafka.broker import KafkaBroker as Producer
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import ConnectionLost
from cdc.model.topic_record import TopicRecord
from tests.checker.records import read_topics
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.kafka_logs import data_of, forget_ends, is_over, last_transaction
from tests.support.outbox_workload import Writers, with_outbox
from tests.support.topics import create_topic, delete_topic, producer_config
from tests.support.waiting import eventually
from tests.support.workload import SCHEMA, TABLES, Workload

pytestmark = [pytest.mark.whole, pytest.mark.long]

PARTITIONS = 4


@pytest.fixture
def captured(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, SCHEMA, TABLES) as made:
        made.start()
        made.await_caught_up()
        made.end()
        yield made


def insert_rows(captured: Captured, first: int) -> None:
    """Of all partitions."""
    captured.query(
        "INSERT INTO lines SELECT n, 1, n, 1, NULL FROM generate_series(%s, %s::int + 299) AS n", first, first
    )


def dies_with_rows(captured: Captured, first: int) -> None:
    """A Kafka transaction with rows is the last."""
    insert_rows(captured, first)
    captured.start_and_die("kafka.after-commit")


def killed_when_ended(kafka: KafkaBroker, *transactional_ids: str) -> None:
    """A commit returns before the end is in the partitions."""
    data = data_of(kafka.stack)
    eventually(lambda: all(is_over(data, name) for name in transactional_ids))
    kafka.stack.kill("kafka")


def forgotten(captured: Captured, kafka: KafkaBroker, *topics: str, state: bool = True) -> None:
    """The last transaction's end is nowhere, or in state only; and of these topics, each written to by the producer of
    its name."""
    killed_when_ended(kafka, *(f"watershed-{name}" for name in (captured.name, *topics)))
    data = data_of(kafka.stack)
    _, places = last_transaction(data, f"watershed-{captured.name}")
    assert (f"{captured.name}.state", 0) in places
    assert sum(topic.endswith(".lines") for topic, _ in places) > 1
    ours = [place for place in places if state or not place[0].endswith(".state")]
    forget_ends(data, [*ours, *((topic, 0) for topic in topics)])
    kafka.stack.restart("kafka")


def goes_on(captured: Captured) -> str:
    process = captured.start()
    with Workload(captured.dsn, seed=5, transactions=5):
        pass
    captured.await_caught_up()
    assert captured.judge().epoch == 1
    captured.end()
    return process.said()


@pytest.mark.promise(1)
def test_what_was_committed_is_there_once(captured: Captured, kafka: KafkaBroker) -> None:
    """Wherever its end is missing, and where the next process dies over it."""
    dies_with_rows(captured, 1)
    forgotten(captured, kafka, state=False)
    captured.start_and_die("left-open.recorded")
    assert "hanging Kafka transaction ended" in goes_on(captured)
    dies_with_rows(captured, 1001)
    forgotten(captured, kafka)
    captured.start_and_die("left-open.aborted")
    assert "hanging Kafka transaction found" not in goes_on(captured)


@pytest.mark.promise(1)
def test_what_was_aborted_is_not_there(captured: Captured, kafka: KafkaBroker) -> None:
    name = f"watershed-{captured.name}"
    predecessor = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "log_level": 0}
    )
    predecessor.init_transactions(30)
    predecessor.begin_transaction()
    for topic, partition in [("public.lines", 0), ("public.lines", 3), ("control", 0), ("state", 0)]:
        predecessor.produce(f"{captured.name}.{topic}", b"never to be seen", b"position", partition)
    predecessor.flush(30)
    predecessor.abort_transaction(30)
    killed_when_ended(kafka, name)
    data = data_of(kafka.stack)
    is_committed, places = last_transaction(data, name)
    assert not is_committed
    forget_ends(data, places)
    kafka.stack.restart("kafka")
    assert "hanging Kafka transaction found" in goes_on(captured)


@pytest.mark.promise(1)
@pytest.mark.long
def test_who_lives_notices(captured: Captured, kafka: KafkaBroker) -> None:
    """Who has nothing to publish too: readers would wait for ever."""
    idle_topic = f"{captured.name}-idle"
    idle = idle_producer(kafka, idle_topic)
    insert_rows(captured, 1)
    process = captured.start(failpoint="kafka.after-commit:1:stop")
    eventually(lambda: process.is_frozen, 60.0, "capture is frozen")
    forgotten(captured, kafka, idle_topic)
    process.signal(signal.SIGCONT)
    eventually(lambda: finds_open(idle, idle_topic), 60.0, "the open transaction is seen")
    captured.await_caught_up()
    assert captured.judge().epoch == 1
    assert "a transaction hangs in topic" in process.said()
    delete_topic(kafka.bootstrap_servers, idle_topic)


def idle_producer(kafka: KafkaBroker, name: str) -> Producer:
    """It has committed a record to a topic of its name."""
    create_topic(kafka.bootstrap_servers, name, partitions=1)
    config = producer_config(kafka.bootstrap_servers, name)
    admin = TopicAdmin(config.kafka)
    producer = Producer(config, admin, admin.describe([name]).values())
    producer.fence_predecessors(do_nothing)
    producer.produce([TopicRecord(name, b"key", b"value")], do_nothing)
    producer.commit(do_nothing)
    return producer


def finds_open(producer: Producer, topic: str) -> bool:
    """Whether a look has found what it is for."""
    try:
        producer.check_after_outage()
    except ConnectionLost as found:
        assert found.message == f"Kafka: a transaction hangs in topic {topic}"
        return True
    return False


@pytest.mark.promise(4)
@pytest.mark.long
def test_what_is_lost_is_a_gap(captured: Captured, kafka: KafkaBroker) -> None:
    """The position is committed, its rows are aborted, and who would have written them again is dead."""
    dies_with_rows(captured, 1)
    forgotten(captured, kafka, state=False)
    captured.start_and_die("left-open.aborted")
    process = captured.start()
    assert "lost: capture died while it wrote its records again" in process.await_refusal()
    captured.end()
    assert "is lost" in captured.start().await_refusal()
    captured.cdc("snapshot", "heal")
    captured.await_caught_up()
    assert captured.epoch() == 2
    assert captured.unlike(TABLES) == {}
    captured.end()
    process = captured.start()
    process.await_said("streaming")
    assert "is lost" not in process.said()


@pytest.mark.promise(1)
def test_what_others_have_open_in_a_topic_of_events_is_theirs(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> None:
    """Applications may write to it as well, in transactions that last longer than a start of capture."""
    topic = f"{unique}-thing"
    with with_outbox(postgres, kafka, fresh_database, unique, tmp_path, {}) as captured:
        captured.start().await_said("streaming")
        with Writers(fresh_database, seed=7) as writers:
            eventually(lambda: writers.committed > 20)
        captured.await_caught_up()
        captured.end()
        other = confluent_kafka.Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"{unique}-other", "log_level": 0}
        )
        other.init_transactions(30)
        other.begin_transaction()
        for partition in range(PARTITIONS):
            other.produce(topic, b"theirs", b"1", partition)
        other.flush(30)
        process = captured.start()
        process.await_said("streaming")
        with Writers(fresh_database, seed=8) as writers:
            eventually(lambda: writers.committed > 20)
        captured.await_caught_up()
        assert "a Kafka transaction of another producer is open" in process.said()
        other.commit_transaction(30)
        values = [record.value for record in read_topics(kafka.bootstrap_servers, [topic])[0]]
        assert values.count(b"theirs") == PARTITIONS
        delete_topic(kafka.bootstrap_servers, topic)
