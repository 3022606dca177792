"""Admin calls and compacted topics on a real broker."""

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from cdc.config.settings import KafkaConfig, TopicConfig
from cdc.kafka.compacted import read_latest
from cdc.kafka.topic_admin import TopicAdmin
from cdc.kafka.topic_creation import WantedTopic
from cdc.model.errors import BrokerError, UnreachableError
from tests.conftest import KafkaBroker
from tests.support.topics import create_topic
from tests.support.waiting import eventually


@pytest.fixture
def settings(kafka: KafkaBroker) -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def topics(kafka: KafkaBroker, unique: str) -> Iterator[list[str]]:
    """Names of three tables' topics and three others, deleted at the end."""
    names = [f"{unique}.{name}" for name in ("public.a", "public.b", "public.c", "state", "control", "progress")]
    yield names
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})  # a name keeps it until it has answered
    for deleted in admin.delete_topics(names).values():
        with suppress(KafkaException):  # a test may have deleted it
            deleted.result(10)


@pytest.mark.parametrize("attempt", range(6))
def test_created_topics_can_be_used_at_once(
    settings: KafkaConfig, topics: list[str], unique: str, attempt: int
) -> None:
    """The brokers answer a creation before they know the topic: a start took what they told next for the whole."""
    admin = TopicAdmin(settings)
    admin.create(TopicConfig(prefix=unique, partitions=8), {"table": topics[:3], "state": topics[3:]})
    found = admin.check(topics)
    assert {name: topic.partition_count for name, topic in found.items()} == dict(
        zip(topics, [8] * 3 + [1] * 3, strict=True)
    )
    assert all(topic.topic_id for topic in found.values())
    assert read_latest(settings, topics[3]) == {}
    ends = admin.request_end_offsets({name: topic.partition_count for name, topic in found.items()}).wait()
    assert ends[topics[0]] == (0,) * 8


def test_a_required_topic_that_the_brokers_do_not_know_yet_is_waited_for(
    settings: KafkaConfig, topics: list[str], unique: str
) -> None:
    """What is open in it can't be seen: that is not nothing."""
    admin = TopicAdmin(settings)
    assert admin.open_parts(topics, 0) == []
    with pytest.raises(UnreachableError, match=f"topic {topics[0]} is not known to the brokers"):
        admin.open_parts(topics, 0, topics)
    admin.create(TopicConfig(prefix=unique), {"table": topics[:3], "state": topics[3:]})
    assert admin.open_parts(topics, 0, topics) == []


def test_a_topic_that_exists_already_is_no_error(settings: KafkaConfig, topics: list[str], unique: str) -> None:
    admin = TopicAdmin(settings)
    for _ in range(2):
        admin.create(TopicConfig(prefix=unique), {"table": topics[:1], "state": topics[3:4]})
    admin._creation.create(
        [WantedTopic(topics[0], "table", TopicConfig(prefix=unique))]
    )  # as if another process had been faster
    assert admin.check(topics).keys() == {topics[0], topics[3]}


