"""One simulated run of the mixture: capture follows all of it at once, dies, loses its servers, restarts behind a
backlog, and is judged in the end by what committed readers see.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cdc.config.format_options import FormatOptions
from cdc.config.masking import Mask
from cdc.config.settings import CaptureConfig, SnapshotConfig
from cdc.model import control
from cdc.model.control import (
    PROTOCOL,
    IncompleteRowsRecord,
    PositionRecord,
    SignalRecord,
    SignalsRecord,
    SnapshotRecord,
    TopicState,
)
from cdc.model.errors import ConnectionLost
from cdc.model.events import TableId
from tests.checker.judge import Evidence, Report, require_true
from tests.checker.records import Record
from tests.mixed.judge import events_are_the_ledger, foreign_values
from tests.mixed.operations import HEAVY, MASK_CHARS, MASKED, PLAIN
from tests.mixed.view import View
from tests.simulation.kafka import FakeCluster
from tests.simulation.mixed.catalog import PUBLICATION, SHAPE
from tests.simulation.mixed.claims import Claims
from tests.simulation.mixed.process import (
    EVENT_TOPICS,
    IDENTITY,
    OWNERS,
    PARTITIONS,
    TABLE_TOPICS,
    TOPICS,
    Parts,
    Process,
)
from tests.simulation.mixed.source import (
    LARGE_MAX,
    TABLES,
    MixedSource,
    Slot,
)
from tests.simulation.snapshots.source import KEYS
from tests.simulation.world import Crash, Rates, World

SESSIONS_WITH_FAULTS: Final = 5
STEPS_MAX: Final = 200_000
WORK_PER_FRAME_MAX: Final = 180  # calls of functions, ours and the fakes'; what is right takes 70 to 150
FRAMES_FREE: Final = 1_000  # so that waiting for values or for brokers may be dear
T = TypeVar("T", bound=control.Record)


@dataclass
class Run:
    """All that one seed decides. `report` runs it. `backlog`: how many transactions commit while no capture runs, if
    that is not to be the seed's choice."""

    seed: int
    parts: Parts = field(default_factory=Parts)
    backlog: int | None = None

    def __post_init__(self) -> None:
        self.world = World(self.seed, Rates(pause=0.0), STEPS_MAX)
        chance = self.world.chance
        self.events: Counter[str] = Counter()
        self.source = MixedSource(chance, chance.choice((0.0, 0.5, 0.9)), transactions_max=chance.randint(5, 40))
        self.slot = Slot(self._recorded_lsn, self._live, self.source.end)
        self.cluster = FakeCluster(PARTITIONS)
        self.format = FormatOptions(
            profile=chance.choice(("readable", "debezium")),
            masks=(Mask(TableId("public", MASKED), "big", "truncate", MASK_CHARS),),
        )
        self.limits = CaptureConfig(
            transaction_rows_max=chance.choice((1, 3, 50, 50_000)),
            on_unpublishable="dead_letter",
            progress_interval_ms=chance.choice((10, 250)),
        )
        self.snapshot_limits = SnapshotConfig(workers=chance.choice((1, 2)), chunk_rows_max=chance.choice((1, 2, 4)))
        self.keys_max = chance.choice((3, 12, 200))
        self.mark_delay = chance.choice((0.0, 0.7, 0.95))
        self.patience_s = chance.choice((0.0, 0.02, 0.3))
        self.signal_rate = chance.choice((0.0, 0.05, 0.2))
        self.needs_rows = self.seed % 4 != 3  # after DROP COLUMN
        self.wants_backlog = chance.choice((0,) * 8 + (300, 1_000)) if self.backlog is None else self.backlog
        self.signals: list[SignalRecord] = []
        self.process: Process | None = None
        self.work = self.frames = 0  # behind a backlog
        self._begin()

    def _begin(self) -> None:
        """What the first start has committed: where the stream begins, and that all rows are to be read."""
        position = PositionRecord(
            phase="streaming",
            epoch=1,
            seq=0,
            resume_lsn=self.source.end,
            source=IDENTITY,
            publication=PUBLICATION,
            protocol=PROTOCOL,
            topics={topic: TopicState(topic_id=topic, end_offsets=(0, 0, 0)) for topic in TABLE_TOPICS},
        )
        wanted = [
            SnapshotRecord(
                request="first",
                table_schema="public",
                table_name=name,
                status="running",
                sweeps=True,
                requested_us=0,
                owes="its initial snapshot",
            )
            for name in TABLES
        ]
        for record in (position.sealed(), *wanted):
            self.cluster.append(record.to(TOPICS.state))
        self.cluster.end("committed")

    # ---- what is committed

    def latest(self, topic: str, prefix: str = "") -> dict[str, bytes]:
        """The newest value of each key that begins so."""
        records = ((r.key.decode(), r.value) for r in self.cluster.committed(topic))
        found = {key: value for key, value in records if key.startswith(prefix)}
        return {key: value for key, value in found.items() if value is not None}

    def recorded(self, kind: type[T], prefix: str, topic: str = TOPICS.state) -> list[T]:
        return [kind.decode(value, topic) for value in self.latest(topic, prefix).values()]

    def _recorded_lsn(self) -> int:
        for entry in reversed(self.cluster.logs[TOPICS.state, 0]):
            record = entry.record
            if entry.fate == "committed" and record is not None and record.key == PositionRecord.KEY.encode():
                return PositionRecord.decode(record.value or b"", "state").resume_lsn
        return 0

    # ---- the run

    def report(self) -> Report:
        """Run to the end, then judge. Raises AssertionError."""
        for number in range(SESSIONS_WITH_FAULTS):
            self.world.arm(self.world.chance.choice((None, 40, 200, 600)) and self.world.chance.randrange(1, 600))
            self._session()
            if number == 1 and self.wants_backlog:
                self.source.backlog(self.world.chance.choice((PLAIN, HEAVY)), self.wants_backlog)
                self.signals.append(SignalRecord(action="snapshot", requested_us=self.world.now_us()))
                self.events["backlog"] += 1
        self.world.arm(None)
        self.world.is_calm = True
        while not self.source.is_over:
            self._session()
        self.source.delete_too_large()
        while not self.is_done:
            self._session()
        return self._judged()

    def _session(self) -> None:
        """One process, from its start to its end, whatever ends it."""
        self.process = Process(self)
        try:
            self.process.session()
        except ConnectionLost:
            self.events["connection lost"] += 1
        except Crash:
            self.world.is_dying = False
            self.events["crash"] += 1
        finally:
            self.process.stream.close()

    @contextmanager
    def counting_work(self, frames: int) -> Iterator[None]:
        """What these messages cost: each call of a function, ours or Python's."""
        if not self.events["backlog"]:
            yield
            return

        self.frames += frames
        work_max = WORK_PER_FRAME_MAX * (self.frames + FRAMES_FREE)

        def count(*_: object) -> None:
            self.work += 1
            if self.work > work_max:
                sys.setprofile(None)
                raise AssertionError(
                    f"STALL: more than {self.work} calls of functions for {self.frames} messages, behind a backlog of "
                    f"{self.wants_backlog} transactions"
                )

        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _live(self) -> None:
        """Something may happen in the source, and to who reads it."""
        if self.world.happens(self.signal_rate):
            self._signal()
        for _ in range(self.world.chance.choice((0, 1, 3))):
            self.source.live(is_calm=False)
        if self.process is not None:
            for _ in range(self.world.chance.choice((0, 1, 3))):
                self.process.reader.live(is_calm=self.world.is_calm)
                self.process.catalog.live()

    def _signal(self) -> None:
        """An operator requests something, whatever is being read."""
        chance = self.world.chance
        action = chance.choice(("snapshot", "range", "pause", "resume", "cancel"))
        wish: dict[str, object] = {"tables": (f"public.{chance.choice(TABLES)}",), "requested_us": self.world.now_us()}
        if action == "range":
            low, high = sorted(chance.sample(KEYS, 2))
            wish |= {"after": (str(low),), "up_to": (str(high),)}
        wish["action"] = "snapshot" if action == "range" else action
        self.signals.append(SignalRecord.model_validate(wish))
        self.events[f"signal: {action}"] += 1

    @property
    def is_done(self) -> bool:
        """Everything is published and confirmed, and every row read."""
        if not self.source.is_over or self.slot.confirmed < self.source.log[-1].end_lsn:
            return False
        snapshots = self.recorded(SnapshotRecord, "snapshot/")
        holes = self.recorded(IncompleteRowsRecord, "holes/")
        is_read = not any(map(_is_unread, snapshots)) and self._answered == len(self.signals)
        return is_read and not any(record.keys or record.is_whole for record in holes)

    def ask_again(self) -> None:
        """For tables whose snapshot does not continue, and that lack rows."""
        snapshots = self.recorded(SnapshotRecord, "snapshot/")
        unread = [each.table for each in snapshots if _is_unread(each) and each.status != "running"]
        if unread and self._answered == len(self.signals):
            names = tuple(map(str, unread))
            self.signals.append(SignalRecord(action="snapshot", tables=names, requested_us=self.world.now_us()))

    @property
    def _answered(self) -> int:
        """How many signals have had their effect."""
        return next((record.offset for record in self.recorded(SignalsRecord, "signals")), 0)

    def _judged(self) -> Report:
        view = View(LARGE_MAX)
        of = {topic: self.cluster.committed(topic) for topic in PARTITIONS}
        complaints = [
            *foreign_values([record for records in of.values() for record in records], OWNERS),
            *events_are_the_ledger(
                self.source.ledger(), [record for topic in EVENT_TOPICS for record in of[topic]], EVENT_TOPICS
            ),
        ]
        assert not complaints, "the judge complains:\n" + "\n".join(complaints[:10])
        left_out = {(HEAVY, key) for key in KEYS} if of[TOPICS.dead_letter] else set()
        claims = Claims(TOPICS, self.source, left_out)
        table_records = view.records(record for topic in TABLE_TOPICS for record in of[topic])
        untrue = list(claims.untrue(TABLES, of[TOPICS.progress], table_records, of[TOPICS.control]))
        self.events["owed nothing"] += claims.checked
        assert not untrue, "progress claims what is not there:\n" + "\n".join(untrue[:10])
        report = require_true(
            Evidence(
                tables=[f"public.{name}" for name in TABLES],
                partition_counts=PARTITIONS,
                table_records=table_records,
                state=of[TOPICS.state],
                control=of[TOPICS.control],
                progress=of[TOPICS.progress],
                journal=view.journal(self.source.journal()),
                rows=view.rows(self.source.rows()),
            )
        )
        self._count(of, report)
        return report

    def _count(self, of: Mapping[str, Sequence[Record]], report: Report) -> None:
        """What the run had in it."""
        ledger = self.source.ledger()
        sweeps = [record for record in of[TOPICS.control] if record.key.startswith(b"sweep/")]
        had = {
            "half published": any(b'"partial":{' in (record.value or b"") for record in of[TOPICS.state]),
            "dead rows": of[TOPICS.dead_letter],
            "dead events": any(event.is_dead for event in ledger),
            "empty events": any(event.payload == b"" for event in ledger),
            "null events": any(event.payload is None for event in ledger),
            "filled": any(change.filled for change in report.changes),
            "unfilled": any(change.unchanged for change in report.changes),
            "moved": any(op.new and op.old not in (None, op.new[0]) for entry in self.source.log for op in entry.ops),
            "TRUNCATE": len(sweeps) > len(TABLES),
            "read": report.ops["r"],
            "altered": any(op.table == SHAPE for entry in self.source.log for op in entry.ops),
            "followed": any(record.key.startswith(b"schema/") for record in of[TOPICS.control]),
            "debezium": self.format.profile == "debezium",
        }
        self.events.update(name for name, is_there in had.items() if is_there)


def _is_unread(snapshot: SnapshotRecord) -> bool:
    return snapshot.status != "done" or snapshot.owes != ""
