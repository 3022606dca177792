"""Loads the events of the outbox's topics into an event log, each once, in the order of their partitions.

The offsets are in the base, and move in the transaction that writes the events: a job that is killed at any moment
goes on behind the last event that the log has.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

import structlog

from cdc.config.config_file import Config
from cdc.config.event_logs import EventForm, event_form
from cdc.config.settings import KafkaConfig
from cdc.kafka.topic_reader import OutOfRangeError, PartitionId, TopicReader
from cdc.model.errors import BrokerError, UnreachableError, WatershedError
from cdc.model.findings import Finding
from sinks.errors import RefusedError, SinkError
from watershed.views.event_log_base import EventBatch, EventLogBase, Loaded, Rejected, base_of_log, behind
from watershed.views.event_log_rows import EventRow, MalformedError, event_row
from watershed.views.event_records import (
    Bounds,
    EventRecord,
    EventTopicReader,
    TopicIdentity,
    event_reader,
    event_record,
)
from watershed.views.states import ViewState
from watershed.views.supervisor import Supervisor

log = structlog.get_logger(__name__)

RECORDS_PER_BATCH: Final = 1_000
READ_S: Final = 1.0  # for which an idle job waits for a record
WAIT_S: Final = 0.5


class EventLogLoader:
    """One event log, loaded by this object alone: its connection to the base has the log's lock."""

    def __init__(
        self, name: str, form: EventForm, base: EventLogBase, topics: EventTopicReader, reader: TopicReader
    ) -> None:
        self._name = name
        self._form = form
        self._base = base
        self._topics = topics
        self._reader = reader
        self._identities: Mapping[str, TopicIdentity] = {}
        self._loaded: dict[PartitionId, Loaded] = {}
        self._goal: Mapping[PartitionId, int] = {}  # offsets with which the log is filled

    def close(self) -> None:
        self._reader.close()

    def start(self) -> None:
        """Compares topics and offsets, and begins to read behind the last event of the log. Raises RefusedError if the
        log would miss events."""
        is_new = self._base.create(self._name)
        state = self._base.state(self._name)
        for topic, policy in self._topics.cleanup_policies().items():
            if "compact" in policy:
                raise compacted(topic, policy)
        identities = self._topics.identities()
        bounds = self._topics.bounds(identities)
        loaded = self._base.offsets(self._name)
        if state is not None and state.state == "rebuild":
            same = {(topic, identity.topic_id) for topic, identity in identities.items()}
            starts = {place: bounds[place].start for place, one in loaded.items() if (place[0], one.topic_id) in same}
            self._base.reload(self._name, starts)
            loaded = {}
            log.info("event log is being loaded again", event_log=self._name)
        new = beginnings(loaded, identities, bounds)
        require_continuity(self._name, self._topics.names, loaded | new, identities, bounds)
        self._base.begin(self._name, new)
        self._identities, self._loaded = identities, loaded | new
        self._reader.assign({place: self._loaded[place].next for place in bounds})
        self._goal = {place: one.end for place, one in bounds.items()}
        if is_new or state is None or state.state == "failed":
            self._base.note(self._name, ViewState("", "filling", 1, 1, []))

    def step(self) -> bool:
        """Loads the available records, and waits for at most a second. Returns whether more may be available."""
        state = self._base.state(self._name)
        if state is None or state.state not in ("filling", "serving"):
            self.start()
            return True
        try:
            records = [event_record(message) for message in self._reader.arrivals(READ_S, RECORDS_PER_BATCH)]
        except (BrokerError, UnreachableError) as error:
            self.start()  # it says why, if events are gone
            if isinstance(error, OutOfRangeError):
                return True
            raise
        positions = self._reader.positions
        moved = {
            place: one._replace(next=positions[place])
            for place, one in self._loaded.items()
            if positions.get(place, 0) > one.next
        }
        if self._topics.identities() != self._identities:  # the records may be of a topic that was created since
            self.start()
            return True
        if moved:
            rejected = self._base.load(self._name, EventBatch(*self._rows(records), moved))
            self._loaded |= moved
            self._report(rejected)
        if state.state == "filling" and all(self._loaded[place].next >= end for place, end in self._goal.items()):
            self._base.note_filled(self._name)
            log.info("event log is loaded", event_log=self._name)
        return True

    def wait(self) -> None:
        """Does nothing: `step` has waited for records."""

    def _rows(self, records: Sequence[EventRecord]) -> tuple[list[tuple[EventRow, EventRecord]], list[Rejected]]:
        rows, rejected = [], []
        for record in records:
            try:
                rows.append((event_row(record, self._form), record))
            except MalformedError as error:
                rejected.append(Rejected(record, str(error)))
        return rows, rejected

    def _report(self, rejected: Sequence[Rejected]) -> None:
        for (topic, partition, offset, *_), reason in rejected:
            log.warning(
                "record rejected", event_log=self._name, topic=topic, partition=partition, offset=offset, reason=reason
            )


