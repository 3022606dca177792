"""Signals and answers through a real broker, to a daemon that a test plays."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from cdc.config.settings import KafkaConfig
from cdc.kafka.compacted import CompactedTail
from cdc.kafka.signals import SignalReader
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.errors import UnreachableError, WatershedError
from cdc.model.topics import Topics
from cdc.ports.stream import Signal
from tests.conftest import KafkaBroker
from tests.support.topics import create_topic, delete_topic
from tests.support.waiting import eventually
from watershed.client.signal_sender import await_answer, send_signal
from watershed.devstack.stack import Stack

RECORD = SignalRecord(action="snapshot", tables=("public.a",), where="id > 7", requested_us=1)
NOBODY = KafkaConfig(bootstrap_servers="127.0.0.1:1")


@pytest.fixture
def settings(kafka: KafkaBroker) -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def topics(unique: str) -> Topics:
    return Topics(unique)


@pytest.fixture
def made(kafka: KafkaBroker, topics: Topics) -> Iterator[Topics]:
    """The topics that capture makes."""
    create_topic(kafka.bootstrap_servers, topics.signals, policy="delete")
    create_topic(kafka.bootstrap_servers, topics.control)
    yield topics
    for topic in (topics.signals, topics.control):
        delete_topic(kafka.bootstrap_servers, topic)


def put(settings: KafkaConfig, topic: str, key: bytes | None, value: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    producer.produce(topic, value, key)
    assert producer.flush(10) == 0


def come(reader: SignalReader, count: int) -> list[Signal]:
    """The next `count` signals."""
    signals: list[Signal] = []

    def are_there() -> bool:
        signals.extend(reader.poll())
        return len(signals) >= count

    eventually(are_there, 20, lambda: f"{count} signals; there are {signals}")
    return signals


class Daemon:
    """Obeys every signal as a thread, the answers in a transaction as capture's are."""

    def __init__(self, settings: KafkaConfig, topics: Topics, answer: Callable[[Signal], SignalAnswer]) -> None:
        self._settings, self._topics, self._answer = settings, topics, answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        servers = self._settings.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "transactional.id": self._topics.prefix})
        producer.init_transactions(20)
        with closing(SignalReader(self._settings, self._topics.signals, None)) as reader:
            while not self._stop.wait(0.02):
                for signal in reader.poll():
                    producer.begin_transaction()
                    answer = self._answer(signal).encode()
                    producer.produce(self._topics.control, answer, SignalAnswer.key_of(signal.identity))
                    producer.commit_transaction(20)


# ---- the reader


def test_signals_come_in_order_from_the_offset_on(settings: KafkaConfig, made: Topics) -> None:
    sent = [send_signal(settings, made, RECORD) for _ in range(3)]
    with closing(SignalReader(settings, made.signals, None)) as reader:
        assert come(reader, 3) == [Signal(name, offset, RECORD, "") for offset, name in enumerate(sent)]
        later = send_signal(settings, made, RECORD)
        assert come(reader, 1) == [Signal(later, 3, RECORD, "")]
    with closing(SignalReader(settings, made.signals, 2)) as reader:
        assert [signal.identity for signal in come(reader, 2)] == [sent[2], later]


def test_what_is_no_signal_is_told_with_its_problem(settings: KafkaConfig, made: Topics) -> None:
    put(settings, made.signals, b"x", b"pause!")
    put(settings, made.signals, b"y", b'{"action":"explode","requested_us":1}')
    put(settings, made.signals, None, None)
    with closing(SignalReader(settings, made.signals, None)) as reader:
        first, second, third = come(reader, 3)
    assert [(s.identity, s.offset, s.record) for s in (first, second, third)] == [
        ("x", 0, None),
        ("y", 1, None),
        ("offset-2", 2, None),
    ]
    assert f"topic {made.signals}, offset 0 holds a value that is not a SignalRecord" in first.problem
    assert "action" in second.problem and "explode" not in second.problem
    assert third.problem


def test_a_topic_that_is_made_later_is_read_from_its_beginning(
    settings: KafkaConfig, topics: Topics, kafka: KafkaBroker
) -> None:
    with closing(SignalReader(settings, topics.signals, None)) as reader, capture_logs() as logs:

        def is_logged() -> bool:
            assert reader.poll() == []
            return any(line["log_level"] == "warning" for line in logs)

        eventually(is_logged, 20, "the missing topic is said")
        create_topic(kafka.bootstrap_servers, topics.signals, policy="delete")
        identity = send_signal(settings, topics, RECORD)
        assert come(reader, 1) == [Signal(identity, 0, RECORD, "")]
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["signals can't be read"], "seldom"
    delete_topic(kafka.bootstrap_servers, topics.signals)


