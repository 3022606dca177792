"""The transactional producer's errors: a producer of the test says what librdkafka can say, at every call."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from cdc.kafka import broker as broker_module
from cdc.kafka.broker import ANSWER_S_MAX, STOPPING_S_MAX, KafkaBroker
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.topic_admin import TopicDescription
from cdc.model.control import OpenPart
from cdc.model.errors import BrokerError, ConnectionLost, UnreachableError
from cdc.model.topic_record import TopicRecord
from tests.support.topics import producer_config
from tests.support.waiting import eventually

CODES = sorted({code for name, code in vars(KafkaError).items() if name.isupper() and isinstance(code, int) and code})
FENCED = KafkaError(KafkaError._FENCED, "fenced by a newer producer", fatal=True)
RECORD = TopicRecord("p.t", b"k", b"v")


class Producer:
    """Raises what is planned for a call, each time that it is made."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.fails: dict[str, KafkaError] = {}
        self.calls: list[str] = []

    def _say(self, call: str) -> int:
        self.calls.append(call)
        if call in self.fails:
            raise KafkaException(self.fails[call])
        return 0

    def poll(self, timeout_s: float) -> int:  # noqa: ARG002
        return self._say("poll")

    def flush(self, timeout_s: float) -> int:  # noqa: ARG002
        return self._say("flush")

    def produce(self, *record: Any, **more: Any) -> None:  # noqa: ARG002
        self._say("produce")

    def begin_transaction(self) -> None:
        self._say("begin_transaction")

    def init_transactions(self, timeout_s: float) -> None:  # noqa: ARG002
        self._say("init_transactions")

    def commit_transaction(self, timeout_s: float) -> None:  # noqa: ARG002
        self._say("commit_transaction")

    def abort_transaction(self, timeout_s: float) -> None:  # noqa: ARG002
        self._say("abort_transaction")

    def lose_connection(self) -> None:
        """As librdkafka's callback tells of it."""
        self.settings["error_cb"](KafkaError(KafkaError._TRANSPORT, "hung up"))


class Admin:
    """Brokers that answer, with one replica of each partition."""

    def __init__(self) -> None:
        self.event_bytes_max: dict[str, int] = {}
        self.look: Callable[[], list[OpenPart]] = list

    def are_replicated(self, names: set[str]) -> bool:  # noqa: ARG002
        return False

    def open_parts(self, *asked: Any) -> list[OpenPart]:  # noqa: ARG002
        return self.look()

    def describe(self, names: list[str]) -> dict[str, Any]:  # noqa: ARG002
        raise UnreachableError("Kafka: no broker answers")


