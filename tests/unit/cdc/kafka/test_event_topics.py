"""Topics of events are opened when they are first met."""

from collections.abc import Mapping

import pytest

from cdc.config import TopicConfig
from cdc.errors import BrokerError
from cdc.kafka import event_topics
from cdc.kafka.event_topics import EventTopics
from cdc.kafka.topics import TopicDescription
from cdc.ports import Place, TopicRecord


class Admin:
    """Topics with three partitions; `c…` are compacted, `x…` may not be created."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def open_event_topic(self, name: str, config: TopicConfig) -> Mapping[str, TopicDescription]:  # noqa: ARG002
        self.asked.append(name)
        if name.startswith("x"):
            raise BrokerError(f"can't create topic {name}")
        return {name: TopicDescription(name, "id", 3, "compact" if name.startswith("c") else "delete")}


def record(topic: str, partition: int | None = None, *, has_key: bool = True) -> TopicRecord:
    def refused(reason: str) -> TopicRecord:
        return TopicRecord("dead", b"", reason.encode())

    return TopicRecord(topic, b"k", b"v", (), Place(partition, 0, has_key, refused))


def topics(admin: Admin) -> EventTopics:
    return EventTopics(admin, TopicConfig(prefix="p"))  # type: ignore[arg-type]


def test_a_topic_is_opened_once() -> None:
    admin = Admin()
    made = topics(admin)
    for event in (record("a"), record("b"), record("a", 2)):
        assert made.accepted(event, lambda: None) is event
    assert admin.asked == ["a", "b"]


def test_what_a_topic_can_not_take_is_refused_with_the_reason() -> None:
    made = topics(Admin())
    assert b"no partition 3" in (made.accepted(record("a", 3), lambda: None).value or b"")
    assert b"without a key" in (made.accepted(record("c", has_key=False), lambda: None).value or b"")
    assert made.accepted(record("c"), lambda: None).topic == "c"


def test_mistakes_in_names_do_not_make_topics_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_topics, "EVENT_TOPICS_MAX", 2)
    made = topics(Admin())
    came = [made.accepted(record(name), lambda: None).topic for name in ("a", "b", "c", "a")]
    assert came == ["a", "b", "dead", "a"]


def test_a_refusal_of_the_brokers_is_told() -> None:
    with pytest.raises(BrokerError, match="can't create topic x"):
        topics(Admin()).accepted(record("x"), lambda: None)
