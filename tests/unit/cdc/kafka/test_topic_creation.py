"""What becomes of a topic of which brokers refuse a setting."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from cdc.config.settings import TopicConfig
from cdc.kafka.topic_creation import TopicCreation, WantedTopic

Answer = Callable[[Mapping[str, str]], tuple[int, str] | None]  # settings → code and words of a refusal


class Brokers:
    """Answers as an admin client does, for each topic by its settings."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.created: dict[str, NewTopic] = {}

    def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        operation_timeout: float,  # noqa: ARG002
        validate_only: bool,
    ) -> dict[str, "Future[None]"]:
        answers: dict[str, Future[None]] = {}
        for topic in topics:
            future: Future[None] = Future()
            answers[topic.topic] = future
            refusal = self._answer(topic.config or {})
            if refusal is not None:
                future.set_exception(KafkaException(KafkaError(*refusal)))
                continue
            future.set_result(None)
            if not validate_only:
                self.created[topic.topic] = topic
        return answers


def refuses(*settings: str, words: str = "Setting {0} can't be set", code: int = KafkaError.POLICY_VIOLATION) -> Answer:
    def answer(given: Mapping[str, str]) -> tuple[int, str] | None:
        found = [name for name in settings if name in given]
        return (code, words.format(*found)) if found else None

    return answer


def wanted(kind: Any = "state", **config: Any) -> WantedTopic:
    return WantedTopic(f"p.{kind}", kind, TopicConfig.model_validate({"prefix": "p", "config": config}))


def create(answer: Answer, topic: WantedTopic, **how: bool) -> tuple[Brokers, dict[str, Any]]:
    brokers: Any = Brokers(answer)
    return brokers, TopicCreation(brokers).create([topic], **how)


@pytest.mark.parametrize("words", ["Setting {0} can't be set", "The policy forbids it"])
def test_a_refused_setting_is_left_to_the_brokers_and_named(words: str) -> None:
    """Whether the answer names the setting or not."""
    with structlog.testing.capture_logs() as logs:
        brokers, errors = create(refuses("segment.ms", "segment.bytes", words=words), wanted())
    assert errors == {}
    assert brokers.created["p.state"].config == {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.2",
        "max.message.bytes": "8388608",
    }
    assert sorted((entry["log_level"], entry["topic"], entry["setting"]) for entry in logs) == [
        ("warning", "p.state", "segment.bytes"),
        ("warning", "p.state", "segment.ms"),
    ]
    assert all(entry["next"].startswith(f"topics.config.state: {{{entry['setting']}: null}}") for entry in logs)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("state", "cleanup.policy"),
        ("signals", "cleanup.policy"),
        ("table", "delete.retention.ms"),
        ("table", "min.compaction.lag.ms"),
        ("control", "delete.retention.ms"),
    ],
)
@pytest.mark.parametrize("words", ["Setting {0} can't be set", "The policy forbids it"])
def test_a_setting_that_readers_depend_on_is_not_left_out(kind: str, setting: str, words: str) -> None:
    brokers, errors = create(refuses(setting, words=words), wanted(kind))
    assert brokers.created == {}
    (error,) = errors.values()
    assert words.format(setting) in error.message
    assert f"topics.config.{kind}" in error.hint


def test_what_the_configuration_asks_for_is_not_left_out() -> None:
    """A mistyped name would otherwise be a warning that nobody reads."""
    unknown = refuses("segment.mss", words="Unknown topic config name: {0}", code=KafkaError.INVALID_CONFIG)
    brokers, errors = create(unknown, wanted(state={"segment.mss": 1}))
    assert (brokers.created, "segment.mss" in errors["p.state"].message) == ({}, True)


def test_null_is_the_brokers_default_also_of_a_setting_that_readers_depend_on() -> None:
    settings = {"delete.retention.ms": None, "min.compaction.lag.ms": None}
    brokers, errors = create(refuses("delete.retention.ms", "min.compaction.lag.ms"), wanted("table", table=settings))
    assert errors == {}
    assert brokers.created["p.table"].config == {"cleanup.policy": "compact", "max.message.bytes": "8388608"}


def test_asking_creates_nothing_and_is_no_warning() -> None:
    topic = wanted()
    with structlog.testing.capture_logs() as logs:
        brokers, errors = create(refuses("segment.ms"), topic, only_validates=True)
    assert (brokers.created, errors, logs) == ({}, {}, [])
    assert topic.refused == {"segment.ms": "Setting segment.ms can't be set"}


def test_a_topic_that_exists_is_no_error() -> None:
    assert create(lambda _: (KafkaError.TOPIC_ALREADY_EXISTS, "it exists"), wanted())[1] == {}


def test_without_the_right_the_error_has_the_command() -> None:
    _, errors = create(lambda _: (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."), wanted("signals"))
    assert errors["p.signals"].hint == (
        "grant Create on topics with the prefix p., or create it: kafka-topics.sh --bootstrap-server … --create "
        "--topic p.signals --partitions 1 --config cleanup.policy=delete --config retention.ms=604800000"
    )


def test_one_topics_trouble_is_not_that_of_others() -> None:
    brokers: Any = Brokers(refuses("cleanup.policy.of.nobody", "retention.ms"))
    topics = [wanted("state"), wanted("signals"), wanted("log", log={"retention.ms": 5})]
    errors = TopicCreation(brokers).create(topics)
    assert brokers.created.keys() == {"p.state", "p.signals"}
    assert errors.keys() == {"p.log"}


def test_replicas_are_the_brokers_choice_unless_configured() -> None:
    brokers, _ = create(lambda _: None, wanted())
    assert brokers.created["p.state"].replication_factor == -1
    config = TopicConfig(prefix="p", replication_factor=3)
    assert WantedTopic("p.state", "state", config).request().replication_factor == 3
