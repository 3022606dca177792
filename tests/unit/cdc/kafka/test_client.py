"""Which of the brokers' answers are worth asking again for."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.errors import BrokerError, UnreachableError
from cdc.kafka.client import broker_error


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
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
