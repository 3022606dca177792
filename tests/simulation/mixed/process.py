"""A process of capture in a simulated run of the mixture. What runs is the real thing; only the wiring of
`cdc/daemon/streaming_session.py` is told again here, on fakes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.capture.assembler import Assembler
from cdc.capture.kafka_transaction import PositionConstants, Publisher
from cdc.capture.loop import Capture, LoopSchedule, Pipeline
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.capture.toast_backfill import ToastBackfill
from cdc.config.outbox_settings import OutboxMessages, OutboxTable
from cdc.formats.records import EnvelopeContext
from cdc.formats.unpublishable import Unpublishable
from cdc.model.control import (
    IncompleteRowsRecord,
    PositionRecord,
    SchemaRecord,
    SignalsRecord,
    SnapshotRecord,
    SourceIdentity,
    SweepRecord,
    UnpublishedRecord,
)
from cdc.model.events import TableSchema
from cdc.model.table_state import TableRecord
from cdc.model.topics import Topics
from cdc.outbox.event_stream import OutboxStream
from cdc.ports.catalog_reader import KnownTable
from cdc.ports.stream import Signal
from cdc.snapshots.change_memory import ChangeMemory
from cdc.snapshots.chunk_engine import RecordedSnapshots, SnapshotEngine
from cdc.snapshots.chunk_records import RowRecords
from cdc.snapshots.coordination import Restrictions, Snapshots
from cdc.snapshots.signal_answers import Answers
from cdc.snapshots.sweeps import Sweeps
from cdc.tables.schema_tracking import SchemaTracker, TrackedTables
from tests.mixed.operations import EVENT, EVENT_SOURCES, HEAVY
from tests.simulation.kafka import FakeBroker
from tests.simulation.mixed.catalog import PUBLICATION, Catalog, MixedReader, column
from tests.simulation.mixed.source import (
    KEY,
    OUTBOXES,
    PREFIX,
    SCHEMAS,
    TABLES,
    MixedStream,
    dead_letter_topic,
    event_topic,
)
from tests.simulation.snapshots.rows import RowReader

if TYPE_CHECKING:
    from tests.simulation.mixed.run import Run

TOPICS: Final = Topics(PREFIX)
TABLE_TOPICS: Final = [SCHEMAS[name].topic for name in TABLES]
EVENT_TOPICS: Final = [of(source) for source in EVENT_SOURCES for of in (event_topic, dead_letter_topic)]
PARTITIONS: Final = {
    **dict.fromkeys((*TABLE_TOPICS, *EVENT_TOPICS), 3),
    **dict.fromkeys((TOPICS.state, TOPICS.control, TOPICS.progress, TOPICS.dead_letter), 1),
}
OWNERS: Final = {
    **{SCHEMAS[name].topic: {name} for name in TABLES},
    **{topic: {EVENT} for topic in EVENT_TOPICS},
    TOPICS.dead_letter: {HEAVY},
}
IDENTITY: Final = SourceIdentity(system_identifier="7000", timeline=1, database="shop", slot="sim")
RECORD_BYTES_MAX: Final = 3_000


class MeteredCapture(Capture):
    """Its work is counted."""

    def __init__(self, simulated: "Run", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.simulated = simulated

    def _consume(self, frames: Sequence[bytes]) -> None:
        with self.simulated.counting_work(len(frames)):
            super()._consume(frames)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a mutant replaces, to see that the judge notices."""

    capture: Callable[..., MeteredCapture] = MeteredCapture
    memory: Callable[[int], ChangeMemory] = ChangeMemory