class EventLogSupervisor(Supervisor[EventLogBase]):
    """Keeps one event log until the process is to end."""

    def __init__(self, settings: Config, name: str) -> None:
        super().__init__("event log", name, partial(open_log_base, settings, name))
        self._settings = settings
        self._section = settings.event_logs[name]

    def _open_job(self, base: EventLogBase) -> EventLogLoader:
        form, kafka = event_form(self._section, self._settings.outbox), self._settings.kafka
        topics = EventTopicReader(kafka, self._section.topics)
        return EventLogLoader(self._name, form, base, topics, event_reader(kafka))


def open_log_base(settings: Config, name: str) -> EventLogBase:
    """Connects to the base of this log. Raises SinkError."""
    return EventLogBase(base_of_log(settings, name), settings.topics.prefix)


def beginnings(
    loaded: Mapping[PartitionId, Loaded], identities: Mapping[str, TopicIdentity], bounds: Mapping[PartitionId, Bounds]
) -> dict[PartitionId, Loaded]:
    """Returns from where partitions are loaded that have no offset yet: those of a new topic from what it still has,
    those that were added to a topic from their first record."""
    followed = {topic for topic, _ in loaded}
    return {
        place: Loaded(identities[place[0]].topic_id, 0 if place[0] in followed else one.start)
        for place, one in bounds.items()
        if place not in loaded
    }


def require_continuity(
    name: str,
    topics: Sequence[str],
    loaded: Mapping[PartitionId, Loaded],
    identities: Mapping[str, TopicIdentity],
    bounds: Mapping[PartitionId, Bounds],
) -> None:
    """Raises RefusedError if one of the topics had events that the log has not loaded and that may be gone, SinkError
    if the topic itself is gone."""
    for (topic, partition), one in loaded.items():
        if topic not in topics:  # it was taken out of the configuration
            continue
        if topic not in identities:
            raise SinkError(
                f"event log {name}: topic {topic}, from which it holds events, does not exist",
                "find out who deleted it; the log keeps its events, and stops if the topic is created again",
            )
        where = f"event log {name}: topic {topic}, partition {partition}"
        again = f"cdc view rebuild {name}, then cdc view run {name}"
        if identities[topic].topic_id != one.topic_id:
            raise RefusedError(
                f"event log {name}: topic {topic} was deleted and created again; its events from offset "
                f"{one.next} of partition {partition} on are not in the log",
                f"copy the log's table if you need the former topic's events: {again} loads the events of the new "
                "topic, and deletes those of the former one from the log",
            )
        start, end = bounds[topic, partition]
        if one.next < start:
            raise RefusedError(
                f"{where}: the log has events up to offset {one.next}, but the topic begins at offset {start}: "
                "the events in between were deleted before they were loaded",
                f"give the topic a longer retention; {again}: the log keeps its events and continues at offset {start}",
            )
        if one.next > end:
            raise RefusedError(
                f"{where}: the log has events up to offset {one.next}, but the topic ends at offset {end}: the brokers "
                "have lost records",
                f"{again}: from offset {start} on, the log then holds what the topic holds",
            )