class Time:
    """Each look at it takes a second; nobody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    clock = Time()
    monkeypatch.setattr(broker_module, "time", clock)
    yield clock


def made(
    monkeypatch: pytest.MonkeyPatch, should_stop: Callable[[], bool] = lambda: False
) -> tuple[KafkaBroker, Producer, Admin]:
    monkeypatch.setattr(broker_module, "Producer", Producer)
    admin, topics = Admin(), [TopicDescription("p.t", "id", 1, "compact")]
    broker = KafkaBroker(producer_config("b", "p"), admin, topics, should_stop)  # type: ignore[arg-type]
    producer = broker._producer
    assert isinstance(producer, Producer)
    return broker, producer, admin


@pytest.mark.parametrize("call", ["poll", "abort_transaction"])
def test_abort_never_raises_whatever_librdkafka_says(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    for code in CODES:
        for is_fatal in (False, True):
            broker, producer, _ = made(monkeypatch)
            broker.produce([RECORD], do_nothing)
            producer.fails[call] = KafkaError(code, "said", fatal=is_fatal)
            with capture_logs() as logs:
                broker.abort()
            assert call in producer.calls
            assert [line["event"] for line in logs] == ["could not abort the Kafka transaction"], code
            broker.abort()  # nothing is open any more


@pytest.mark.parametrize("is_open", [True, False])
def test_a_producer_that_failed_ends_the_watch_in_a_sentence(monkeypatch: pytest.MonkeyPatch, is_open: bool) -> None:
    for code in CODES:
        broker, producer, _ = made(monkeypatch)
        if is_open:
            broker.produce([RECORD], do_nothing)
        producer.fails["poll"] = KafkaError(code, "said", fatal=True)
        with pytest.raises(ConnectionLost, match=r"^Kafka: "):
            broker.check_after_outage()


@pytest.mark.parametrize(
    "error",
    [
        KafkaException(FENCED),
        KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no")),
        BrokerError("Kafka: can't list topics: not allowed"),
        ConnectionLost("Kafka: x"),
    ],
)
def test_what_the_look_behind_an_outage_meets_ends_the_session_or_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    broker, producer, admin = made(monkeypatch)

    def look() -> list[OpenPart]:
        raise error

    admin.look = look
    producer.lose_connection()
    broker.check_after_outage()
    assert broker._check is not None
    eventually(broker._check.done)
    if isinstance(error, ConnectionLost):  # they are still away
        broker.check_after_outage()
        assert broker.has_lost_connection
    else:
        with pytest.raises(ConnectionLost, match=r"^Kafka: "):
            broker.check_after_outage()


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("init_transactions", lambda broker: broker.fence_predecessors(do_nothing)),
        ("begin_transaction", lambda broker: broker.produce([RECORD], do_nothing)),
        ("produce", lambda broker: broker.produce([RECORD], do_nothing)),
        ("poll", lambda broker: broker.produce([RECORD], do_nothing)),
        ("commit_transaction", lambda broker: broker.commit(do_nothing)),
        ("flush", lambda broker: broker.flush_and_abort(do_nothing)),
        ("abort_transaction", lambda broker: broker.flush_and_abort(do_nothing)),
        ("poll", lambda broker: broker.has_lost_connection),
    ],
)
def test_a_fenced_producer_ends_in_a_sentence_at_every_step(
    monkeypatch: pytest.MonkeyPatch, step: str, call: Callable[[KafkaBroker], object]
) -> None:
    broker, producer, _ = made(monkeypatch)
    producer.fails[step] = FENCED
    with pytest.raises(ConnectionLost, match="fenced by a newer producer"):
        call(broker)
    assert step in producer.calls


def test_a_fenced_producer_is_met_while_a_commit_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, producer, _ = made(monkeypatch)
    broker.produce([RECORD], do_nothing)
    producer.fails |= {"commit_transaction": KafkaError(KafkaError._TIMED_OUT, "?", retriable=True), "poll": FENCED}
    with pytest.raises(ConnectionLost, match="fenced by a newer producer"):
        broker.commit(do_nothing)
    broker.abort()


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("init_transactions", lambda broker: broker.fence_predecessors(do_nothing)),
        ("commit_transaction", lambda broker: broker.commit(do_nothing)),
        ("abort_transaction", lambda broker: broker.flush_and_abort(do_nothing)),
    ],
)
@pytest.mark.parametrize(("stops", "limit_s"), [(False, ANSWER_S_MAX), (True, STOPPING_S_MAX)])
def test_brokers_that_do_not_answer_are_waited_for_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
    clock: Time,
    step: str,
    call: Callable[[KafkaBroker], object],
    stops: bool,
    limit_s: float,
) -> None:
    broker, producer, _ = made(monkeypatch, should_stop=lambda: stops)
    producer.fails[step] = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
    began = clock.now
    with pytest.raises(ConnectionLost, match=r"the brokers have not answered for \d+ s"):
        call(broker)
    assert limit_s <= clock.now - began <= limit_s + 5


def test_a_commit_that_is_answered_late_counts(monkeypatch: pytest.MonkeyPatch, clock: Time) -> None:
    broker, producer, _ = made(monkeypatch, should_stop=lambda: True)
    producer.fails["commit_transaction"] = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
    waited: list[float] = []

    def wait() -> None:
        waited.append(clock.now)
        producer.fails.clear()

    broker.commit(wait)
    assert len(waited) == 1


def test_a_commit_is_one_call_however_long_it_takes_and_no_abort_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka ended the process: it took the answer to a commit, called again meanwhile, for that of an abort."""
    broker, producer, _ = made(monkeypatch)
    broker.produce([RECORD], do_nothing)
    answered = threading.Event()
    committing: list[float] = []

    def commit(timeout_s: float) -> None:
        committing.append(timeout_s)
        answered.wait(30)

    producer.commit_transaction = commit  # type: ignore[method-assign]
    waited: list[bool] = []

    def lose_source() -> None:
        waited.append(True)
        if len(waited) == 3:
            raise ConnectionLost("the source is gone")

    with pytest.raises(ConnectionLost, match="the source is gone"):
        broker.commit(lose_source)
    broker.abort()
    answered.set()
    assert committing == [ANSWER_S_MAX]
    assert "abort_transaction" not in producer.calls


def test_a_commit_that_failed_is_followed_by_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, producer, _ = made(monkeypatch)
    broker.produce([RECORD], do_nothing)
    producer.fails["commit_transaction"] = KafkaError(KafkaError._INCONSISTENT, "lost", txn_requires_abort=True)
    with pytest.raises(ConnectionLost, match="lost"):
        broker.commit(do_nothing)
    broker.abort()
    assert producer.calls[-1] == "abort_transaction"