class Process:
    """A process of capture. It is wired as `Session` wires the real one."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._world = run.world
        self.stream = MixedStream(run.world, run.slot, run.source)
        self.reader = MixedReader(
            run.world.chance, run.source, lambda _: {}, lambda *_: {}, run.mark_delay, waits_at_barriers=True
        )
        self.catalog = Catalog(run.world.chance, run.source)

    def session(self) -> None:
        run = self._run
        position = self._position()
        if not self.stream.start(position.resume_lsn):
            return
        broker = FakeBroker(run.cluster, self._world, TABLE_TOPICS)
        broker.fence_predecessors()
        position = self._position()
        schemas = self._schemas()
        context = EnvelopeContext(PREFIX, IDENTITY.database, position.epoch, "0", run.format)
        floors = {record.table: record.floor for record in run.recorded(SweepRecord, "sweep/", TOPICS.control)}
        sweeps = Sweeps(TOPICS, position.epoch, floors)
        unpublishable = self._unpublishable()
        engine = SnapshotEngine(
            schemas=schemas,
            row_records=RowRecords(context, unpublishable),
            sweeps=sweeps,
            limits=run.snapshot_limits,
            recorded=RecordedSnapshots(
                records=run.recorded(SnapshotRecord, "snapshot/"),
                incomplete=run.recorded(IncompleteRowsRecord, "holes/"),
            ),
            new_nonce=lambda: f"{self._world.chance.getrandbits(64):016x}",
        )
        engine.memory = run.parts.memory(run.keys_max)
        outboxes = frozenset(SCHEMAS[name].table for name in OUTBOXES)
        rows = RowReader(self._world.chance, run.source)
        snapshots = Snapshots(
            engine,
            self.reader,
            self.reader,
            _Signals(run),
            Answers(TOPICS, {}),
            Restrictions(outboxes=outboxes),
        )
        tracker = self._tracker(schemas, snapshots, position)
        capture = run.parts.capture(
            run,
            clock=self._world,
            probe=self._world.probe,
            pipeline=Pipeline(
                stream=self.stream,
                broker=broker,
                assembler=Assembler(
                    CapturedTables(schemas),
                    context,
                    StreamState.of(position),
                    engine,
                    tracker,
                    unpublishable=unpublishable,
                    outbox=self._outbox(),
                ),
                backfill=ToastBackfill(
                    rows, engine.complete, self._world, self._pause, run.patience_s, fits=unpublishable.accepts
                ),
                snapshots=snapshots,
                publisher=self._publisher(position),
            ),
            topics=TOPICS,
            schedule=LoopSchedule(limits=run.limits, watch=tracker.watch, awaits_cuts=True),
            should_stop=self._stops,
        )
        capture.run()

    def _position(self) -> PositionRecord:
        self._world.step()
        return PositionRecord.open(self._run.latest(TOPICS.state)[PositionRecord.KEY], "state")

    def _schemas(self) -> list[TableSchema]:
        """In the newest versions that are committed."""
        schemas = {schema.table: schema for schema in SCHEMAS.values()}
        for record in self._run.recorded(SchemaRecord, "schema/", TOPICS.control):
            schema = record.table_schema_of()
            if schema.version > schemas[schema.table].version:
                schemas[schema.table] = schema
        return list(schemas.values())

    def _tracker(self, schemas: Sequence[TableSchema], snapshots: Snapshots, position: PositionRecord) -> SchemaTracker:
        known = {record.table: record.facts for record in self._run.recorded(TableRecord, "table/")}
        return SchemaTracker(
            topics=TOPICS,
            tables=TrackedTables(
                known={s.table: KnownTable(s, known.get(s.table), "") for s in schemas if s.table.name in TABLES},
                stopped={},
                publication=PUBLICATION,
                is_half_published=position.partial is not None,
            ),
            describe=lambda _, sent: [column(each.name) for each in sent],
            catalog=self.catalog,
            rows=snapshots,
            earlier=_Earlier(self._run.needs_rows),
            now_us=self._world.now_us,
            new_nonce=lambda: f"look {self._world.chance.getrandbits(64):016x}",
        )

    def _unpublishable(self) -> Unpublishable:
        limits = {**dict.fromkeys(TABLE_TOPICS, 1 << 20), SCHEMAS[HEAVY].topic: RECORD_BYTES_MAX}
        before = self._run.recorded(UnpublishedRecord, "unpublished/")
        return Unpublishable(TOPICS, "dead_letter", limits | {TOPICS.dead_letter: 1 << 20}, before)

    def _outbox(self) -> OutboxStream:
        def route(source: str) -> dict[str, Any]:
            return {"route_topic_replacement": f"{PREFIX}-{source}-${{routedByValue}}"}

        tables = (
            OutboxTable(table="public.outbox", **route("outbox")),
            OutboxTable(table="public.blobs", value_converter="bytes", **route("blobs")),
        )
        messages = OutboxMessages(**route("message"))
        return OutboxStream(PREFIX, tables, (messages, KEY), self._run.format)

    def _publisher(self, position: PositionRecord) -> Publisher:
        constants = PositionConstants(
            position.epoch, IDENTITY, PUBLICATION, {topic: position.topics[topic] for topic in TABLE_TOPICS}
        )
        return Publisher(constants, self._run.limits)

    def _pause(self, seconds: float) -> None:
        """The source lives on meanwhile."""
        self._world.now_s += seconds
        self._run.source.live(is_calm=False)

    def _stops(self) -> bool:
        """At the source's end, or at an operator's word."""
        if self._world.is_calm and self._run.source.is_over:
            self._run.ask_again()
            return self._run.is_done
        return self._world.happens(0.002)


class _Earlier:
    """cdc.tables.schema_tracking.EarlierRecords: of columns that are always null. tests/simulation/altered.py has such
    with values."""

    def __init__(self, needs_rows: bool) -> None:
        self._needs_rows = needs_rows

    def constants(self, *_: object) -> dict[str, str]:
        return {}

    def encoded(self, *_: object) -> tuple[tuple[str, str], ...]:
        return ()

    def why_published_again(self, *_: object) -> str | None:
        return "a store needs it" if self._needs_rows else None


class _Signals:
    """cdc.ports.stream.Signals"""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._next = next((record.offset for record in run.recorded(SignalsRecord, "signals")), 0)

    def poll(self) -> list[Signal]:
        first, self._next = self._next, len(self._run.signals)
        return [Signal(f"signal {n}", n, self._run.signals[n], "") for n in range(first, self._next)]
