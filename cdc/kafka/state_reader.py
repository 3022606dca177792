"""Reads the present contents of the state, control and progress topics."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from cdc.config.settings import KafkaConfig, PipelineConfig
from cdc.kafka.compacted import read_latest
from cdc.kafka.topic_reader import open_reader
from cdc.model.control import (
    EncodingRecord,
    EventTopicRecord,
    HangingTransactionRecord,
    IncompleteRowsRecord,
    PositionRecord,
    ProgressRecord,
    Record,
    SchemaRecord,
    SignalAnswer,
    SignalsRecord,
    SnapshotRecord,
    SweepRecord,
    TombstonesRecord,
    UnpublishedRecord,
)
from cdc.model.errors import GapError
from cdc.model.events import TableId, TableSchema, unpack_version
from cdc.model.lost_events import LostEventsRecord
from cdc.model.sink_records import SinkRecord
from cdc.model.table_state import SelectionRecord, TableRecord
from cdc.model.topics import Topics, prefixes_of

T = TypeVar("T", bound=Record)
C = TypeVar("C", bound=PipelineConfig)


@dataclass(frozen=True, slots=True)
class StoredState:
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
    selection: SelectionRecord | None = None
    event_topics: tuple[str, ...] = ()  # topics of events that capture has written to


@dataclass(frozen=True, slots=True)
class Captured:
    """The control topic's records of tables and signals."""

    schemas: dict[TableId, TableSchema]  # the newest schema of each table that was ever captured
    floors: dict[TableId, int]  # floor of each table's last sweep
    answers: dict[str, int]  # signal id → when it was answered, µs since 1970


def read_prefixes(kafka: KafkaConfig) -> tuple[str, ...]:
    """Returns the prefixes whose topics exist. Raises UnreachableError, BrokerError."""
    with open_reader(kafka) as reader:
        return prefixes_of(reader.topics())


def read_state(config: PipelineConfig) -> StoredState:
    """Returns the state. Raises GapError for a damaged position record, BrokerError."""
    topic = Topics(config.topics.prefix).state
    values = read_latest(config.kafka, topic)
    signals = record_of(SignalsRecord, SignalsRecord.KEY, topic, values)

    def of(kind: type[T]) -> tuple[T, ...]:
        return records_of(kind, topic, values)

    return StoredState(
        position=position_of(topic, values),
        snapshots=of(SnapshotRecord),
        tombstones={record.table: record.floor for record in of(TombstonesRecord)},
        holes=of(IncompleteRowsRecord),
        tables={record.table: record for record in of(TableRecord)},
        unpublished=of(UnpublishedRecord),
        lost=of(LostEventsRecord),
        hanging=record_of(HangingTransactionRecord, HangingTransactionRecord.KEY, topic, values),
        selection=record_of(SelectionRecord, SelectionRecord.KEY, topic, values),
        event_topics=tuple(record.topic for record in of(EventTopicRecord)),
        signals_offset=0 if signals is None else signals.offset,
    )


def read_position(config: PipelineConfig) -> PositionRecord | None:
    """Returns the last committed position record; None if there is none. Raises GapError for a damaged one."""
    return read_state(config).position


def read_tables(config: PipelineConfig) -> dict[TableId, TableRecord]:
    """Returns the records of the tables, even if the position is damaged. Raises BrokerError."""
    topic = Topics(config.topics.prefix).state
    return {record.table: record for record in records_of(TableRecord, topic, read_latest(config.kafka, topic))}


def read_encodings(config: PipelineConfig) -> dict[TableId, EncodingRecord]:
    """Returns the encodings of tables' topics, without those in JSON, even if the position is damaged. Raises
    BrokerError."""
    topic = Topics(config.topics.prefix).state
    return {record.table: record for record in records_of(EncodingRecord, topic, read_latest(config.kafka, topic))}


def read_in_force(config: C) -> C:
    """Returns the configuration with the tables that its patterns take. Raises BrokerError, UnreachableError."""
    return config.in_force(read_selection(config)) if config.source.choice.patterns else config


