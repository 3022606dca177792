"""What a producer's callbacks report."""

import pytest
from confluent_kafka import KafkaError

from cdc.kafka.reports import Outage, Undelivered


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
