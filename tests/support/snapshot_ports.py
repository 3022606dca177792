"""Fakes of the ports of snapshots, with scripted answers; and the wiring of a capture that reads no existing rows."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from cdc.capture.toast_backfill import ToastBackfill
from cdc.config.settings import SnapshotConfig
from cdc.formats.records import EnvelopeContext
from cdc.model.events import TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import Relation
from cdc.pgoutput.relations import relation_differs
from cdc.ports.chunk_reader import Answer, Request, TopicRequest
from cdc.ports.row_reader import FoundRows, RowsRequest, Unreadable
from cdc.ports.stream import Clock, Signal, WhileWaiting
from cdc.snapshots.chunk_engine import SnapshotEngine
from cdc.snapshots.chunk_records import RowRecords
from cdc.snapshots.sweeps import Sweeps
from cdc.tables.schema_tracking import stop


@dataclass
class ScriptedReader:
    """Notes what it is asked; answers what the test puts there."""

    asked: list[Request | TopicRequest] = field(default_factory=list)
    coming: list[Answer] = field(default_factory=list)

    def ask(self, request: Request | TopicRequest) -> None:
        self.asked.append(request)

    def answers(self) -> list[Answer]:
        came, self.coming = self.coming, []
        return came


@dataclass
class ScriptedSignals:
    coming: list[Signal] = field(default_factory=list)

    def poll(self) -> list[Signal]:
        came, self.coming = self.coming, []
        return came


@dataclass
class ScriptedRows:
    """cdc.ports.row_reader.RowReader. Answers come in order; then nothing is answered."""

    asked: list[RowsRequest] = field(default_factory=list)
    coming: list[FoundRows | Unreadable | None] = field(default_factory=list)

    def read(self, wanted: RowsRequest, bytes_max: int, while_waiting: WhileWaiting) -> FoundRows | Unreadable | None:
        assert bytes_max > 0
        while_waiting()
        self.asked.append(wanted)
        return self.coming.pop(0) if self.coming else None


class UnfollowedTables:
    """cdc.capture.assembler.SchemaListener. A table that is altered stops."""

    def follow(self, schema: TableSchema, relation: Relation) -> tuple[TableSchema, list[TopicRecord]]:
        raise stop(schema.table, relation_differs(schema, relation) or "")

    def described(self, oid: int, schema: TableSchema | None) -> list[TopicRecord]:
        assert oid or schema is None
        return []

    def watermark(self, content: bytes) -> None:
        pass

    def end(self) -> tuple[list[TopicRecord], list[TableSchema]]:
        return [], []


def no_backfill(clock: Clock) -> ToastBackfill:
    """For streams without holes."""

    def pause(_: float) -> None:
        raise AssertionError("nothing is to be filled")

    return ToastBackfill(ScriptedRows(), lambda _: [], clock, pause)


def engine_of(schemas: Iterable[TableSchema], context: EnvelopeContext) -> SnapshotEngine:
    """With no table's snapshot to do."""
    return SnapshotEngine(
        schemas=schemas,
        row_records=RowRecords(context),
        sweeps=Sweeps(Topics(context.prefix), context.epoch, {}),
        limits=SnapshotConfig(),
    )
