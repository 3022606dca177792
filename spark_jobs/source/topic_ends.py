"""Ids, partitions and offsets of topics, as the brokers have them."""

from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import broker_error, client_settings, kafka_error, new_client
from spark_jobs.applied import FoundTopic
from spark_jobs.source.reading import ABSENT

ANSWER_S_MAX: Final = 10.0


class TopicEnds:
    """Reads ids, partitions and end offsets of the tables' topics."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._admin = new_client(AdminClient, client_settings(kafka))
        self._topics: Sequence[str] = ()

    def set_topics(self, topics: Sequence[str]) -> None:
        """Sets the topics."""
        self._topics = topics

    def ask(self) -> Mapping[str, FoundTopic]:
        """Returns the topics that exist. Raises BrokerError."""
        try:
            found = self._described()
            counts = {topic: count for topic, (_, count) in found.items()}
            end_offsets = self._offsets(counts, OffsetSpec.latest())  # type: ignore[no-untyped-call]
            start_offsets = self._offsets(counts, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        except KafkaException as error:
            raise broker_error("can't read the end offsets of the tables' topics", error) from error
        return {
            topic: FoundTopic(found[topic][0], offsets, start_offsets[topic])
            for topic, offsets in end_offsets.items()
            if topic in start_offsets
        }

    def _described(self) -> dict[str, tuple[str, int]]:
        """Returns topic → id and number of partitions."""
        if not self._topics:
            return {}
        futures = self._admin.describe_topics(TopicCollection(list(self._topics)), request_timeout=ANSWER_S_MAX)
        found = {}
        for topic, future in futures.items():
            try:
                described = future.result()
            except KafkaException as error:
                if not _is_absent(error):
                    raise
            else:
                found[topic] = str(described.topic_id), len(described.partitions)
        return found

    def _offsets(self, counts: Mapping[str, int], spec: OffsetSpec) -> dict[str, tuple[int, ...]]:
        wanted = {TopicPartition(topic, number): spec for topic, count in counts.items() for number in range(count)}
        if not wanted:
            return {}
        end_offsets = {topic: [0] * count for topic, count in counts.items()}
        answers = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S_MAX
        )
        for partition, answer in answers.items():
            try:
                offset = answer.result().offset
            except KafkaException as error:
                if not _is_absent(error):
                    raise
                end_offsets.pop(partition.topic, None)
            else:
                if partition.topic in end_offsets:
                    end_offsets[partition.topic][partition.partition] = offset
        return {topic: tuple(offsets) for topic, offsets in end_offsets.items()}


def _is_absent(error: KafkaException) -> bool:
    """Says whether a topic was deleted, or is being created: the others are read on."""
    return kafka_error(error).code() in ABSENT