def lag_and_retention(settings: KafkaConfig, topic: str) -> tuple[str, str]:
    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    (found,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    values = found.result(10)
    return values["min.compaction.lag.ms"].value, values["delete.retention.ms"].value


def test_control_is_kept_as_long_as_rows(settings: KafkaConfig, topics: list[str], unique: str) -> None:
    """Sweeps have numbers of the rows' series: whoever counts them needs both."""
    TopicAdmin(settings).create(TopicConfig(prefix=unique), {"table": topics[:1], "control": topics[3:4]})
    rows = lag_and_retention(settings, topics[0])
    assert rows == ("86400000", "604800000")
    assert lag_and_retention(settings, topics[3]) == rows


def test_a_topic_that_is_not_compacted_is_refused(settings: KafkaConfig, topics: list[str]) -> None:
    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    client.create_topics([NewTopic(topics[0], 1, config={"cleanup.policy": "compact,delete"})])[topics[0]].result(10)
    eventually(lambda: topics[0] in client.list_topics(timeout=10).topics)
    with pytest.raises(BrokerError, match=rf"topic {topics[0]} exists with cleanup.policy=compact,delete") as refused:
        TopicAdmin(settings).check(topics)
    assert f"cleanup.policy=compact on {topics[0]}" in refused.value.hint


def test_a_topic_for_records_without_keys_is_not_compacted(
    settings: KafkaConfig, topics: list[str], unique: str
) -> None:
    TopicAdmin(settings, {topics[0]}).create(TopicConfig(prefix=unique, partitions=3), {"table": topics[:2]})
    found = TopicAdmin(settings, {topics[0]}).check(topics)
    assert [(found[name].cleanup_policy, found[name].partition_count) for name in topics[:2]] == [
        ("delete", 1),
        ("compact", 3),
    ]
    with pytest.raises(
        BrokerError, match=rf"topic {topics[1]} exists with cleanup.policy=compact: it takes no records"
    ):
        TopicAdmin(settings, {topics[1]}).check(topics[1:])


def test_a_log_in_several_partitions_is_refused(settings: KafkaConfig, topics: list[str]) -> None:
    """Its records have no key, so over several they would have no order."""
    create_topic(settings.bootstrap_servers, topics[0], "delete", partitions=2)
    with pytest.raises(BrokerError, match=rf"topic {topics[0]} exists with 2 partitions"):
        TopicAdmin(settings, {topics[0]}).check_single([], [topics[0]])


def test_topics_that_differ_in_dots_and_underscores_only_are_one_to_the_brokers(
    settings: KafkaConfig, topics: list[str], unique: str
) -> None:
    """Why a configuration with two such tables is refused."""
    admin, other = TopicAdmin(settings), topics[0].replace("public.", "public_")
    admin.create(TopicConfig(prefix=unique), {"table": topics[:1]})
    with pytest.raises(BrokerError, match="collides with existing topic") as refused:
        admin.create(TopicConfig(prefix=unique), {"table": [other]})
    assert refused.value.hint == "choose another topics.prefix"


# ---- a compacted topic, read to its end


@pytest.fixture
def topic(settings: KafkaConfig, topics: list[str], unique: str) -> str:
    TopicAdmin(settings).create(TopicConfig(prefix=unique), {"state": topics[3:4]})
    return topics[3]


def producer(settings: KafkaConfig, unique: str) -> Producer:
    made = Producer({"bootstrap.servers": settings.bootstrap_servers, "transactional.id": unique})
    made.init_transactions(30)
    return made


def write(made: Producer, topic: str, *records: tuple[str, str | None]) -> None:
    """In a transaction, which stays open."""
    made.begin_transaction()
    for key, value in records:
        made.produce(topic, value, key)
    made.flush(30)


def test_the_last_committed_value_of_each_key_counts(settings: KafkaConfig, topic: str, unique: str) -> None:
    made = producer(settings, unique)
    write(made, topic, ("a", "1"), ("b", "1"), ("c", "1"))
    made.commit_transaction(30)
    write(made, topic, ("a", "2"), ("b", None))
    made.commit_transaction(30)
    assert read_latest(settings, topic) == {"a": b"2", "c": b"1"}


def test_what_was_aborted_does_not_count_though_it_is_the_end(settings: KafkaConfig, topic: str, unique: str) -> None:
    made = producer(settings, unique)
    write(made, topic, ("a", "1"))
    made.abort_transaction(30)
    assert read_latest(settings, topic) == {}
    write(made, topic, ("a", "2"))
    made.commit_transaction(30)
    write(made, topic, ("a", "3"))
    made.abort_transaction(30)
    assert read_latest(settings, topic) == {"a": b"2"}


def test_what_a_killed_producer_left_open_is_neither_waited_for_nor_read(
    settings: KafkaConfig, topic: str, unique: str
) -> None:
    made = producer(settings, unique)
    write(made, topic, ("a", "1"))
    made.commit_transaction(30)
    write(made, topic, ("a", "2"))
    began = time.monotonic()
    assert read_latest(settings, topic) == {"a": b"1"}
    assert time.monotonic() - began < 5
    made.abort_transaction(30)


def test_more_records_than_one_batch_are_read(settings: KafkaConfig, topic: str, unique: str) -> None:
    made = producer(settings, unique)
    write(made, topic, *((str(number % 100), str(number)) for number in range(12_000)))
    made.commit_transaction(30)
    assert read_latest(settings, topic) == {str(n % 100): str(n).encode() for n in range(11_900, 12_000)}


def test_a_topic_that_does_not_exist_holds_nothing(settings: KafkaConfig, unique: str) -> None:
    assert read_latest(settings, f"{unique}.never") == {}
