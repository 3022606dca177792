"""Sends the requests of an operator to capture, and waits for capture's answers."""

import time
import uuid
from contextlib import closing
from typing import Final

from cdc.config.settings import KafkaConfig
from cdc.kafka.compacted import CompactedTail
from cdc.kafka.signals import deliver
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.errors import NotInTimeError
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics

_STEP_S: Final = 0.05


def send_signal(kafka: KafkaConfig, topics: Topics, record: SignalRecord) -> str:
    """Returns the signal's id when the brokers have acknowledged it. Raises WatershedError if capture has never run on
    the prefix, UnreachableError, BrokerError."""
    identity = uuid.uuid4().hex
    deliver(kafka, TopicRecord(topics.signals, identity.encode(), record.encode()))
    return identity


def await_answer(kafka: KafkaConfig, topics: Topics, identity: str, timeout_s: float) -> SignalAnswer:
    """Returns capture's answer to the signal. Raises NotInTimeError if there is none within `timeout_s`."""
    key = SignalAnswer.key_of(identity)
    deadline = time.monotonic() + timeout_s
    with closing(CompactedTail(kafka, [topics.control])) as tail:
        tail.read_to_end()
        answers = tail.latest[topics.control]
        while key not in answers:
            if time.monotonic() > deadline:
                raise NotInTimeError(
                    f"capture has not answered in {timeout_s:g} s: the signal waits in topic {topics.signals}",
                    f"check that `cdc run` is running on prefix {topics.prefix}; it accepts the signal for a day",
                )
            tail.poll(_STEP_S)
        return SignalAnswer.decode(answers[key], f"topic {topics.control}, key {key}")
