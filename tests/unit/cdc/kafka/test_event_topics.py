"""Topics of events are opened when they are first met."""

import pytest

from cdc.config.settings import KafkaConfig, TopicConfig
from cdc.kafka import event_topics
from cdc.kafka.client import MESSAGE_BYTES_MAX
from cdc.kafka.event_topics import EventTopicCreator
from cdc.kafka.topic_admin import TopicDescription
from cdc.model.errors import BrokerError
from cdc.model.topic_record import EventDestination, TopicRecord

SMALL = 1000


class Admin:
    """Topics with three partitions; `c…` are compacted, `x…` may not be created, `s…` and `d…` are small."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def open_event_topic(self, name: str, config: TopicConfig) -> TopicDescription:  # noqa: ARG002
        self.asked.append(name)
        if name.startswith("x"):
            raise BrokerError(f"can't create topic {name}")
        policy = "compact" if name.startswith("c") else "delete"
        return TopicDescription(name, "id", 3, policy, SMALL if name[0] in "sd" else MESSAGE_BYTES_MAX)


def record(topic: str, partition: int | None = None, *, has_key: bool = True, size: int = 1) -> TopicRecord:
    def refused(reason: str) -> TopicRecord:
        letter = TopicRecord("dead", b"", reason.encode() + b" " + b"v" * size)
        return letter._replace(destination=EventDestination(None, 0, False, refused, cut))

    def cut(bytes_max: int) -> TopicRecord:
        return TopicRecord("dead", b"", b"cut to %d" % bytes_max)

    return TopicRecord(topic, b"k", b"v" * size, (), EventDestination(partition, 0, has_key, refused))


def topics(admin: Admin) -> EventTopicCreator:
    return EventTopicCreator(admin, TopicConfig(prefix="p"), KafkaConfig(bootstrap_servers="b"))  # type: ignore[arg-type]


def test_a_topic_is_opened_once() -> None:
    admin = Admin()
    made = topics(admin)
    for event in (record("a"), record("b"), record("a", 2)):
        assert made.accepted(event, lambda: None) is event
    assert admin.asked == ["a", "b"]


def test_each_is_told_of_once_in_state() -> None:
    made = topics(Admin())
    for event in (record("a"), record("b"), record("a", 2)):
        made.accepted(event, lambda: None)
    assert made.unrecorded() == [
        TopicRecord("p.state", b"event-topic/a", b'{"topic":"a"}'),
        TopicRecord("p.state", b"event-topic/b", b'{"topic":"b"}'),
    ]
    made.accepted(record("a"), lambda: None)
    assert made.unrecorded() == []


def test_what_a_topic_can_not_take_is_refused_with_the_reason() -> None:
    made = topics(Admin())
    assert b"no partition 3" in (made.accepted(record("a", 3), lambda: None).value or b"")
    assert b"without a key" in (made.accepted(record("c", has_key=False), lambda: None).value or b"")
    assert made.accepted(record("c"), lambda: None).topic == "c"


def test_a_record_that_is_larger_than_its_topic_takes_is_a_dead_letter() -> None:
    admin = Admin()
    made = topics(admin)
    assert made.accepted(record("s", size=SMALL // 2), lambda: None).topic == "s"
    # 128 bytes are for what goes beside key and value.
    letter = made.accepted(record("s", size=SMALL - 100), lambda: None)
    assert (letter.topic, letter.value) == ("dead", b"cut to 1000")
    assert made.accepted(record("a", size=SMALL * 2), lambda: None).topic == "a"
    assert made.record_bytes_max == {"s": SMALL, "dead": SMALL, "a": MESSAGE_BYTES_MAX}


def test_a_dead_letter_is_as_it_is_where_it_fits_and_its_topic_is_opened() -> None:
    admin = Admin()
    made = topics(admin)
    assert made.accepted(record("a", 3), lambda: None).value == b"topic a has no partition 3 v"
    destination = record("a").destination
    assert destination is not None
    letter = destination.refused("rejected before")
    assert made.accepted(letter, lambda: None) is letter
    assert admin.asked == ["a", "dead"]


def test_mistakes_in_names_do_not_make_topics_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_topics, "EVENT_TOPICS_MAX", 2)
    made = topics(Admin())
    came = [made.accepted(record(name), lambda: None).topic for name in ("a", "b", "c", "a")]
    assert came == ["a", "b", "dead", "a"]


def test_a_refusal_of_the_brokers_is_told() -> None:
    with pytest.raises(BrokerError, match="can't create topic x"):
        topics(Admin()).accepted(record("x"), lambda: None)
