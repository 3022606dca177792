"""Reads a range of a table's topic in a task, and makes rows of its records."""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from confluent_kafka import Message
from pyspark.sql.datasource import InputPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.client import NEXT_REACHABLE
from cdc.kafka.record_decoding import DamagedRecordError, RecordReader, record_reader
from cdc.model.errors import UnknownIdError, UnreachableError
from cdc.model.events import unpack_version
from cdc.model.lsn import format_lsn
from sinks.contract import Change
from sinks.errors import SinkError
from sinks.records import RecordCoordinates, UnknownSchemaError, ordinary_change, read_record
from sinks.schema_history import SchemaHistory
from spark_jobs.source.errors import CompactedError, SchemaChangedError, TopicChangedError
from spark_jobs.source.reading import Partition, PartitionReader
from spark_jobs.source.rows import DecodedRecord
from spark_jobs.source.topic_ends import TopicEnds

# Without a record. Brokers end the transaction of a capture that died after 120 s, and nothing is readable before.
READ_S_MAX: Final = 150.0
_WAIT_S: Final = 0.2
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_BEGINNING: Final = (0, 0)
_GROUP: Final = "watershed-source"
NEXT_AFTER_ANOTHER_TOPIC: Final = (
    "start the query with a new checkpoint, and what it has written: offsets of the former topic mean nothing here"
)


@dataclass(frozen=True)
class TopicRange(InputPartition):
    """A part of one partition, for a task."""

    kafka: KafkaConfig
    schema_history: SchemaHistory
    topic_id: str
    number: int
    begin: int  # where the partition begins
    start: int  # offset of the first record
    end: int  # offset after the last one
    after: tuple[int, int] = _BEGINNING  # only changes after this (epoch, LSN)
    until: tuple[int, int] | None = None  # and up to this one; None: all
    floor: int = 0  # of the table's present rows: those of lower versions were swept
    intact_ms: int = 0  # records before this time may have been compacted, ms since 1970; 0: that does not matter
    may_be_incomplete: bool = False

    @property
    def topic(self) -> str:
        return self.schema_history.newest.topic


@dataclass(frozen=True)
class Sweep(InputPartition):
    """Says that rows of lower versions are gone, by TRUNCATE or because a snapshot did not find them."""

    schema_history: SchemaHistory
    floor: int
    as_of_lsn: int


class _Source(msgspec.Struct, gc=False):
    commit_lsn: int | None = None


class _Envelope(msgspec.Struct, gc=False):
    source: _Source


_read_lsn: Final = msgspec.json.Decoder(_Envelope).decode


def pieces(part: TopicRange) -> Iterator[list[Message]]:
    """Yields the committed records of a range in order, some at a time, and the record before it, if there is one.
    Raises TopicChangedError, UnreachableError, BrokerError."""
    if part.start >= part.end:
        return
    partition = Partition(part.topic, part.number)
    with closing(PartitionReader(part.kafka, _GROUP)) as reader:
        reader.seek({partition: max(part.begin, part.start - 1)})
        reached, deadline = part.start, time.monotonic() + READ_S_MAX
        while reached < part.end:
            piece = reader.read(_WAIT_S, _BYTES_AT_ONCE)
            if partition in piece.lost:
                raise TopicChangedError(piece.lost[partition], NEXT_AFTER_ANOTHER_TOPIC)
            if records := [record for record in piece.records if (record.offset() or 0) < part.end]:
                yield records
            if (position := piece.positions.get(partition, 0)) > reached:
                reached, deadline = position, time.monotonic() + READ_S_MAX
            elif time.monotonic() > deadline:
                raise UnreachableError(
                    f"Kafka: topic {part.topic}, partition {part.number} could not be read up to offset {part.end}: "
                    f"nothing arrived for {READ_S_MAX:.0f} s",
                    NEXT_REACHABLE,
                )
    _require_same_topic(part)


def _require_same_topic(part: TopicRange) -> None:
    """A topic that was created again while it was read may have records at the same offsets."""
    ends = TopicEnds(part.kafka)
    ends.set_topics([part.topic])
    found = ends.ask().get(part.topic)
    if found is None or found.topic_id != part.topic_id:
        what = "was deleted" if found is None else "was created again"
        raise TopicChangedError(f"topic {part.topic} {what} while it was read", NEXT_AFTER_ANOTHER_TOPIC)


