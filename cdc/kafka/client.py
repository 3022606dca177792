"""The settings that all Kafka clients share, what producers' callbacks report, and the translation of librdkafka's
errors."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from cdc.config.settings import KafkaConfig
from cdc.kafka.tokens import TokenCallback
from cdc.model.errors import BrokerError, ConfigError, UnreachableError, WatershedError

log = structlog.get_logger(__name__)
Client = TypeVar("Client")

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""The largest record that is produced; topics are created to accept it."""

QUEUE_KIBIBYTES_MAX = 64 * 1024
"""The records that a producer holds at most, before it has sent them."""

METADATA_MS = 2_000
"""Milliseconds within which a new topic or a new leader is found."""

ANSWER_S_MAX: Final = 8.0
"""Seconds to wait for an answer to one request."""

_OAUTH_CALLBACK: Final = (
    "oauth_cb"  # the client library's name of the callback, which any thread of librdkafka may call
)

NEXT_REACHABLE = "check kafka.bootstrap_servers and kafka.options, and that the brokers are running"


class _LogHandler(logging.Handler):
    """Logs librdkafka's messages, which would otherwise go to stderr between our lines."""

    def emit(self, record: logging.LogRecord) -> None:
        log.debug("kafka client", message=record.getMessage())


_LIBRARY = logging.Logger("librdkafka")
_LIBRARY.addHandler(_LogHandler())


def client_settings(config: KafkaConfig, **settings: Any) -> dict[str, Any]:
    """Returns librdkafka properties. Options of the configuration override ours."""
    return {
        "bootstrap.servers": config.bootstrap_servers,
        "client.id": "watershed",
        "error_cb": note_error,
        "logger": _LIBRARY,
        "log_level": 2,  # critical; errors reach us through error_cb and results
        "socket.keepalive.enable": True,
        # A broker that hung is fenced for a moment. A client that asks just then learns that its partitions have no
        # leader, and by default asks again after five minutes.
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        **settings,
        **config.given,
        **({} if config.token is None else {_OAUTH_CALLBACK: TokenCallback(config.token)}),
    }


def reading_settings(config: KafkaConfig, group: str, **settings: Any) -> dict[str, Any]:
    """Returns the properties of a `read_committed` consumer whose partitions are assigned. The client requires `group`,
    for which it commits nothing by itself."""
    return client_settings(
        config,
        **{"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed", **settings},
    )


def tail_settings(config: KafkaConfig, group: str, **settings: Any) -> dict[str, Any]:
    """Returns the same for a consumer that must learn quickly that it reached the end of a topic."""
    return reading_settings(config, group, **{"enable.partition.eof": True, "fetch.wait.max.ms": 50, **settings})


def writing_settings(config: KafkaConfig, transactional_id: str, **settings: Any) -> dict[str, Any]:
    """Returns the properties of a producer whose transactions fence those of earlier producers with its id."""
    return client_settings(
        config,
        **{
            "transactional.id": transactional_id,
            # The partitioner of Java's producers, so that both agree on a key's partition
            "partitioner": "murmur2_random",
            "message.max.bytes": MESSAGE_BYTES_MAX,
            "queue.buffering.max.kbytes": QUEUE_KIBIBYTES_MAX,
            "compression.type": "lz4",
            **settings,
        },
    )


def new_client(kind: Callable[[dict[str, Any]], Client], settings: dict[str, Any]) -> Client:
    """Makes a producer, consumer or admin client. Raises ConfigError for options that librdkafka refuses,
    BrokerError. Every client of ours is made here: each process and each task gets its tokens by itself."""
    if isinstance(tokens := settings.get(_OAUTH_CALLBACK), TokenCallback):
        tokens.prepare()
    try:
        return kind(settings)
    except KafkaException as exception:
        error = kafka_error(exception)
        if error.code() != KafkaError._INVALID_ARG:
            raise broker_error("can't create a client", exception) from exception
        message = error.str()
    except (TypeError, ValueError) as wrong:  # for an option that only a program can set, such as a callback
        message = str(wrong)
    for value in settings.values():  # any of them may be a secret
        message = message.replace(f'"{value}"', "as given") if isinstance(value, str) else message
    raise ConfigError(
        f"kafka.options: {message}",
        "correct the option: librdkafka's CONFIGURATION.md lists all properties and their values",
    )


def note_error(error: KafkaError) -> None:
    """Logs the error, as librdkafka's `error_cb`. Errors that matter come with results; but of a refused login the
    result only says that no broker answers."""
    log.debug("kafka client", error=error.str(), code=error.name())
    if error.code() in _LOGIN or _TLS_ALERT in error.str():
        # One short line, also of the page that a token endpoint may answer with
        words = " ".join(_WHERE.sub("", error.str()).split())
        is_long = len(words) > LOGIN_CHARS_MAX
        _refused_login[:] = [(time.monotonic(), words[: LOGIN_CHARS_MAX - 1] + "…" if is_long else words)]