def read_selection(config: PipelineConfig) -> SelectionRecord | None:
    """Returns the tables of the configuration in force, even if the position is damaged. Raises BrokerError."""
    topic = Topics(config.topics.prefix).state
    return record_of(SelectionRecord, SelectionRecord.KEY, topic, read_latest(config.kafka, topic))


def read_captured(config: PipelineConfig) -> Captured:
    """Returns the captured tables. Raises BrokerError."""
    topic = Topics(config.topics.prefix).control
    values = read_latest(config.kafka, topic)
    schemas = [record.table_schema_of() for record in records_of(SchemaRecord, topic, values)]
    answers = {
        key.removeprefix(SignalAnswer.KEY): SignalAnswer.decode(value, f"topic {topic}, key {key}").answered_us
        for key, value in values.items()
        if key.startswith(SignalAnswer.KEY)
    }
    return Captured(
        schemas={schema.table: schema for schema in sorted(schemas, key=lambda schema: schema.version)},
        floors={sweep.table: sweep.floor for sweep in records_of(SweepRecord, topic, values)},
        answers=answers,
    )


def read_versions(kafka: KafkaConfig, prefix: str, table: TableId) -> list[TableSchema]:
    """Returns the versions of a table's schema, in any order. Raises BrokerError, UnreachableError."""
    topic = Topics(prefix).control
    records = records_of(SchemaRecord, topic, read_latest(kafka, topic))
    return [record.table_schema_of() for record in records if record.table == table]


def read_lost_events(config: PipelineConfig) -> list[LostEventsRecord]:
    """Returns the records of lost events by epoch, even if the position is damaged. Raises BrokerError,
    UnreachableError."""
    topic = Topics(config.topics.prefix).state
    records = records_of(LostEventsRecord, topic, read_latest(config.kafka, topic))
    return sorted(records, key=lambda record: (record.epoch, record.table))


def read_progress(config: PipelineConfig) -> ProgressRecord | None:
    """Returns the last progress record. Raises BrokerError, UnreachableError."""
    topic = Topics(config.topics.prefix).progress
    return record_of(ProgressRecord, ProgressRecord.KEY, topic, read_latest(config.kafka, topic))


def read_sinks(config: PipelineConfig) -> tuple[SinkRecord, ...]:
    """Returns the positions of all generations of all sinks. Raises BrokerError, UnreachableError."""
    topic = Topics(config.topics.prefix).progress
    return records_of(SinkRecord, topic, read_latest(config.kafka, topic))


def highest_epoch(config: PipelineConfig) -> int:
    """Returns the highest epoch in the state, control and progress topics; 0 if there is none."""
    topics = Topics(config.topics.prefix)
    epochs = [0]
    with suppress(GapError):  # a damaged position does not count
        position = read_position(config)
        epochs.append(0 if position is None else position.epoch)
    epochs += [unpack_version(floor)[0] for floor in read_captured(config).floors.values()]
    progress = topics.progress, read_latest(config.kafka, topics.progress)
    published = record_of(ProgressRecord, ProgressRecord.KEY, *progress)
    epochs += [0 if published is None else published.epoch]
    epochs += [record.epoch for record in records_of(SinkRecord, *progress)]
    return max(epochs)


def position_of(topic: str, values: Mapping[str, bytes]) -> PositionRecord | None:
    """Returns the position in the state topic. Raises GapError for a damaged one."""
    value = values.get(PositionRecord.KEY)
    return None if value is None else PositionRecord.open(value, f"topic {topic}, key {PositionRecord.KEY}")


def record_of(kind: type[T], key: str, topic: str, values: Mapping[str, bytes]) -> T | None:
    """Returns the record of this key. Raises WatershedError for a damaged one."""
    value = values.get(key)
    return None if value is None else kind.decode(value, f"topic {topic}, key {key}")


def records_of(kind: type[T], topic: str, values: Mapping[str, bytes]) -> tuple[T, ...]:
    """Returns the records of this kind. Raises WatershedError for a damaged one."""
    return tuple(
        kind.decode(value, f"topic {topic}, key {key}") for key, value in values.items() if key.startswith(kind.KEY)
    )
