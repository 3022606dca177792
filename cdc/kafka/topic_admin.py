"""Describes, checks, creates, watches and deletes the topics that capture publishes to."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from cdc.config.settings import KafkaConfig, TopicConfig
from cdc.config.topic_settings import TopicKind
from cdc.kafka.client import (
    ANSWER_S_MAX,
    MESSAGE_BYTES_MAX,
    NEXT_REACHABLE,
    client_settings,
    kafka_error,
    new_client,
    translated,
)
from cdc.kafka.topic_creation import TopicCreation, WantedTopic
from cdc.model.control import OpenPart, TopicState
from cdc.model.errors import BrokerError, ConnectionLost, UnreachableError, WatershedError
from cdc.model.topics import DELETES_KEPT_S

log = structlog.get_logger(__name__)

PROMPT_S = 1.0  # for a caller that can't wait
READY_S_MAX = 30.0
_POLL_S = 0.05
_DESCRIBED = ("cleanup.policy", "max.message.bytes", "min.insync.replicas", "delete.retention.ms")


@dataclass(frozen=True, slots=True)
class Trial:
    """What the brokers say of a topic that does not exist."""

    name: str
    kind: TopicKind
    settings: Mapping[str, str]  # that it would get
    refused: Mapping[str, str]  # settings that it would not get → the brokers' answer
    error: WatershedError | None  # why it can't be created


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the brokers describe it."""

    name: str
    topic_id: str
    partition_count: int
    cleanup_policy: str
    record_bytes_max: int = MESSAGE_BYTES_MAX  # before compression, as clients count it
    replica_count: int = 1  # of the partition that has the fewest
    in_sync_min: int = 1  # replicas that must be in sync before a record is accepted
    deletes_kept_s: float = DELETES_KEPT_S


def record_limits(kafka: KafkaConfig, topics: Iterable[TopicDescription]) -> dict[str, int]:
    """Returns the largest record for each topic: the lower limit of topic and client."""
    ours = int(client_settings(kafka, **{"message.max.bytes": MESSAGE_BYTES_MAX})["message.max.bytes"])
    return {topic.name: min(ours, topic.record_bytes_max) for topic in topics}