def wait_for_log(settings: Config, name: str, should_end: Callable[[], bool]) -> None:
    """Returns when the log has every event that its topics have now. Raises SinkError if it has stopped, or if it is
    not there yet and the wait should end."""
    topics = EventTopicReader(settings.kafka, settings.event_logs[name].topics)
    bounds = topics.bounds(topics.identities())
    with open_log_base(settings, name) as base:
        while count := behind(base.offsets(name), bounds):
            counts = base.log_counts(name)
            if counts is not None and counts.state == "failed":
                raise SinkError(f"event log {name} has stopped: {counts.error}", counts.next or "")
            if should_end():
                raise SinkError(
                    f"event log {name} is {count} records behind its topics", f"cdc view run {name} loads it"
                )
            base.wait(WAIT_S)


def log_findings(settings: Config, name: str) -> Iterator[Finding]:
    """Yields what `cdc view check` finds about a log; changes nothing."""
    section, about = settings.event_logs[name], f"event log {name}"
    try:
        with open_log_base(settings, name) as base:
            if not base.can_create():
                hint = "grant CREATE on the database, or on this schema, to the role of the base's sink"
                yield Finding(about, "fail", f"the role may not create tables in schema {base.schema}", hint)
            loaded = base.offsets(name) if base.counts(name) else {}
        topics = EventTopicReader(settings.kafka, section.topics)
        identities = topics.identities()
        bounds = topics.bounds(identities)
        for topic in section.topics:
            yield from _topic_findings(about, topic, topics.cleanup_policies().get(topic), loaded, bounds)
        require_continuity(name, section.topics, loaded, identities, bounds)
        yield from _form_findings(about, settings.kafka, event_form(section, settings.outbox), bounds)
    except WatershedError as error:
        yield Finding.failed(about, error)


def _topic_findings(
    about: str,
    topic: str,
    policy: str | None,
    loaded: Mapping[PartitionId, Loaded],
    bounds: Mapping[PartitionId, Bounds],
) -> Iterator[Finding]:
    if policy is None:
        hint = "nothing to do if no such event was written yet; otherwise correct topics"
        yield Finding(about, "warn", f"topic {topic} does not exist; capture creates it with its first event", hint)
        return
    if "compact" in policy:
        yield Finding.failed(about, compacted(topic, policy))
        return
    yield Finding(about, "ok", f"topic {topic} is read")
    for (other, partition), one in bounds.items():
        if other == topic and one.start > 0 and (topic, partition) not in loaded:
            what = (
                f"topic {topic}, partition {partition} begins at offset {one.start}: the log will lack earlier events"
            )
            yield Finding(about, "warn", what, f"set retention.ms=-1 on {topic}, so that no more events are deleted")


def _form_findings(
    about: str, kafka: KafkaConfig, form: EventForm, bounds: Mapping[PartitionId, Bounds]
) -> Iterator[Finding]:
    """Reads a record, which shows the rights and the form."""
    with closing(event_reader(kafka)) as reader:
        reader.assign({place: one.start for place, one in bounds.items() if one.end > one.start})
        try:
            for message in reader.poll(READ_S)[:1]:
                event_row(event_record(message), form)
        except MalformedError as error:
            hint = "name topics that the outbox writes, and the writer in option outbox; other records are rejected"
            yield Finding(about, "warn", f"its first record is not an event in the form of the outbox: {error}", hint)


def compacted(topic: str, policy: str) -> RefusedError:
    return RefusedError(
        f"topic {topic} has cleanup.policy={policy}: later events of an aggregate would delete earlier ones",
        f"set cleanup.policy=delete on {topic}",
    )