def test_an_offset_that_has_passed_out_of_the_topic_is_followed_by_the_oldest_that_is_left(
    settings: KafkaConfig, made: Topics
) -> None:
    identity = send_signal(settings, made, RECORD)
    with closing(SignalReader(settings, made.signals, 40)) as reader:
        assert come(reader, 1) == [Signal(identity, 0, RECORD, "")]


def test_looking_takes_no_time_when_no_broker_is_there() -> None:
    with closing(SignalReader(NOBODY, "t.signals", 3)) as reader:
        began = time.monotonic()
        assert [reader.poll() for _ in range(50)] == [[]] * 50
        assert time.monotonic() - began < 1.0


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path) -> None:
    with Stack(tmp_path, temporary=True, given={}) as stack:
        settings = KafkaConfig(bootstrap_servers=stack.start("kafka").bootstrap_servers)
        topics = Topics("shop")
        create_topic(settings.bootstrap_servers, topics.signals, policy="delete")
        with closing(SignalReader(settings, topics.signals, None)) as reader:
            send_signal(settings, topics, RECORD)
            come(reader, 1)
            stack.kill("kafka")
            assert [reader.poll() for _ in range(20)] == [[]] * 20
            stack.restart("kafka")
            identity = send_signal(settings, topics, RECORD)
            assert come(reader, 1) == [Signal(identity, 1, RECORD, "")]


# ---- sending


def test_an_answer_comes_back_to_who_asked(settings: KafkaConfig, made: Topics) -> None:
    def answer(signal: Signal) -> SignalAnswer:
        assert signal.record
        return SignalAnswer(is_accepted=True, message="begun", tables=signal.record.tables)

    with Daemon(settings, made, answer):
        for table in ("public.a", "public.b"):
            record = RECORD.model_copy(update={"tables": (table,)})
            identity = send_signal(settings, made, record)
            reported = await_answer(settings, made, identity, 20.0)
            assert reported == SignalAnswer(is_accepted=True, message="begun", tables=(table,))


def test_without_a_daemon_the_next_step_is_said(settings: KafkaConfig, made: Topics) -> None:
    identity = send_signal(settings, made, RECORD)
    with pytest.raises(WatershedError, match=r"capture has not answered in 0\.3 s") as unanswered:
        await_answer(settings, made, identity, 0.3)
    assert "check that `cdc run` is running" in unanswered.value.hint


def test_where_capture_has_never_run_there_is_nobody_to_ask(
    settings: KafkaConfig, topics: Topics, kafka: KafkaBroker
) -> None:
    with pytest.raises(WatershedError, match=f"capture has never run on prefix {topics.prefix}"):
        send_signal(settings, topics, RECORD)
    with closing(CompactedTail(settings, [topics.state])) as tail, pytest.raises(WatershedError, match="never run"):
        tail.read_to_end()


def test_without_brokers_it_is_said() -> None:
    with pytest.raises(UnreachableError, match="no broker answers"):
        send_signal(NOBODY, Topics("shop"), RECORD)


# ---- what answers and watchers are read with


def test_a_tail_is_the_last_value_of_each_key_and_goes_on(settings: KafkaConfig, made: Topics) -> None:
    for number in range(5):
        put(settings, made.control, b"k%d" % (number % 2), b"%d" % number)
    with closing(CompactedTail(settings, [made.control, made.signals])) as tail:
        assert tail.read_to_end() == {(made.control, "k0"), (made.control, "k1")}
        assert tail.latest == {made.control: {"k0": b"4", "k1": b"3"}, made.signals: {}}
        assert tail.read_to_end() == set(), "it stands there"
        put(settings, made.control, b"k1", b"5")
        assert tail.read_to_end() == {(made.control, "k1")}, "it reads on"
        put(settings, made.control, b"k0", None)
        put(settings, made.control, b"k2", b"new")
        changed: set[tuple[str, str]] = set()

        def has_come() -> bool:
            changed.update(tail.poll(0.05))
            return len(changed) == 2

        eventually(has_come, 20)
        assert tail.latest[made.control] == {"k1": b"5", "k2": b"new"}
        assert changed == {(made.control, "k0"), (made.control, "k2")}


def test_what_is_not_committed_is_not_read(settings: KafkaConfig, made: Topics) -> None:
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "transactional.id": made.prefix})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(made.control, b"1", b"k")
    producer.flush(10)
    with closing(CompactedTail(settings, [made.control])) as tail:
        tail.read_to_end()
        assert tail.latest[made.control] == {}
        producer.commit_transaction(20)

        def has_come() -> bool:
            tail.read_to_end()  # the brokers answer a commit before they have written its markers
            return "k" in tail.latest[made.control]

        eventually(has_come, 20)
        assert tail.latest[made.control] == {"k": b"1"}
