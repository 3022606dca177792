"""One run: tables are read in chunks beside the stream by processes that die, and all that they committed is judged.

What runs is the real thing: Assembler, SnapshotEngine with ChangeMemory, Jobs and Sweeps, Snapshots with its signals,
and ToastBackfill for what updates left out of the log. A process begins from what was committed to Kafka, which is
simulated here as a list: what was produced since the last commit is lost with the process.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from unittest.mock import patch

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.capture.toast_backfill import ToastBackfill
from cdc.config.settings import SnapshotConfig
from cdc.formats.records import EnvelopeContext
from cdc.model.control import (
    IncompleteRowsRecord,
    SignalRecord,
    SignalsRecord,
    SnapshotRecord,
    SweepRecord,
    TombstonesRecord,
)
from cdc.model.events import TableId, pack_version
from cdc.model.lsn import Lsn
from cdc.model.seq import SeqCounter
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.row_reader import Unfilled
from cdc.ports.stream import Signal
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots import completion
from cdc.snapshots.change_memory import ChangeMemory, Unseen
from cdc.snapshots.chunk_engine import RecordedSnapshots, SnapshotEngine
from cdc.snapshots.chunk_records import RowRecords
from cdc.snapshots.coordination import Snapshots
from cdc.snapshots.signal_answers import Answers
from cdc.snapshots.sweeps import Sweeps
from tests.simulation.snapshots.judge import HOLE, Versioned, changes_again, compacted, judge
from tests.simulation.snapshots.rows import RowReader
from tests.simulation.snapshots.source import COMMIT_US, KEYS, SCHEMAS, TABLES, Reader, Row, Source, Stream
from tests.support.snapshot_ports import UnfollowedTables

PREFIX: Final = "sim"
TOPICS: Final = Topics(PREFIX)
SEQ_BEFORE: Final = 1_000  # of what was published before the run began
STEPS_MAX: Final = 20_000
STEPS_WITH_FAULTS: Final = (40, 120, 300)

UnseenRule = Callable[[ChangeMemory, str, TransactionSnapshot], Unseen]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a mutant replaces, to see that the judge notices."""

    engine: Callable[..., SnapshotEngine] = SnapshotEngine
    sweeps: Callable[..., Sweeps] = Sweeps
    unseen_rule: Callable[["Run"], UnseenRule] = lambda _: ChangeMemory.unseen
    waits_at_barriers: bool = True
    row_reader: Callable[[random.Random, Source], RowReader] = RowReader
    backfill: Callable[..., ToastBackfill] = ToastBackfill
    notes_holes: bool = True


@dataclass
class Committed:
    """What a process that begins finds in Kafka."""

    state: StreamState
    epoch: int
    records: list[TopicRecord] = field(default_factory=list)
    snapshots: dict[TableId, SnapshotRecord] = field(default_factory=dict)
    holes: dict[TableId, IncompleteRowsRecord] = field(default_factory=dict)
    floors: dict[TableId, int] = field(default_factory=dict)
    tombstones: dict[TableId, int] = field(default_factory=dict)
    signals_offset: int = 0
    rows: Versioned = field(default_factory=dict)  # of the tables' topics, after compaction

    def add(self, records: list[TopicRecord], state: StreamState) -> None:
        self.state = state
        self.rows = compacted(records, self.rows)
        for record in records:
            self.records.append(record)
            assert record.value is not None or record.topic not in (TOPICS.state, TOPICS.control)
            if record.key.startswith(b"tombstones/"):
                written = TombstonesRecord.decode(record.value or b"", "state")
                self.tombstones[written.table] = written.floor
                continue
            if record.topic == TOPICS.control and record.key.startswith(b"sweep/"):
                sweep = SweepRecord.decode(record.value or b"", "control")
                self.floors[sweep.table] = sweep.floor
            elif record.topic == TOPICS.state and record.key == SignalsRecord.KEY.encode():
                self.signals_offset = SignalsRecord.decode(record.value or b"", "state").offset
            elif record.topic == TOPICS.state and record.key.startswith(b"holes/"):
                holes = IncompleteRowsRecord.decode(record.value or b"", "state")
                self.holes[holes.table] = holes
            elif record.topic == TOPICS.state:
                snapshot = SnapshotRecord.decode(record.value or b"", "state")
                self.snapshots[snapshot.table] = snapshot