def read_row(message: Message, schema_history: SchemaHistory, reader: RecordReader) -> DecodedRecord:
    """Returns the record's row; a tombstone's operation is d. Raises SchemaChangedError for a newer schema than the
    schema history has; SinkError for a record that capture did not write, or whose schema the registry does not have;
    UnreachableError, ConfigError."""
    topic, partition, offset = schema_history.newest.topic, message.partition() or 0, message.offset() or 0
    where, content = RecordCoordinates(topic, partition, offset), message.value()
    try:
        key, value = reader.plain(message.key()), reader.plain(content)
    except (UnknownIdError, DamagedRecordError) as error:
        raise SinkError(f"record at {where} can not be read: {error.message}", error.hint) from error
    change = ordinary_change(schema_history.newest, key, value) if value is content else None
    change = change or _read(schema_history, where, key, value, message.headers())
    lsn = None if value is None else _read_lsn(value).source.commit_lsn
    at_us = change.origin.at_us if change.origin else message.timestamp()[1] * 1000
    operation = "d" if change.origin is None else change.origin.operation
    return DecodedRecord(change, operation, lsn, at_us, (key or b"").decode(), partition, offset)


def _read(
    schema_history: SchemaHistory, where: RecordCoordinates, key: bytes | None, value: bytes | None, headers: Any
) -> Change:
    try:
        return read_record({where.topic: schema_history}, *where, key, value, headers if value is None else None)
    except UnknownSchemaError as error:
        raise SchemaChangedError(
            f"the schema of table {schema_history.newest.table} has changed: {error.message}",
            "restart the query from its checkpoint: nothing of this record was passed on, and the new query has the "
            "table's present columns",
        ) from error


def is_unknown(row: DecodedRecord) -> bool:
    """Says whether a row moved to this key, and is not known yet: capture publishes it again, whole."""
    return row.change.row is None and row.operation != "d"


class ChangeRows:
    """Makes rows of the changes in a range, piece by piece. A delete and its tombstone are one change; a tombstone
    whose delete was compacted is one too."""

    def __init__(self, part: TopicRange) -> None:
        self._part = part
        self._reader = record_reader(part.kafka)
        self._deleted: tuple[str, int] | None = None  # key and version of the last delete
        self._position: tuple[int, int] | None = None  # of the last record that has one
        self._has_old = False  # records that may have been compacted
        self._is_proven = not part.intact_ms or part.after == _BEGINNING
        self._is_empty = True

    def of(self, messages: Iterable[Message]) -> list[DecodedRecord]:
        """Returns the rows of the next piece. Raises what `read_row` raises, CompactedError."""
        return [
            row
            for message in messages
            if self._is_wanted(row := read_row(message, self._part.schema_history, self._reader), message)
        ]

    def finish(self) -> None:
        """Raises CompactedError if changes after the starting position may be missing. Compaction leaves records alone
        for a time; nothing is missing if one of these is from before the position."""
        if self._has_old and not self._is_proven and not self._is_empty:
            raise self._compacted()

    def _compacted(self) -> CompactedError:
        part = self._part
        return CompactedError(
            f"topic {part.topic}, partition {part.number}: changes after {format_lsn(part.after[1])} may have been "
            "removed by compaction, which leaves the newest change of each key",
            "choose a later startingPosition, or option compacted=allow for the changes that are left",
        )

    def _is_wanted(self, row: DecodedRecord, message: Message) -> bool:
        part, name = self._part, (row.key, row.change.version)
        is_repeated = row.commit_lsn is None and name == self._deleted
        if row.operation == "d":
            self._deleted = name
        if row.commit_lsn is not None:
            self._position = unpack_version(row.change.version)[0], row.commit_lsn
        position = self._position
        is_within = position is None or (part.after < position and (part.until is None or position <= part.until))
        self._judge(message.timestamp()[1] < part.intact_ms, is_within, position)
        return is_within and row.offset >= part.start and not is_repeated and not is_unknown(row)

    def _judge(self, is_old: bool, is_within: bool, position: tuple[int, int] | None) -> None:
        self._has_old |= is_old
        self._is_empty &= not is_within
        if not is_old and position is not None and position <= self._part.after:
            self._is_proven = True
        if is_old and is_within and not self._is_proven:
            raise self._compacted()
