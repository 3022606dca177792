"""Admin calls and compacted topics on a real broker."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc.config import KafkaConfig, TopicConfig
from cdc.errors import BrokerError
from cdc.kafka.compacted import read_latest
from cdc.kafka.topics import TopicAdmin
from tests.conftest import KafkaBroker
from tests.waiting import eventually


@pytest.fixture
def settings(kafka: KafkaBroker) -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def topics(kafka: KafkaBroker, unique: str) -> Iterator[list[str]]:
    """Names of three tables' topics and three others, deleted at the end."""
    names = [f"{unique}.{name}" for name in ("public.a", "public.b", "public.c", "state", "control", "progress")]
    yield names
    AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).delete_topics(names)


@pytest.mark.parametrize("attempt", range(6))
def test_created_topics_can_be_used_at_once(
    settings: KafkaConfig, topics: list[str], unique: str, attempt: int
) -> None:
    """The brokers answer a creation before they know the topic: a start took what they told next for the whole."""
    admin = TopicAdmin(settings)
    admin.create(topics[:3], topics[3:], TopicConfig(prefix=unique, partitions=8))
    found = admin.check(topics)
    assert {name: topic.partition_count for name, topic in found.items()} == dict(
        zip(topics, [8] * 3 + [1] * 3, strict=True)
    )
    assert all(topic.topic_id for topic in found.values())
    assert read_latest(settings, topics[3]) == {}
    ends = admin.request_end_offsets({name: topic.partition_count for name, topic in found.items()}).wait()
    assert ends[topics[0]] == (0,) * 8


def test_a_topic_that_exists_already_is_no_error(settings: KafkaConfig, topics: list[str], unique: str) -> None:
    admin = TopicAdmin(settings)
    for _ in range(2):
        admin.create(topics[:1], topics[3:4], TopicConfig(prefix=unique))
    assert admin.check(topics).keys() == {topics[0], topics[3]}


def test_a_topic_that_is_not_compacted_is_refused(settings: KafkaConfig, topics: list[str]) -> None:
    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    client.create_topics([NewTopic(topics[0], 1, config={"cleanup.policy": "compact,delete"})])[topics[0]].result(10)
    eventually(lambda: topics[0] in client.list_topics(timeout=10).topics)
    with pytest.raises(BrokerError, match=rf"topic {topics[0]} exists with cleanup.policy=compact,delete") as refused:
        TopicAdmin(settings).check(topics)
    assert f"cleanup.policy=compact on {topics[0]}" in refused.value.hint
