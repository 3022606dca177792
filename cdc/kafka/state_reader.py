"""Reads the present contents of the state and control topics."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from cdc.config.settings import Config
from cdc.formats.unpublishable import UNPUBLISHED_KEY, UnpublishedRecord
from cdc.kafka.compacted import read_latest
from cdc.model.control import (
    POSITION_KEY,
    PROGRESS_KEY,
    SIGNAL_KEY,
    SIGNALS_KEY,
    TOMBSTONES_KEY,
    IncompleteRowsRecord,
    PositionRecord,
    ProgressRecord,
    Record,
    SchemaRecord,
    SignalAnswer,
    SignalsRecord,
    SinkRecord,
    SnapshotRecord,
    SweepRecord,
    TombstonesRecord,
)
from cdc.model.errors import GapError
from cdc.model.events import TableId, TableSchema, unpack_version
from cdc.model.kafka_transactions import EVENT_TOPIC_KEY, HANGING_KEY, EventTopicRecord, HangingTransactionRecord
from cdc.model.lost_events import LOST_KEY, LostEventsRecord
from cdc.model.table_state import TABLE_KEY, TableRecord
from cdc.model.topics import Topics

T = TypeVar("T", bound=Record)


@dataclass(frozen=True, slots=True)
class State:
    """The contents of the state topic."""

    position: PositionRecord | None
    snapshots: tuple[SnapshotRecord, ...]
    holes: tuple[IncompleteRowsRecord, ...]
    signals_offset: int  # signals with lower offsets have had their effect
    tombstones: dict[TableId, int]  # table → floor below which tombstones are written
    tables: dict[TableId, TableRecord]
    unpublished: tuple[UnpublishedRecord, ...] = ()
    lost: tuple[LostEventsRecord, ...] = ()
    hanging: HangingTransactionRecord | None = None
    event_topics: tuple[str, ...] = ()  # topics of events that capture has written to


@dataclass(frozen=True, slots=True)
class Captured:
    """The control topic's records of tables and signals."""

    schemas: dict[TableId, TableSchema]  # the newest schema of each table that was ever captured
    floors: dict[TableId, int]  # floor of each table's last sweep
    answers: dict[str, int]  # signal id → when it was answered, µs since 1970


def read_state(config: Config) -> State:
    """Returns the state. Raises GapError for a damaged position record, BrokerError."""
    topic = Topics(config.topics.prefix).state
    values = read_latest(config.kafka, topic)
    value, signals, hanging = (values.get(key) for key in (POSITION_KEY, SIGNALS_KEY, HANGING_KEY))

    def of(kind: type[T], prefix: str) -> tuple[T, ...]:
        return records_of(kind, prefix, topic, values)

    return State(
        position=None if value is None else PositionRecord.open(value, f"{topic}, key {POSITION_KEY}"),
        snapshots=of(SnapshotRecord, "snapshot/"),
        tombstones={record.table: record.floor for record in of(TombstonesRecord, TOMBSTONES_KEY)},
        holes=of(IncompleteRowsRecord, "holes/"),
        tables={record.table: record for record in of(TableRecord, TABLE_KEY)},
        unpublished=of(UnpublishedRecord, UNPUBLISHED_KEY),
        lost=of(LostEventsRecord, LOST_KEY),
        hanging=None if hanging is None else HangingTransactionRecord.decode(hanging, f"{topic}, key {HANGING_KEY}"),
        event_topics=tuple(record.topic for record in of(EventTopicRecord, EVENT_TOPIC_KEY)),
        signals_offset=0 if signals is None else SignalsRecord.decode(signals, f"{topic}, key {SIGNALS_KEY}").offset,
    )


def read_position(config: Config) -> PositionRecord | None:
    """Returns the last committed position record; None if there is none. Raises GapError for a damaged one."""
    return read_state(config).position


def read_captured(config: Config) -> Captured:
    """Returns the captured tables. Raises BrokerError."""
    topic = Topics(config.topics.prefix).control
    schemas: dict[TableId, TableSchema] = {}
    floors: dict[TableId, int] = {}
    answers: dict[str, int] = {}
    for key, value in read_latest(config.kafka, topic).items():
        where = f"{topic}, key {key}"
        if key.startswith("schema/"):
            schema = SchemaRecord.decode(value, where).table_schema_of()
            if schema.table not in schemas or schemas[schema.table].version < schema.version:
                schemas[schema.table] = schema
        elif key.startswith("sweep/"):
            sweep = SweepRecord.decode(value, where)
            floors[sweep.table] = sweep.floor
        elif key.startswith(SIGNAL_KEY):
            answers[key.removeprefix(SIGNAL_KEY)] = SignalAnswer.decode(value, where).answered_us
    return Captured(schemas, floors, answers)


def read_lost_events(config: Config) -> list[LostEventsRecord]:
    """Returns the records of lost events by epoch, even if the position is damaged. Raises BrokerError,
    UnreachableError."""
    topic = Topics(config.topics.prefix).state
    records = records_of(LostEventsRecord, LOST_KEY, topic, read_latest(config.kafka, topic))
    return sorted(records, key=lambda record: (record.epoch, record.table))


def read_progress(config: Config) -> ProgressRecord | None:
    """Returns the last progress record. Raises BrokerError, UnreachableError."""
    topic = Topics(config.topics.prefix).progress
    value = read_latest(config.kafka, topic).get(PROGRESS_KEY)
    return None if value is None else ProgressRecord.decode(value, f"{topic}, key {PROGRESS_KEY}")


def highest_epoch(config: Config) -> int:
    """Returns the highest epoch in the state, control and progress topics; 0 if there is none."""
    topics = Topics(config.topics.prefix)
    epochs = [0]
    with suppress(GapError):  # a damaged position does not count
        position = read_position(config)
        epochs.append(0 if position is None else position.epoch)
    epochs += [unpack_version(floor)[0] for floor in read_captured(config).floors.values()]
    for key, value in read_latest(config.kafka, topics.progress).items():
        where = f"{topics.progress}, key {key}"
        if key == PROGRESS_KEY:
            epochs.append(ProgressRecord.decode(value, where).epoch)
        elif key.startswith("sink/"):
            epochs.append(SinkRecord.decode(value, where).epoch)
    return max(epochs)


def records_of(kind: type[T], prefix: str, topic: str, values: Mapping[str, bytes]) -> tuple[T, ...]:
    """Returns the records whose keys begin with `prefix`. Raises WatershedError for a damaged one."""
    return tuple(
        kind.decode(value, f"topic {topic}, key {key}") for key, value in values.items() if key.startswith(prefix)
    )
