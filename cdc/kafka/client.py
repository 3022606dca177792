"""Settings that every Kafka client of ours shares, and what librdkafka's errors mean for us."""

from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException

from cdc.config import KafkaConfig
from cdc.errors import BrokerError, UnreachableError

log = structlog.get_logger(__name__)

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""The largest record that we produce; topics are created to take it."""

NEXT_REACHABLE = "check kafka.bootstrap_servers and kafka.options, and that the brokers run"


def client_settings(config: KafkaConfig, **settings: Any) -> dict[str, Any]:
    """librdkafka properties; the configuration's options go before ours where they overlap."""
    return {
        "bootstrap.servers": config.bootstrap_servers,
        "client.id": "watershed",
        "error_cb": _on_error,
        "log_level": 2,  # critical; errors reach us through error_cb and results
        "socket.keepalive.enable": True,
        **settings,
        **{name: secret.get_secret_value() for name, secret in config.options.items()},
    }


def _on_error(error: KafkaError) -> None:
    log.debug("kafka client", error=error.str(), code=error.name())


def kafka_error(exception: KafkaException) -> KafkaError:
    """The KafkaError inside."""
    error = exception.args[0]
    assert isinstance(error, KafkaError)
    return error


_UNREACHABLE = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}


def broker_error(what: str, exception: KafkaException, hint: str = NEXT_REACHABLE) -> BrokerError | UnreachableError:
    """A sentence for a user: what was tried, and what the brokers or the client said."""
    error = kafka_error(exception)
    sentence = f"Kafka: {what}: {error.str()} ({error.name()})"
    if error.code() in _UNREACHABLE:
        return UnreachableError(sentence, NEXT_REACHABLE)
    return BrokerError(sentence, hint)
