"""One simulated run: capture is started, dies, is frozen, loses its servers, and is judged at the end.

What runs is the real thing: InitialLoad, Capture, Assembler, Publisher, Confirmation, the checks of continuity and the
records. Only the wiring of `cdc/daemon/service.py` and `cdc/daemon/first_start.py` is repeated here, on fakes, in the
same order.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from cdc.capture.assembler import Assembler
from cdc.capture.consistent_load import InitialLoad, LoadStopped, TableLoad
from cdc.capture.kafka_transaction import PositionConstants, Publisher
from cdc.capture.loop import Capture, LoopSchedule, Pipeline
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.config.format_options import FormatOptions
from cdc.config.settings import CaptureConfig
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.unpublishable import Unpublishable
from cdc.model.control import PROTOCOL, PositionRecord, SourceIdentity, TopicState
from cdc.model.errors import ConnectionLost
from cdc.model.lsn import Lsn
from cdc.model.topics import Topics
from cdc.pgoutput.relations import relation_of
from cdc.ports.source_now import SourceNow
from cdc.snapshots.coordination import Snapshots
from cdc.snapshots.signal_answers import Answers
from cdc.tables.continuity import require_same_source, topic_trouble
from cdc.tables.selection import compare_tables
from tests.checker.judge import Evidence, Report, require_true
from tests.simulation.halves import Halves
from tests.simulation.kafka import FakeBroker, FakeCluster
from tests.simulation.postgres import CAPTURED, PREFIX, SCHEMAS, FakePostgres, FakeStream
from tests.simulation.world import Crash, Rates, World
from tests.support import wire
from tests.support.snapshot_ports import (
    ScriptedReader,
    ScriptedSignals,
    UnfollowedTables,
    engine_of,
    no_backfill,
)

TOPICS = Topics(PREFIX)
TABLE_TOPICS = [schema.topic for schema in SCHEMAS]
PARTITIONS = {
    **dict.fromkeys(TABLE_TOPICS, 3),
    TOPICS.state: 1,
    TOPICS.control: 1,
    TOPICS.progress: 1,
    TOPICS.transaction: 1,
}
IDENTITY = SourceIdentity(system_identifier="7000", timeline=1, database="shop", slot="sim")
SESSIONS_WITH_FAULTS = 6


@dataclass(frozen=True, slots=True)
class Parts:
    """What a mutant replaces, to see that the judge notices."""

    capture: Callable[..., Capture] = Capture
    assembler: Callable[..., Assembler] = Assembler
    publisher: Callable[..., Publisher] = Publisher
    load: Callable[..., InitialLoad] = InitialLoad
    reads_again_when_fenced: bool = True
    keeps_the_epoch: bool = False


@dataclass
class Run:
    """All that one seed decides. `report()` runs it."""

    seed: int
    parts: Parts = field(default_factory=Parts)
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        self.world = World(self.seed, self.rates)
        chance = self.world.chance
        self.events: set[str] = set()  # what happened in this run
        self.read_earlier: PositionRecord | None = None  # by a process that has stood by since
        self.cluster = FakeCluster(PARTITIONS)
        self.postgres = FakePostgres(self.world, self._recorded_lsn, transactions_max=chance.randint(3, 12))
        self.format = FormatOptions(provide_transaction_metadata=self.seed % 4 == 0)
        self.limits = CaptureConfig(
            transaction_rows_max=chance.choice((1, 2, 5, 50)),
            transaction_bytes_max=chance.choice((1024, 100_000)),
            transaction_time_ms_max=chance.choice((1, 50)),
            idle_position_s=chance.choice((0.01, 1.0)),
            progress_interval_ms=chance.choice((10, 250)),
        )
        halves = Halves(self.postgres, self.limits)
        self.cluster.on_committed = lambda records: halves.check(records, self.world.now_s - self.cluster.opened_at_s)

    def _recorded(self) -> PositionRecord | None:
        """The last committed position record, also where a consumer does not see it yet."""
        for entry in reversed(self.cluster.logs[TOPICS.state, 0]):
            if entry.fate == "committed" and entry.record is not None and entry.record.value is not None:
                return _decoded(entry.record.value)
        return None

    def _recorded_lsn(self) -> int:
        position = self._recorded()
        return 0 if position is None else position.resume_lsn

    @property
    def is_done(self) -> bool:
        """The source is at rest, and capture has streamed up to its end."""
        if not self.postgres.is_confirmed:
            return False
        position = self._recorded()
        return position is not None and position.phase == "streaming"

    def report(self) -> Report:
        """Run to the end, then judge. Raises AssertionError."""
        for _ in range(SESSIONS_WITH_FAULTS):
            self.world.arm(self.world.chance.choice((None, 5, 40, 100, 300)) and self.world.chance.randrange(1, 300))
            self.world.on_pause = self._take_over
            self._process()
            if self.is_done:
                break
        self.world.arm(None)
        self.world.is_calm = True
        while not self.is_done:
            self._process()
        report = require_true(self._evidence())
        self._require_transactions()
        return report

    def _require_transactions(self) -> None:
        """Each is told once, with the right counts, and each event once says which of its transaction it is."""
        events: dict[str, list[int]] = {}
        for topic in TABLE_TOPICS:
            for record in self.cluster.committed(topic):
                block = json.loads(record.value)["transaction"] if record.value is not None else None
                if block is not None:
                    events.setdefault(block["id"], []).append(block["total_order"])
        reported = [json.loads(record.value or b"") for record in self.cluster.committed(TOPICS.transaction)]
        begun, ended = reported[::2], reported[1::2]
        assert [each["status"] for each in reported] == ["BEGIN", "END"] * len(ended)
        assert [each["id"] for each in begun] == [each["id"] for each in ended]
        assert {each["id"]: each["event_count"] for each in ended} == {name: len(of) for name, of in events.items()}
        assert all(sorted(orders) == list(range(1, len(orders) + 1)) for orders in events.values())
        if reported:
            self.events.add("transactions told")

    def _process(self) -> None:
        """One process, from its start to its end, whatever ends it. What it held is freed."""
        process = Process(self)
        self._running = process
        try:
            process.session()
        except ConnectionLost:
            self.events.add("connection lost")
        except LoadStopped:
            self.events.add("stopped")
        except Crash:
            self.world.is_dying = False
            self.events.add("crash")
        finally:
            process.disconnect()

    def _take_over(self) -> None:
        """The running process is frozen, so long that the servers give it up, and another one starts."""
        frozen = self._running
        frozen.disconnect()
        self.events.add("take-over")
        self._process()
        self._running = frozen

    def _evidence(self) -> Evidence:
        return Evidence(
            tables=[f"public.{name}" for name in CAPTURED],
            partition_counts=PARTITIONS,
            table_records=[record for topic in TABLE_TOPICS for record in self.cluster.committed(topic)],
            state=self.cluster.committed(TOPICS.state),
            control=self.cluster.committed(TOPICS.control),
            progress=self.cluster.committed(TOPICS.progress),
            journal=self.postgres.journal(),
            rows=self.postgres.rows(),
        )


class Process:
    """A process of capture. It is wired as `Service` and `Bootstrap` wire the real one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._world = run.world
        self._postgres = run.postgres
        self._stream = FakeStream(run.postgres)
        self._is_connected = True
        self._should_stop = False

    def disconnect(self) -> None:
        self._is_connected = False
        self._stream.close()
        if self._postgres.lock_holder is self:
            self._postgres.lock_holder = None

    def _step(self) -> None:
        """A statement on an ordinary connection."""
        self._world.step()
        if not self._is_connected:
            raise ConnectionLost("the connection was closed")

    def _stops(self) -> bool:
        self._should_stop = self._should_stop or self._world.happens(self._world.rates.stop)
        return self._should_stop or self._run.is_done

    def _read_position(self) -> PositionRecord | None:
        self._world.step()
        values = [r.value for r in self._run.cluster.committed(TOPICS.state) if r.key == PositionRecord.KEY.encode()]
        return PositionRecord.open(values[-1], "state") if values and values[-1] is not None else None

    def session(self) -> None:
        earlier = self._run.read_earlier
        if earlier is not None and self._world.chance.random() < 0.3:
            position: PositionRecord | None = earlier
        else:
            position = self._run.read_earlier = self._read_position()
        if position is None or position.phase != "streaming":
            self._step()
            if self._postgres.lock_holder is not None:
                return
            self._postgres.lock_holder = self
            position = self._read_position()
            if position is None or position.phase != "streaming":
                position = self._bootstrap(position)
        if not self._stream.start(position.resume_lsn):
            return
        if self._postgres.lock_holder is self:
            self._postgres.lock_holder = None
        self._capture(position)

    # ---- the initial load

    def _bootstrap(self, previous: PositionRecord | None) -> PositionRecord:
        epoch = 1 if previous is None else previous.epoch + (not self._run.parts.keeps_the_epoch)
        broker = self._broker()
        broker.fence_predecessors()
        if self._read_position() != previous:
            raise ConnectionLost("another instance has continued meanwhile")
        if previous is not None:
            self._run.events.add("load interrupted")
            self._step()
            self._postgres.slot = None
        constants = self._schema_history(epoch, {topic: TopicState(topic_id=topic) for topic in TABLE_TOPICS})
        intent = PositionRecord(
            phase="intent", epoch=epoch, seq=0, resume_lsn=0, source=IDENTITY, publication="p", protocol=PROTOCOL
        ).sealed()
        broker.produce([intent.to(TOPICS.state)], _nobody_waits)
        broker.commit(_nobody_waits)
        self._step()
        point = self._postgres.create_slot()
        self._world.step()
        load = self._run.parts.load(
            broker=broker,
            publisher=self._run.parts.publisher(constants, self._run.limits),
            unpublishable=Unpublishable(TOPICS),
            consistent_point=Lsn(point),
            clock=self._world,
            should_stop=self._stops,
            probe=self._world.probe,
        )
        load.run([self._table_load(name, point, epoch) for name in CAPTURED])
        position = self._read_position()
        assert position is not None
        return position

    def _table_load(self, name: str, point: int, epoch: int) -> TableLoad:
        schema = SCHEMAS[CAPTURED.index(name)]
        encoder = TableEncoder(schema, relation_of(schema), EnvelopeContext(PREFIX, IDENTITY.database, epoch, "0"))
        encoder.start_snapshot(point, self._world.now_us())
        return TableLoad(schema, encoder, self._lines(name, point), 0, 0)

    def _lines(self, name: str, point: int) -> Iterator[bytes]:
        for row in self._postgres.rows_at(name, point).items():
            self._step()
            self._postgres.live()
            yield wire.copy_line(row).removesuffix(b"\n")

    # ---- the stream

    def _capture(self, position: PositionRecord) -> None:
        broker = self._broker()
        broker.fence_predecessors()
        self._stream.send_status(Lsn(position.resume_lsn), Lsn(position.resume_lsn), reply_requested=False)
        current = self._read_position() if self._run.parts.reads_again_when_fenced else position
        assert current is not None
        if current.partial is not None:
            self._run.events.add("half published")
        slot = self._postgres.slot
        if slot is None or slot.user is not self._stream:
            raise ConnectionLost("the slot was lost")
        require_same_source(
            current,
            SourceNow(
                system_identifier=IDENTITY.system_identifier,
                timeline=IDENTITY.timeline,
                database=IDENTITY.database,
                flush_lsn=Lsn(self._postgres.end),
                slot_wal_status="reserved",
                slot_confirmed_lsn=Lsn(slot.confirmed),
                publication="p",
            ),
        )
        ends = self._run.cluster.end_offsets(TABLE_TOPICS)
        now = {topic: TopicState(topic_id=topic, end_offsets=tuple(ends[topic])) for topic in TABLE_TOPICS}
        for topic, state in now.items():
            assert not topic_trouble(current.topics[topic], state)
        tables = [schema.table for schema in SCHEMAS]
        schemas = compare_tables(tables, dict(zip(tables, SCHEMAS, strict=True)), current, TOPICS).kept
        context = EnvelopeContext(PREFIX, IDENTITY.database, current.epoch, "0", self._run.format)
        engine = engine_of(schemas, context)
        capture = self._run.parts.capture(
            clock=self._world,
            probe=self._world.probe,
            pipeline=Pipeline(
                stream=self._stream,
                broker=broker,
                assembler=self._run.parts.assembler(
                    CapturedTables(schemas),
                    context,
                    StreamState.of(current),
                    engine,
                    UnfollowedTables(),
                ),
                backfill=no_backfill(self._world),
                snapshots=Snapshots(engine, ScriptedReader(), ScriptedReader(), ScriptedSignals(), Answers(TOPICS, {})),
                publisher=self._run.parts.publisher(
                    self._schema_history(current.epoch, current.topics), self._run.limits
                ),
            ),
            topics=TOPICS,
            schedule=LoopSchedule(limits=self._run.limits, awaits_cuts=True),
            should_stop=self._stops,
        )
        capture.run()
        self._run.events.add("stopped")

    def _broker(self) -> FakeBroker:
        return FakeBroker(self._run.cluster, self._world, TABLE_TOPICS)

    def _schema_history(self, epoch: int, topics: Mapping[str, TopicState]) -> PositionConstants:
        return PositionConstants(epoch, IDENTITY, "p", topics)


@lru_cache(maxsize=4)
def _decoded(position: bytes) -> PositionRecord:
    """It is asked for at every status update."""
    return PositionRecord.decode(position, "state")


def _nobody_waits() -> None:
    """Before streaming no server expects to hear from us."""