class Run:
    """All that one seed decides. `report` runs it."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.parts = parts or Parts()
        chance = self.chance = random.Random(seed)
        self.source = Source(chance, lag=chance.choice((0.0, 0.5, 0.9, 0.97)), truncates=chance.random() < 0.5)
        self.mark_delay = chance.choice((0.0, 0.0, 0.7, 0.95))
        self.crash_rate = chance.choice((0.0, 0.01, 0.03))
        self.commit_rate = chance.choice((0.05, 0.3, 1.0))
        self.signal_rate = chance.choice((0.0, 0.01, 0.05))
        self.patience_s = chance.choice((0.0, 0.02, 0.3))
        self.noted_max = chance.choice((1, 3, 1_000))
        self.keys_max = chance.choice((2, 5, 12, 1_000))
        self.transactions_max = chance.choice((1, 3, 1_000))
        self.tombstones = chance.random() < 0.3
        self.limits = SnapshotConfig(
            workers=chance.choice((1, 2, 4)),
            chunk_rows_max=chance.choice((1, 2, 4)),
            rows_per_s_max=chance.choice((None, None, 50.0)),
        )
        self.events: Counter[str] = Counter()
        self.received_lsn = 0  # commit of the transaction that the running process is receiving
        self.reader: Reader  # the running process's
        self.signals: list[SignalRecord] = []
        self.healed: dict[TableId, bool] = {SCHEMAS[name].table: False for name in TABLES}
        self.now_s = 1_000.0
        self._steps = 0
        self.committed = Committed(StreamState(Lsn(self.source.end), None, SEQ_BEFORE, COMMIT_US), epoch=2)
        self.before = self._published_before()
        self.committed.rows = dict(self.before)
        self._ask_for_all()

    def _published_before(self) -> dict[tuple[str, int], tuple[int, Row]]:
        """What stores hold when the run begins, with versions: nothing, what the source lost, and what is old."""
        return {
            (name, key): (pack_version(2, number), Row(f"ghost {number}", "ghost"))
            for number, (name, key) in enumerate((name, key) for name in TABLES for key in KEYS)
            if self.chance.random() < 0.5
        }

    def _ask_for_all(self, floor: int | None = None, *, compares: bool = False) -> None:
        for name in TABLES:
            schema = SCHEMAS[name]
            record = SnapshotRecord(
                request="first",
                table_schema=schema.table.schema,
                table_name=name,
                status="running",
                sweeps=not compares,
                floor=floor,
                compares=compares,
                requested_us=0,
                owes="its initial snapshot",
            )
            self.committed.add(
                [record.to(TOPICS.state)],
                self.committed.state,
            )

    # ---- the run

    def report(self) -> None:
        """Run to the end, and judge. Raises AssertionError."""
        with patch.object(completion, "NOTED_MAX", self.noted_max):
            self._report()

    def _report(self) -> None:
        steps_with_faults = self.chance.choice(STEPS_WITH_FAULTS)
        while self._steps < steps_with_faults:
            self._process(steps_with_faults)
            if self._steps < steps_with_faults and self.chance.random() < 0.05:
                self._lose_the_slot()
        while not self._process(STEPS_MAX):
            assert self._steps < STEPS_MAX, "the run does not come to an end"
        self.events["ids wrapped around"] += len({entry.xid >> 31 for entry in self.source.log}) > 1
        committed = self.committed
        judge(committed.records, self.source, self.before, committed.floors, self.chance, tombstones=self.tombstones)

    def _process(self, steps_max: int) -> bool:
        """One process, from its start to its death, or to the step. Whether all is done."""
        process = Process(self)
        is_calm = steps_max == STEPS_MAX
        while self._steps < steps_max:
            self._steps += 1
            self.now_s += self.chance.choice((0.001, 0.01, 0.3))
            for _ in range(self.chance.choice((0, 1, 3))):
                self.source.live(is_calm=is_calm)
            for _ in range(self.chance.choice((0, 1, 3))):
                process.reader.live(is_calm=is_calm)
            process.step()
            if is_calm:
                if process.is_done():
                    return True
            elif self.chance.random() < self.crash_rate:
                self.events["crash"] += 1
                return False
            elif self.chance.random() < self.signal_rate:
                self._signal()
        return False

    # ---- the topics, as far as they are committed

    def live_keys(self, topic: str) -> dict[bytes, int]:
        """cdc.kafka.topic_keys"""
        return {
            b'{"id":%d}' % key: version
            for (name, key), (version, value) in compacted(self.committed.records, self.before).items()
            if SCHEMAS[name].topic == topic and value is not None
        }

    def topic_rows(self, name: str, floor: int) -> dict[int, Row]:
        """cdc.kafka.topic_rows"""
        rows = self.committed.rows.items()
        return {key: row for (table, key), (version, row) in rows if table == name and row and version >= floor}

    def judge_owed(self, owed: Mapping[str, str]) -> None:
        """Of a table that owes nothing, the topic has the rows that the source had at the position, and no others.
        Raises AssertionError."""
        for schema in SCHEMAS.values():
            name, lsn = schema.table.name, self.committed.state.resume_lsn
            if str(schema.table) in owed:
                self.events["owed"] += 1
                continue
            self.events["not owed"] += 1
            floor = self.committed.floors.get(schema.table, 0)
            found = {
                key: row
                for (table, key), (version, row) in self.committed.rows.items()
                if table == name and row is not None and version >= floor
            }
            wanted = {key: row.v for key, row in self.source.rows_before(name, lsn).items()}
            assert {key: row.v for key, row in found.items()} == wanted, (
                f"{name} owes nothing at {lsn}, but the topic holds {found}, the source {wanted}"
            )
            # A value that no read could find any more is that of a row that changed again.
            lacking = [
                key for key, row in found.items() if row.big == HOLE and not changes_again(self.source, name, key, lsn)
            ]
            assert not lacking, f"{name} owes nothing at {lsn}, but the topic lacks values of {lacking}"

    def judge_part(self, snapshot: SnapshotRecord) -> None:
        """In the range of a snapshot that is done, the topic and the source have the same rows, but for large values,
        which may still be completed; with a condition, the topic has none that the source has not. Raises
        AssertionError."""
        asked = snapshot.deletes_in
        if asked is None or snapshot.status != "done":
            return
        name = snapshot.table_name
        low = int(asked.after[0]) if asked.after else min(KEYS) - 1
        high = int(asked.up_to[0]) if asked.up_to else max(KEYS)
        floor = self.committed.floors.get(snapshot.table, 0)
        found = {
            key: row.v
            for (table, key), (version, row) in compacted(self.committed.records, self.before).items()
            if table == name and low < key <= high and row is not None and version >= floor
        }
        rows = self.source.rows_before(name, self.committed.state.resume_lsn)
        wanted = {key: row.v for key, row in rows.items() if low < key <= high}
        if snapshot.where is None:
            assert found == wanted, f"{name}, {low} to {high}: the topic holds {found}, the source {wanted}"
        else:
            assert found.keys() <= wanted.keys(), f"{name}: the topic holds {found}, the source only {wanted}"

    def _lose_the_slot(self) -> None:
        """What was not received never will be; the next epoch begins where the new slot does."""
        self.events["gap"] += 1
        self.healed = dict.fromkeys(self.healed, False)
        self.committed.epoch += 1
        self.committed.state = StreamState(Lsn(self.source.end), None, 0, COMMIT_US)
        compares = self.chance.random() < 0.7
        self._ask_for_all(None if compares else pack_version(self.committed.epoch, 0), compares=compares)

    def _signal(self) -> None:
        tables = () if self.chance.random() < 0.3 else (f"public.{self.chance.choice(TABLES)}",)
        action = self.chance.choice(("snapshot", "range", "range", "range", "pause", "resume", "resume", "cancel"))
        self.events[action] += 1
        after, up_to = sorted(self.chance.sample(KEYS, 2))
        wish: dict[str, object] = {"action": action, "tables": tables, "requested_us": int(self.now_s * 1e6)}
        if action == "range":
            wish |= {"action": "snapshot", "tables": (f"public.{self.chance.choice(TABLES)}",)}
            wish |= {"after": (str(after),), "up_to": self.chance.choice((None, (str(up_to),)))}
            wish |= {"where": self.chance.choice((None, None, "even"))}
        self.signals.append(SignalRecord.model_validate(wish))


class Process:
    """It is wired as `cdc/daemon/service.py` wires the real one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        committed = run.committed
        schemas = list(SCHEMAS.values())
        context = EnvelopeContext(PREFIX, "shop", committed.epoch, "0")
        sweeps = run.parts.sweeps(TOPICS, committed.epoch, committed.floors)
        self.engine = run.parts.engine(
            schemas=schemas,
            row_records=RowRecords(context),
            sweeps=sweeps,
            limits=run.limits,
            recorded=RecordedSnapshots(
                records=list(committed.snapshots.values()),
                tombstones=committed.tombstones if run.tombstones else None,
                incomplete=list(committed.holes.values()),
            ),
            memory=_CountingMemory(run),
            new_nonce=lambda: f"{run.chance.getrandbits(64):016x}",
        )
        self._note_what_is_received()
        self._assembler = Assembler(
            CapturedTables(schemas),
            context,
            committed.state,
            self.engine,
            UnfollowedTables(),
        )
        rows = run.parts.row_reader(run.chance, run.source)
        self._backfill = run.parts.backfill(rows, self._complete, self, self._pause, run.patience_s)
        self.reader = Reader(
            run.chance,
            run.source,
            run.live_keys,
            run.topic_rows,
            run.mark_delay,
            waits_at_barriers=run.parts.waits_at_barriers,
        )
        run.reader = self.reader
        # The server may know an older position than the one committed.
        sent_again = run.chance.choice((0, 0, 300)) if committed.state.seq else 0
        self._stream = Stream(run.chance, run.source, committed.state.resume_lsn - sent_again)
        self._session = Snapshots(self.engine, self.reader, self.reader, _Signals(run), Answers(TOPICS, {}))
        self._open: list[TopicRecord] = []  # Kafka transaction

    def _note_what_is_received(self) -> None:
        run, end = self._run, self.engine.end

        def noting(commit_lsn: Lsn, seq: SeqCounter, now_us: int) -> list[TopicRecord]:
            run.received_lsn = commit_lsn
            return end(commit_lsn, seq, now_us)

        self.engine.end = noting  # type: ignore[method-assign]

    def step(self) -> None:
        """As Capture's."""
        run = self._run
        frames = self._stream.read()
        self._session.take_answers(run.now_s)
        records, failure = self._assembler.consume(frames, int(run.now_s * 1e6))
        assert failure is None
        filled = [record for piece in self._backfill.fill(records, _nothing) for record in piece]
        lag_s = run.chance.choice((0.0, 0.0, 0.0, 5.0))
        self._open += [*filled, *self._session.advance(run.now_s, int(run.now_s * 1e6), lag_s)]
        if run.chance.random() < run.commit_rate:
            self._commit()

    def monotonic(self) -> float:
        return self._run.now_s

    def now_us(self) -> int:
        return int(self._run.now_s * 1e6)

    def _pause(self, seconds: float) -> None:
        """The source lives on meanwhile."""
        self._run.now_s += seconds
        self._run.source.live(is_calm=False)

    def _complete(self, rows: Sequence[Unfilled]) -> list[TopicRecord]:
        self._run.events["unfilled"] += len(rows)
        noted = self.engine.complete(rows)
        return noted if self._run.parts.notes_holes else []

    def _commit(self) -> None:
        state = self._assembler.state
        self._run.events["half a transaction committed"] += state.partial is not None
        kept = [record for record in self._open if record.topic != TOPICS.progress]
        for record in kept:
            self._note(record)
        self._run.committed.add(kept, state)
        self._session.on_committed()
        self._open.clear()
        if state.partial is None:
            self._run.judge_owed(self._session.owed)
            for record in kept:
                if record.key.startswith(b"snapshot/"):
                    self._run.judge_part(SnapshotRecord.decode(record.value or b"", "state"))

    def _note(self, record: TopicRecord) -> None:
        if record.value is not None and b'"filled":["big"]' in record.value:
            self._run.events["filled"] += 1
        if record.topic == TOPICS.state and record.key.startswith(b"holes/"):
            self._run.events["completed whole"] += IncompleteRowsRecord.decode(record.value or b"", "state").is_whole
            self._run.events["completed"] += not IncompleteRowsRecord.decode(record.value or b"", "state").keys
        if record.topic == TOPICS.state and record.key.startswith(b"snapshot/"):
            snapshot = SnapshotRecord.decode(record.value or b"", "state")
            self._run.events[snapshot.status] += 1
            self._run.events["deleted"] += snapshot.status == "done" and snapshot.deleted > 0
            if snapshot.status == "done" and (snapshot.sweeps or snapshot.compares):
                self._run.healed[snapshot.table] = True
            if snapshot.status == "done" and snapshot.compares:
                self._run.events["compared"] += 1
                self._run.events["equal"] += snapshot.compared - snapshot.rows

    def is_done(self) -> bool:
        """The source is at rest and received, and every table was read whole. Asks for what is missing."""
        run = self._run
        if not (run.source.is_quiet and self._stream.is_dry):
            return False
        self._commit()
        offset = run.committed.signals_offset
        if self.engine.is_active or self.engine.tombstones.due or offset < len(run.signals):
            return False
        for table, is_healed in run.healed.items():
            if not is_healed:
                run.signals.append(SignalRecord(action="snapshot", tables=(str(table),), requested_us=0))
        return offset == len(run.signals) and all(run.healed.values())


def _nothing() -> None:
    """Nobody waits for a status."""


class _Signals:
    """cdc.ports.stream.Signals"""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._next = run.committed.signals_offset

    def poll(self) -> list[Signal]:
        first, self._next = self._next, len(self._run.signals)
        return [Signal(f"signal {i}", i, self._run.signals[i], "") for i in range(first, self._next)]


class _CountingMemory(ChangeMemory):
    """Applies the run's rule, and counts what it finds."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.keys_max, run.transactions_max)
        self._run = run
        self._rule = run.parts.unseen_rule(run)

    def unseen(self, topic: str, snapshot: TransactionSnapshot) -> Unseen:
        found, events = self._rule(self, topic, snapshot), self._run.events
        events["keys forgotten"] += found.is_forgotten
        events["unseen TRUNCATE"] += found.is_truncated

        def touched(key: bytes) -> bool:
            is_touched = found.touched(key)
            events["unseen"] += is_touched
            return is_touched

        return replace(found, touched=touched)
