"""Creates topics with settings that not every broker accepts.

Brokers answer for a topic as a whole: a policy, or a managed service, refuses one of its settings and names it, or does
not. A setting of ours for which the brokers' default will do is then left out, and a warning names topic and setting.
Settings that readers depend on, and what the configuration asks for, are never left out: the topic is not created.
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from cdc.config.settings import TopicConfig
from cdc.config.topic_settings import KIND, TopicKind
from cdc.kafka.client import ANSWER_S_MAX, broker_error, kafka_error
from cdc.model.errors import WatershedError

log = structlog.get_logger(__name__)

BROKERS_DEFAULT: Final = -1  # in a request: as many replicas as the brokers' default.replication.factor

_EXISTS: Final = KafkaError.TOPIC_ALREADY_EXISTS
# Answers that may concern a single setting.
_OF_SETTINGS: Final = {KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION, KafkaError.INVALID_REQUEST}
_NO_RIGHT: Final = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


@dataclass(slots=True)
class WantedTopic:
    """A topic to be created."""

    name: str
    kind: TopicKind
    config: TopicConfig
    refused: dict[str, str] = field(default_factory=dict)  # settings that are left out → the brokers' answer

    @property
    def partitions(self) -> int:
        return self.config.partitions if KIND[self.kind].has_partitions else 1

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, value in self.config.config.of(self.kind).items() if name not in self.refused}

    @property
    def optional(self) -> list[str]:
        """Settings that may still be left out."""
        may_be = self.config.config.may_be_left_out(self.kind)
        return [name for name in self.settings if name in may_be]

    def request(self, left_out: Sequence[str] = ()) -> NewTopic:
        settings = {name: value for name, value in self.settings.items() if name not in left_out}
        return NewTopic(self.name, self.partitions, self.config.replication_factor or BROKERS_DEFAULT, config=settings)

    @property
    def command(self) -> str:
        """Returns the command that creates the topic."""
        factor = self.config.replication_factor
        words = [
            "kafka-topics.sh --bootstrap-server … --create",
            f"--topic {self.name}",
            f"--partitions {self.partitions}",
        ]
        words += [f"--replication-factor {factor}"] if factor else []
        return " ".join([*words, *(f"--config {name}={value}" for name, value in self.settings.items())])


class TopicCreation:
    """Creates topics through one client."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def create(self, wanted: Sequence[WantedTopic], *, only_validates: bool = False) -> dict[str, WatershedError]:
        """Creates the topics, or with `only_validates` asks the brokers whether they would. A topic that exists is no
        error. Returns the errors by topic; what was left out is in `Wanted.refused`."""
        errors: dict[str, WatershedError] = {}
        waiting = list(wanted)
        while waiting:
            again = []
            answers = self._ask({topic.name: topic.request() for topic in waiting}, only_validates=only_validates)
            for topic in waiting:
                refusal = _refusal(answers[topic.name])
                if refusal is None:
                    continue
                error = kafka_error(refusal)
                left_out = self._to_leave_out(topic, error) if error.code() in _OF_SETTINGS else []
                if left_out:
                    topic.refused |= dict.fromkeys(left_out, error.str())
                    again.append(topic)
                else:
                    errors[topic.name] = _failed(topic, refusal)
            waiting = again
        for topic in () if only_validates else wanted:
            for setting, answer in topic.refused.items() if topic.name not in errors else ():
                log.warning(
                    "the brokers refuse a setting of a new topic, which has their default",
                    topic=topic.name,
                    setting=setting,
                    answer=answer,
                    next=f"topics.config.{topic.kind}: {{{setting}: null}}, or a value that they accept",
                )
        return errors

    def _to_leave_out(self, topic: WantedTopic, error: KafkaError) -> list[str]:
        """Returns the settings without which the brokers may accept the topic; none if leaving out does not help."""
        optional = topic.optional
        named = [name for name in topic.settings if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", error.str())]
        if named:
            return [name for name in named if name in optional] if all(name in optional for name in named) else []
        if not optional or not self._would_accept(topic, optional):
            return []
        kept: list[str] = []  # one by one: the answer does not say which
        for name in optional:
            if self._would_accept(topic, [other for other in optional if other not in (*kept, name)]):
                kept.append(name)
        return [name for name in optional if name not in kept]

    def _would_accept(self, topic: WantedTopic, left_out: Sequence[str]) -> bool:
        (answer,) = self._ask({topic.name: topic.request(left_out)}, only_validates=True).values()
        return _refusal(answer) is None

    def _ask(self, requests: Mapping[str, NewTopic], *, only_validates: bool) -> "Mapping[str, Future[Any]]":
        return self._admin.create_topics(
            list(requests.values()), operation_timeout=ANSWER_S_MAX, validate_only=only_validates
        )


def _refusal(answer: "Future[Any]") -> KafkaException | None:
    """Waits for the answer. Returns None if the topic was created, or exists."""
    try:
        answer.result(ANSWER_S_MAX * 2)
    except KafkaException as exception:
        return None if kafka_error(exception).code() == _EXISTS else exception
    return None


def _failed(topic: WantedTopic, refusal: KafkaException) -> WatershedError:
    failure = broker_error(f"can't create topic {topic.name}", refusal, _hint(topic, kafka_error(refusal)))
    failure.__cause__ = refusal
    return failure


def _hint(topic: WantedTopic, error: KafkaError) -> str:
    match error.code():
        case KafkaError.INVALID_REPLICATION_FACTOR:
            return "set topics.replication_factor to at most the number of brokers"
        case KafkaError.TOPIC_EXCEPTION:  # the name collides with another topic's
            return "choose another topics.prefix"
        case code if code in _NO_RIGHT:
            return f"grant Create on topics with the prefix {topic.config.prefix}., or create it: {topic.command}"
        case code if code in _OF_SETTINGS:
            return (
                f"set what the brokers accept in topics.config.{topic.kind} (null: their default), "
                "topics.replication_factor or topics.partitions; docs/how-to/managed-kafka.md says what depends on it"
            )
        case _:
            return f"grant Create, or create it: {topic.command}"