class TopicAdmin:
    """Admin calls. Unless noted, each raises BrokerError or UnreachableError if the brokers refuse or do not answer."""

    def __init__(self, kafka: KafkaConfig, keyless: Collection[str] = ()) -> None:
        """`keyless`: names of topics whose records have no key."""
        self._keyless = keyless
        # Topics of events with a limit below the batch size; kept over sessions
        self.event_bytes_max: dict[str, int] = {}
        self._admin = new_client(AdminClient, client_settings(kafka, **{"socket.timeout.ms": 10_000}))
        self._servers = kafka.bootstrap_servers
        self._creation = TopicCreation(self._admin)

    def broker_count(self) -> int:
        with translated(f"no broker answers at {self._servers}", client=self._admin):
            return len(self._admin.list_topics(timeout=ANSWER_S_MAX).brokers)

    def broker_settings(self) -> dict[str, str]:
        """Returns the settings of one of the brokers."""
        with translated("can't read the brokers' settings", "grant DescribeConfigs on the cluster"):
            broker = min(self._admin.list_topics(timeout=ANSWER_S_MAX).brokers)
            asked = [ConfigResource(ResourceType.BROKER, str(broker))]
            (future,) = self._admin.describe_configs(asked, request_timeout=ANSWER_S_MAX).values()
            return {name: str(entry.value) for name, entry in future.result(ANSWER_S_MAX).items()}

    def describe(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Returns the descriptions of those topics that exist."""
        found = {}
        with translated("can't describe topics", client=self._admin):
            existing = self._admin.list_topics(timeout=ANSWER_S_MAX).topics
            wanted = [name for name in names if name in existing]
            if not wanted:
                return {}
            described = self._admin.describe_topics(TopicCollection(wanted), request_timeout=ANSWER_S_MAX)
            settings = self._admin.describe_configs(
                [ConfigResource(ResourceType.TOPIC, name) for name in wanted], request_timeout=ANSWER_S_MAX
            )
            values = {resource.name: future.result(ANSWER_S_MAX) for resource, future in settings.items()}
            for name, future in described.items():
                topic = future.result(ANSWER_S_MAX)
                policy, size, in_sync, deletes = (values[name][setting].value for setting in _DESCRIBED)
                replicas = min((len(partition.replicas) for partition in topic.partitions), default=0)
                count, identity = len(topic.partitions), str(topic.topic_id)
                found[name] = TopicDescription(
                    name, identity, count, policy, int(size), replicas, int(in_sync), int(deletes) / 1000
                )
        return found

    def check(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Returns the same as `describe`. Raises BrokerError for a topic that is not compacted, or that is compacted
        and has records without a key."""
        found = self.describe(names)
        for topic in found.values():
            if (problem := self.unusable(topic)) is not None:
                raise problem
        return found

    def unusable(self, topic: TopicDescription) -> BrokerError | None:
        """Returns why the topic can't hold the records that are meant for it, or None if it can."""
        if topic.name in self._keyless:
            if "compact" in topic.cleanup_policy:
                return BrokerError(
                    f"topic {topic.name} exists with cleanup.policy={topic.cleanup_policy}: it takes no records "
                    "without a key",
                    "undo the change of source.key_columns, if the topic has rows with keys, or choose another "
                    f"topics.prefix; a new topic takes them with cleanup.policy=delete on {topic.name}",
                )
        elif topic.cleanup_policy != "compact":
            return BrokerError(
                f"topic {topic.name} exists with cleanup.policy={topic.cleanup_policy}, not compact: its oldest "
                "rows would be deleted",
                "choose another topics.prefix, if another program uses the topic; otherwise set "
                f"cleanup.policy=compact on {topic.name}",
            )
        return None

    def check_single(self, compacted: Iterable[str], others: Iterable[str]) -> None:
        """Checks topics that must have one partition: capture reads its own topics from the first one, and records
        without a key have no order over several. Raises BrokerError for topics that have more, and for `compacted` that
        are not."""
        for topic in [*self.check(compacted).values(), *self.describe(others).values()]:
            if topic.partition_count != 1:
                raise BrokerError(
                    f"topic {topic.name} exists with {topic.partition_count} partitions, but capture requires one",
                    f"choose another topics.prefix: {topic.name} may be another program's; only if it was created by "
                    "hand for this prefix and has no records, delete it: capture creates it with one partition",
                )

    def create(self, config: TopicConfig, names: Mapping[TopicKind, Iterable[str]]) -> None:
        """Creates those topics that do not exist, and returns when they can be used. `names`: by kind; a table in
        `keyless` is of kind `log`."""
        wanted = self._missing(config, names)
        if not wanted:
            return
        with translated("can't create topics", client=self._admin):
            errors = self._creation.create(wanted)
        for error in errors.values():
            raise error
        self._await_leaders([topic.name for topic in wanted])

    def try_creation(self, config: TopicConfig, names: Mapping[TopicKind, Iterable[str]]) -> list[Trial]:
        """Asks the brokers whether they would create those topics that do not exist; creates none."""
        wanted = self._missing(config, names)
        with translated("can't ask whether topics can be created", client=self._admin):
            errors = self._creation.create(wanted, only_validates=True)
        return [
            Trial(topic.name, topic.kind, topic.settings, topic.refused, errors.get(topic.name)) for topic in wanted
        ]

    def _missing(self, config: TopicConfig, names: Mapping[TopicKind, Iterable[str]]) -> list[WantedTopic]:
        asked: dict[str, TopicKind] = {name: kind for kind, of_kind in names.items() for name in of_kind}
        if not asked:
            return []
        with translated("can't list topics", client=self._admin):
            existing = self._admin.list_topics(timeout=ANSWER_S_MAX).topics
        return [
            # One partition keeps the order of records without a key.
            WantedTopic(name, "log" if kind == "table" and name in self._keyless else kind, config)
            for name, kind in asked.items()
            if name not in existing
        ]

    def delete(self, names: Iterable[str]) -> int:
        """Deletes those topics that exist, with their contents. Returns their number."""
        with translated("can't delete topics", "grant Delete on the prefix's topics"):
            existing = self._admin.list_topics(timeout=ANSWER_S_MAX).topics
            found = [name for name in dict.fromkeys(names) if name in existing]
            deleted = self._admin.delete_topics(found, operation_timeout=ANSWER_S_MAX) if found else {}
            for future in deleted.values():
                future.result(ANSWER_S_MAX * 2)
        return len(found)

    def open_event_topic(self, name: str, config: TopicConfig) -> TopicDescription:
        """Returns the topic of events, which is created if it does not exist: not compacted, with the brokers' default
        retention. Others may create it at the same time."""
        self.create(config, {"event": [name]})
        found = self.describe([name]).get(name)
        if found is None:
            raise UnreachableError(f"Kafka: topic {name} is not known to the brokers", NEXT_REACHABLE)
        return found

    def _await_leaders(self, names: Sequence[str]) -> None:
        """Waits for the leaders of new topics. The controller answers a creation before the brokers know the topic:
        their next list may lack it, and a leader refuses requests until it has taken over."""
        deadline = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline:
            try:
                found = self.describe(names)
                if len(found) == len(names):
                    self.request_end_offsets({name: topic.partition_count for name, topic in found.items()}).wait()
                    return
            except (ConnectionLost, UnreachableError):
                pass
            time.sleep(_POLL_S)
        raise UnreachableError(f"Kafka: the new topics have no leaders after {READY_S_MAX:.0f} s", NEXT_REACHABLE)

    def request_descriptions(self, names: Sequence[str]) -> Mapping[str, "Future[Any]"]:
        """Requests the descriptions of topics; does not wait."""
        return self._admin.describe_topics(TopicCollection(list(names)), request_timeout=ANSWER_S_MAX)

    def are_replicated(self, names: Collection[str]) -> bool:
        """Returns whether brokers answer and each partition of the topics has more than one replica in sync."""
        try:
            topics = self._admin.list_topics(timeout=PROMPT_S).topics
        except KafkaException:
            return False
        found = [partition for name in names if name in topics for partition in topics[name].partitions.values()]
        return all(len(partition.isrs) > 1 for partition in found)

    def open_parts(self, names: Collection[str], settles_s: float, required: Collection[str] = ()) -> list[OpenPart]:
        """Returns the partitions of those topics that exist where records below the present high watermark are still
        not decided after `settles_s` seconds. Raises BrokerError, UnreachableError, ConnectionLost, also if brokers
        that just started do not know all yet: a `required` topic is missing, or one has no partition."""
        with translated("can't list topics", client=self._admin):
            topics = self._admin.list_topics(timeout=ANSWER_S_MAX).topics
        counts = {name: len(topics[name].partitions) for name in names if name in topics}
        for name in (*required, *counts):
            if not counts.get(name):
                raise UnreachableError(f"Kafka: topic {name} is not known to the brokers", NEXT_REACHABLE)
        ends = self.request_end_offsets(counts).wait()
        deadline = time.monotonic() + settles_s
        while True:
            stable = self.request_end_offsets(counts, IsolationLevel.READ_COMMITTED).wait()
            found = [
                OpenPart(topic=topic, partition=partition, start=stable[topic][partition], end=end)
                for topic, offsets in ends.items()
                for partition, end in enumerate(offsets)
                if stable[topic][partition] < end
            ]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(_POLL_S)

    def states(self, topics: Iterable[TopicDescription]) -> dict[str, TopicState]:
        """Returns id, ends and beginnings of these topics, as they are now. The beginning of a topic that is not
        compacted is left out: retention moves it. Raises ConnectionLost."""
        described = {topic.name: topic for topic in topics}
        counts = {topic.name: topic.partition_count for topic in described.values()}
        requested = self.request_end_offsets(counts), self.request_end_offsets(counts, of_start=True)
        ends, starts = (request.wait() for request in requested)
        return {
            name: TopicState(
                topic_id=topic.topic_id,
                end_offsets=tuple(ends[name]),
                start_offsets=tuple(starts[name]) if topic.cleanup_policy == "compact" else (),
            )
            for name, topic in described.items()
        }

    def request_end_offsets(
        self,
        partition_counts: Mapping[str, int],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        *,
        of_start: bool = False,
    ) -> "EndOffsets":
        """Requests the high watermarks, or with `read_committed` the last stable offsets; does not wait. `of_start`:
        the offsets at which partitions begin."""
        spec = OffsetSpec.earliest() if of_start else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {
            TopicPartition(topic, partition): spec
            for topic, count in partition_counts.items()
            for partition in range(count)
        }
        return EndOffsets(
            self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=ANSWER_S_MAX) if asked else {}
        )

    def request_ends_of(self, topics: Iterable[TopicDescription]) -> "EndOffsets":
        """Requests the high watermarks of these topics; does not wait. If a topic has been recreated or repartitioned,
        the result raises ConnectionLost: a record may be in a partition of which no offset was requested."""
        expected = {topic.name: topic for topic in topics}
        answers = self.request_descriptions(list(expected)) if expected else {}
        ends = self.request_end_offsets({name: topic.partition_count for name, topic in expected.items()})
        return EndOffsets(ends.futures, [(expected[name], answer) for name, answer in answers.items()])