_LOGIN: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
# In what is otherwise a lost connection: the broker's own reason to end TLS, such as a certificate that it asks for.
_TLS_ALERT: Final = "SSL alert number"
_WHERE: Final = re.compile(r"^\S+://\S+: | \(after \d+ms in state \w+\)$")  # around librdkafka's messages
LOGIN_CHARS_MAX: Final = 300  # of the reason
LOGIN_S_MAX: Final = 15.0  # for which a refused login explains that no broker answers
NEXT_LOGIN: Final = "correct the login in kafka.options (security.protocol, sasl.*, ssl.*) or kafka.token"
_refused_login: list[tuple[float, str]] = []  # monotonic seconds of the last one, and the brokers' words


def _login_refusal() -> str | None:
    at, words = _refused_login[0] if _refused_login else (float("-inf"), "")
    return words if time.monotonic() - at < LOGIN_S_MAX else None


class Outage:
    """Counts lost connections to brokers."""

    def __init__(self) -> None:
        self.losses = 0
        self.noted_at = 0.0  # time of the last one, monotonic seconds

    def note(self, error: KafkaError) -> None:
        """Handles librdkafka's `error_cb`."""
        note_error(error)
        if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
            self.losses += 1
            self.noted_at = time.monotonic()


class Undelivered:
    """The error and the topic of the first record that was not delivered."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.topic = ""

    def note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.error is None:
            self.error, self.topic = error, message.topic() or ""


def kafka_error(exception: KafkaException) -> KafkaError:
    error = exception.args[0]
    assert isinstance(error, KafkaError)
    return error


# The answers for a topic that does not exist, and for one whose leader is not known yet because it was created a moment
# ago, or because its broker has just started.
LEADER_UNKNOWN: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)

# The brokers are unreachable or about to take over: a retry may succeed a moment later.
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,  # the client just learnt of other brokers, and dropped the one that it had asked
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError._WAIT_CACHE,
    KafkaError._NODE_UPDATE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # from a broker that does not know the topic yet
    KafkaError._UNKNOWN_PARTITION,  # the client's own: the topic is known, its partition not yet
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NOT_CONTROLLER,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.KAFKA_STORAGE_ERROR,
}


def broker_error(what: str, exception: KafkaException, hint: str = NEXT_REACHABLE) -> BrokerError | UnreachableError:
    """Returns the error with a sentence for the user: what was attempted, and the answer of the brokers or the
    client."""
    error = kafka_error(exception)
    sentence = f"Kafka: {what}: {error.str()} ({error.name()})"
    if error.code() in _UNREACHABLE:
        refusal = _login_refusal()
        if refusal is not None:
            return UnreachableError(f"{sentence}; the login is refused: {refusal}", NEXT_LOGIN)
        return UnreachableError(sentence, NEXT_REACHABLE)
    return BrokerError(sentence, hint)


@contextmanager
def translated(what: str, hint: str = NEXT_REACHABLE, client: Producer | AdminClient | None = None) -> Iterator[None]:
    """Translates the client's errors. `what`: what failed, for the message. `client`: one that nobody polls, which may
    have noted why its login failed."""
    try:
        yield
    except KafkaException as exception:
        if client is not None:
            client.poll(0)
        raise broker_error(what, exception, hint) from exception
    except TimeoutError as error:
        raise UnreachableError(f"Kafka: {what}: the brokers did not answer in time", NEXT_REACHABLE) from error


def topic_names(client: Consumer | Producer) -> frozenset[str]:
    """Returns the names of all topics. A request for one topic would create it on brokers with auto-creation. Raises
    UnreachableError, BrokerError."""
    with translated("no broker answers", client=client if isinstance(client, Producer) else None):
        return frozenset(client.list_topics(timeout=ANSWER_S_MAX).topics)


def missing_topics(client: Consumer | Producer, names: Iterable[str]) -> list[str]:
    """Returns the topics that do not exist. Raises UnreachableError, BrokerError."""
    existing = topic_names(client)
    return [name for name in names if name not in existing]


def require_topics(client: Consumer | Producer, names: Iterable[str]) -> None:
    """Raises WatershedError for a topic that capture has not created yet, UnreachableError, BrokerError."""
    for name in missing_topics(client, names):
        raise missing_topic(name)


def missing_topic(name: str) -> WatershedError:
    """Returns the error for a topic that capture creates."""
    return WatershedError(
        f"there is no topic {name}: capture has never run on prefix {name.rpartition('.')[0]}",
        "start capture with `cdc run`, or correct topics.prefix; if the topic was deleted, "
        "docs/how-to/managed-kafka.md says with which settings to create it",
    )


def cause_of(error: WatershedError) -> KafkaError | None:
    """Returns the answer of the brokers or the client that an error of `broker_error` was made of."""
    return kafka_error(error.__cause__) if isinstance(error.__cause__, KafkaException) else None
