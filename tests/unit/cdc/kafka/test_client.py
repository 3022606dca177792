"""Which of the brokers' answers are worth asking again for, and what is said of options that no client takes."""

import re
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from cdc.config.settings import KafkaConfig
from cdc.kafka import client
from cdc.kafka.client import (
    LOGIN_CHARS_MAX,
    LOGIN_S_MAX,
    NEXT_REACHABLE,
    Outage,
    Undelivered,
    broker_error,
    client_settings,
    new_client,
    note_error,
    reading_settings,
)
from cdc.model.errors import BrokerError, ConfigError, UnreachableError


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError._DESTROY_BROKER,  # seen in a cluster, right after a broker had died
        KafkaError._UNKNOWN_PARTITION,  # seen just after capture had made its topics, on a busy machine
    ],
)
def test_what_passes_is_waited_for(code: int) -> None:
    assert isinstance(broker_error("can't read topic t", KafkaException(KafkaError(code))), UnreachableError)


def test_a_refusal_is_said_at_once() -> None:
    refused = broker_error("can't read topic t", KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), "x")
    assert type(refused) is BrokerError
    assert refused.message.startswith("Kafka: can't read topic t: ")
    assert refused.hint == "x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"no.such": "x"}, 'No such configuration property: "no.such"'),
        ({"security.protocol": "sesame-open"}, 'Invalid value as given for configuration property "security.protocol"'),
        ({"socket.timeout.ms": "sesame-open"}, "socket.timeout.ms"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/no/such.pem"}, "ssl.ca.location failed"),
        ({"stats_cb": "sesame-open"}, "stats_cb"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("kind", [AdminClient, Producer, Consumer])
def test_options_that_no_client_takes_are_said_without_their_values(
    kind: type, options: dict[str, str], message: str
) -> None:
    kafka = KafkaConfig(bootstrap_servers="127.0.0.1:1", options=options)
    settings = reading_settings(kafka, "group") if kind is Consumer else client_settings(kafka)
    with pytest.raises(ConfigError) as caught:
        new_client(kind, settings)
    assert caught.value.message.startswith("kafka.options: ")
    assert message in caught.value.message
    assert "sesame" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.combination("kafka", "Apache Kafka", "Kerberos (GSSAPI)", refused="No provider for SASL mechanism GSSAPI")
def test_kerberos_is_refused_because_the_installed_library_lacks_it(expected_refusal: str) -> None:
    """The wheels of confluent-kafka are built without libsasl2."""
    options = {"security.protocol": SecretStr("sasl_ssl"), "sasl.mechanism": SecretStr("GSSAPI")}
    with pytest.raises(ConfigError) as caught:
        new_client(AdminClient, client_settings(KafkaConfig(bootstrap_servers="127.0.0.1:1", options=options)))
    assert expected_refusal in caught.value.message


def test_a_refused_login_explains_for_a_while_why_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_refused_login", [])
    away = KafkaException(KafkaError(KafkaError._TRANSPORT))
    assert broker_error("no broker answers", away).hint == NEXT_REACHABLE
    words = "sasl_ssl://b:9093/bootstrap: SASL authentication error: Invalid password (after 304ms in state AUTH_REQ)"
    note_error(KafkaError(KafkaError._AUTHENTICATION, words))
    error = broker_error("no broker answers", away)
    assert isinstance(error, UnreachableError), "it is tried again: passwords and tokens are exchanged while we run"
    assert error.message.endswith("; the login is refused: SASL authentication error: Invalid password")
    assert "kafka.token" in error.hint
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + LOGIN_S_MAX + 1)
    assert broker_error("no broker answers", away).hint == NEXT_REACHABLE


def test_the_page_of_a_token_endpoint_is_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its proxy may answer, instead of the endpoint."""
    monkeypatch.setattr(client, "_refused_login", [])
    page = "<!DOCTYPE HTML>\n<html>\n  <h1>401</h1>\n" + "  <p>of many words</p>\n" * 100
    note_error(KafkaError(KafkaError._AUTHENTICATION, f"Failed to acquire SASL OAUTHBEARER token: {page}"))
    message = broker_error("no broker answers", KafkaException(KafkaError(KafkaError._TRANSPORT))).message
    assert "the login is refused: Failed to acquire SASL OAUTHBEARER token: <!DOCTYPE HTML> <html> <h1>401" in message
    assert message.endswith("…") and "\n" not in message and len(message) < LOGIN_CHARS_MAX + 100


def test_an_end_of_tls_is_explained_only_by_the_brokers_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reports both as a lost connection."""
    monkeypatch.setattr(client, "_refused_login", [])
    away = KafkaException(KafkaError(KafkaError._TRANSPORT))
    ended = "ssl://b:9093/bootstrap: Receive failed: error:{} (after 0ms in state APIVERSION_QUERY)"
    note_error(KafkaError(KafkaError._TRANSPORT, ended.format("0A000126:SSL routines::unexpected eof while reading")))
    assert broker_error("no broker answers", away).hint == NEXT_REACHABLE
    alert = "0A00045C:SSL routines::tlsv13 alert certificate required: SSL alert number 116"
    note_error(KafkaError(KafkaError._TRANSPORT, ended.format(alert)))
    assert broker_error("no broker answers", away).message.endswith(
        f"; the login is refused: Receive failed: error:{alert}"
    )


def test_every_client_is_made_in_one_place() -> None:
    """Others would have no callback for tokens, and no translated errors."""
    root = Path(client.__file__).parents[2]
    files = [path for folder in ("cdc", "sinks", "spark_jobs", "watershed") for path in (root / folder).rglob("*.py")]
    made = [
        path.relative_to(root).as_posix()
        for path in files
        if re.search(r"(?<![\w.\"])(Producer|Consumer|AdminClient)\(", path.read_text(encoding="utf-8"))
    ]
    assert made == ["watershed/devstack/kafka.py"], "the stack's own broker has no login"


# ---- what a producer's callbacks report


class Message:
    """A record that did not arrive."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def topic(self) -> str:
        return self._topic


@pytest.mark.parametrize(
    ("code", "losses"),
    [(KafkaError._TRANSPORT, 1), (KafkaError._ALL_BROKERS_DOWN, 1), (KafkaError._TIMED_OUT, 1), (KafkaError._FATAL, 0)],
)
def test_only_lost_connections_are_counted(code: int, losses: int) -> None:
    outage = Outage()
    outage.note(KafkaError(code, "said"))
    assert outage.losses == losses
    assert (outage.noted_at > 0) == bool(losses)


def test_the_first_record_that_did_not_arrive_names_the_cause() -> None:
    undelivered = Undelivered()
    undelivered.note(None, Message("arrived"))  # type: ignore[arg-type]
    for topic, code in (("p.a", KafkaError.MSG_SIZE_TOO_LARGE), ("p.b", KafkaError._PURGE_QUEUE)):
        undelivered.note(KafkaError(code, "said"), Message(topic))  # type: ignore[arg-type]
    assert undelivered.error is not None
    assert (undelivered.error.code(), undelivered.topic) == (KafkaError.MSG_SIZE_TOO_LARGE, "p.a")