class EndOffsets:
    """A request for end offsets that is in progress (cdc.ports.stream.EndOffsetsRequest)."""

    def __init__(
        self,
        futures: Mapping[TopicPartition, "Future[Any]"],
        descriptions: Sequence[tuple[TopicDescription, "Future[Any]"]] = (),
    ) -> None:
        """`descriptions`: what each topic must be, and the answer that says what it is."""
        self.futures = futures
        self._descriptions = descriptions

    def result(self) -> dict[str, Sequence[int]] | None:
        """Returns topic → offset of each partition, None while an answer is missing. Raises ConnectionLost."""
        if not all(future.done() for future in (*self.futures.values(), *(answer for _, answer in self._descriptions))):
            return None
        return self.wait()

    def wait(self) -> dict[str, Sequence[int]]:
        """Returns the same, and waits for the brokers."""
        offsets: dict[str, list[int]] = {}
        try:
            for then, answer in self._descriptions:
                _require_same(then, answer.result(ANSWER_S_MAX))
            for partition in sorted(self.futures, key=lambda p: (p.topic, p.partition)):
                offsets.setdefault(partition.topic, []).append(self.futures[partition].result(ANSWER_S_MAX).offset)
        except (KafkaException, TimeoutError) as exception:
            raise ConnectionLost(f"Kafka did not return end offsets: {exception}") from exception
        for topic, numbers in offsets.items():
            if min(numbers) < 0:
                # A partition whose leader has just gone is answered with neither error nor offset. Every reader would
                # take that for reached.
                raise ConnectionLost(f"Kafka did not return end offsets: a partition of {topic} has no leader")
        return {topic: tuple(numbers) for topic, numbers in offsets.items()}


