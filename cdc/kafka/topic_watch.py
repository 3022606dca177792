"""Checks while streaming, without waiting, that the topics are those that the position was written to."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException

from cdc.kafka.client import kafka_error
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription
from cdc.model.errors import NEXT_AFTER_GAP, ConnectionLost, GapError

log = structlog.get_logger(__name__)


class TopicWatch:
    """Compares the answers to its last requests when it is called, and requests descriptions again.

    A topic that was deleted and recreated takes new records as if nothing had happened, and new partitions move keys.
    """

    def __init__(self, admin: TopicAdmin, expected: Mapping[str, TopicDescription]) -> None:
        self._admin = admin
        self._expected = expected
        self._asked: Mapping[str, Future[Any]] = {}

    def __call__(self) -> None:
        """Raises GapError if a topic was recreated or repartitioned, ConnectionLost if one is unknown: then a new
        session examines it."""
        if all(future.done() for future in self._asked.values()):
            for name, future in self._asked.items():
                self._compare(self._expected[name], future)
            self._asked = self._admin.request_descriptions(list(self._expected))

    def _compare(self, then: TopicDescription, answer: "Future[Any]") -> None:
        try:
            now = answer.result(0)
        except KafkaException as exception:
            error = kafka_error(exception)
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise ConnectionLost(f"Kafka: topic {then.name} is not known to the brokers") from exception
            log.debug("topics not described", error=error.str())  # the producer will meet the error, with details
            return
        if str(now.topic_id) != then.topic_id:
            raise GapError(f"topic {then.name} was deleted and recreated", NEXT_AFTER_GAP)
        if len(now.partitions) != then.partition_count:
            raise GapError(
                f"topic {then.name} has {len(now.partitions)} partitions, but had {then.partition_count}: "
                "the records of a key would no longer be in order",
                NEXT_AFTER_GAP,
            )