class TopicWatch:
    """Checks while streaming, without waiting, that the topics are those that the position was written to: compares the
    answers to its last requests when it is called, and requests them again.

    A topic that was deleted and recreated takes new records as if nothing had happened, and new partitions move keys.
    """

    def __init__(
        self, admin: TopicAdmin, expected: Mapping[str, TopicDescription], then: Mapping[str, TopicState]
    ) -> None:
        """`then`: what the position says of the topics."""
        self._admin = admin
        self._expected = expected
        self._began = {name: state.start_offsets for name, state in then.items() if state.start_offsets}
        self._asked: Mapping[str, Future[Any]] = {}
        self._starts = EndOffsets({})

    def __call__(self) -> None:
        """Raises ConnectionLost if a topic is unknown, was recreated or repartitioned, or if its beginning moved: then
        a new session examines it."""
        if all(future.done() for future in self._asked.values()):
            for name, future in self._asked.items():
                self._compare(self._expected[name], future)
            self._asked = self._admin.request_descriptions(list(self._expected)) if self._expected else {}
        try:
            starts = self._starts.result()
        except ConnectionLost as error:
            log.debug("topics' beginnings not known", error=error.message)
            starts = {}
        if starts is not None:
            if moved := [name for name, offsets in starts.items() if tuple(offsets) != self._began[name]]:
                raise ConnectionLost(f"Kafka: records were deleted from topic {moved[0]}")
            counts = {name: len(offsets) for name, offsets in self._began.items()}
            self._starts = self._admin.request_end_offsets(counts, of_start=True)

    def _compare(self, then: TopicDescription, answer: "Future[Any]") -> None:
        try:
            now = answer.result(0)
        except KafkaException as exception:
            error = kafka_error(exception)
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise ConnectionLost(f"Kafka: topic {then.name} is not known to the brokers") from exception
            log.debug("topics not described", error=error.str())  # the producer will meet the error, with details
            return
        _require_same(then, now)


def _require_same(then: TopicDescription, now: Any) -> None:
    """Raises ConnectionLost if the topic was recreated or repartitioned. `now`: as brokers describe it."""
    if str(now.topic_id) != then.topic_id or len(now.partitions) != then.partition_count:
        raise ConnectionLost(f"Kafka: topic {then.name} was recreated or repartitioned")
