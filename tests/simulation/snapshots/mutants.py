"""Snapshots that are wrong in one place, the published rule among them. Judges must find every one out."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cdc.capture import toast_backfill as backfill
from cdc.capture.toast_backfill import ToastBackfill
from cdc.capture.toast_batch import BatchRecord, DraftRecord, ToastBatch, _Outcome, _Row, _Rows
from cdc.model.control import SnapshotRecord
from cdc.model.events import TableId, TableSchema, pack_version
from cdc.model.lsn import Lsn
from cdc.model.seq import SeqCounter
from cdc.model.topic_record import TopicRecord
from cdc.ports.chunk_reader import Answer, KeysRead, LookedUp, Lookup, TableDescribed, TopicRequest
from cdc.ports.row_reader import TopicKey, Unfilled
from cdc.ports.stream import WhileWaiting
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.absent_keys import AbsentKeys
from cdc.snapshots.change_memory import ChangeMemory, Unseen
from cdc.snapshots.chunk_engine import SnapshotEngine
from cdc.snapshots.chunk_records import ChunkPosition, RowRecords
from cdc.snapshots.jobs import SnapshotJob
from cdc.snapshots.ranges import OpenRequest, Range, WatermarkedAnswer
from cdc.snapshots.sweeps import Sweeps
from tests.simulation.snapshots.rows import RowReader
from tests.simulation.snapshots.run import Parts, Run, UnseenRule
from tests.simulation.snapshots.source import SCHEMAS

_NAMES = {schema.topic: name for name, schema in SCHEMAS.items()}


# ---- rules


def between_the_marks(run: Run) -> UnseenRule:
    """DBLog as published: a row is dropped if its key was touched by what is in the log between the low watermark,
    written just before the SELECT, and the high one."""

    def unseen(_: ChangeMemory, topic: str, snapshot: TransactionSnapshot) -> Unseen:
        ops = [
            op
            for entry in run.source.log
            if run.reader.lows[id(snapshot)][1] <= entry.commit_lsn <= run.received_lsn
            for op in entry.ops
            if op.table == _NAMES[topic]
        ]
        keys = {key for op in ops for key in (op.old, op.new and op.new[0]) if key is not None}
        return Unseen(False, any(op.is_truncate for op in ops), {b'{"id":%d}' % key for key in keys}.__contains__)

    return unseen


def without_reading_again(_: Run) -> UnseenRule:
    return lambda memory, topic, snapshot: replace(ChangeMemory.unseen(memory, topic, snapshot), is_forgotten=False)


def by_the_low_bits(_: Run) -> UnseenRule:
    """Transaction ids compared as they come, across the wrap-around."""

    class Low(TransactionSnapshot):
        def sees(self, xid: int) -> bool:
            xmin, xmax, *running = (full % (1 << 32) for full in (self.xmin, self.xmax, *self.in_progress))
            return xid < xmin or (xid < xmax and xid not in running)

    return lambda memory, topic, s: ChangeMemory.unseen(memory, topic, Low(s.xmin, s.xmax, s.in_progress))


def of_new_keys_only(run: Run) -> UnseenRule:
    """A moved or deleted row's old key is not looked at."""

    def unseen(memory: ChangeMemory, topic: str, snapshot: TransactionSnapshot) -> Unseen:
        found = ChangeMemory.unseen(memory, topic, snapshot)
        new = {
            b'{"id":%d}' % op.new[0]
            for entry in run.source.log
            if not snapshot.sees(entry.xid)
            for op in entry.ops
            if op.table == _NAMES[topic] and op.new is not None
        }
        return replace(found, touched=lambda key: key in new and found.touched(key))

    return unseen


# ---- engines


class DeafToTruncate(SnapshotEngine):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.memory.truncate = lambda topic: None  # type: ignore[method-assign] # noqa: ARG005


class FloorAtTheMark(SnapshotEngine):
    """The naive floor: where the snapshot of the table began."""

    def _on_described(self, job: SnapshotJob, described: WatermarkedAnswer | None, seq: SeqCounter) -> None:
        if job.sweeps and job.floor is None:
            job.floor = pack_version(self.sweeps.epoch, seq.next)
        super()._on_described(job, described, seq)


class FloorFixedTooEarly(SnapshotEngine):
    """When its transaction snapshot is answered, from what was received by then."""

    def take(self, answers: Sequence[Answer], now: float) -> None:
        for answer in answers:
            if isinstance(answer, TableDescribed) and answer.nonce in self._open:
                job = self._open[answer.nonce][0]
                job.early = self.memory.lowest_unseen_seq(job.schema.topic, answer.snapshot)  # type: ignore[attr-defined]
        super().take(answers, now)

    def _on_described(self, job: SnapshotJob, described: WatermarkedAnswer | None, seq: SeqCounter) -> None:
        early: int | None = job.early  # type: ignore[attr-defined]
        if job.sweeps and job.floor is None:
            job.floor = pack_version(self.sweeps.epoch, seq.next if early is None else early)
        super()._on_described(job, described, seq)


class ForgetsWhatTheNewestSees(SnapshotEngine):
    """Not what every chunk sees that is still to be merged."""

    def _prune(self) -> None:
        if self._latest_snapshot is not None:
            self.memory.forget_seen_by([self._latest_snapshot])
            self.memory._is_too_old = lambda snapshot: False  # type: ignore[method-assign] # noqa: ARG005


class ForgetsAtEachChunk(SnapshotEngine):
    def _prune(self) -> None:
        self.memory.clear()


class MergesInAnyOrder(SnapshotEngine):
    """A range's chunks as their marks come: the cursor passes rows that are not published."""

    def end(self, commit_lsn: Lsn, seq: SeqCounter, now_us: int) -> list[TopicRecord]:
        for nonce in self._watermarks:
            _, part, chunk = self._open.get(nonce, (None, None, None))
            if part is not None and chunk is not None:
                part.open.remove(chunk)
                part.open.insert(0, chunk)
        return super().end(commit_lsn, seq, now_us)


class KeepsTheBarrier(SnapshotEngine):
    """The first one covers all snapshots of the session, also after nothing was remembered for a while."""

    def _settle(self) -> None:
        passed, barrier = self._latest_snapshot, self._barrier
        super()._settle()
        self._latest_snapshot, self._barrier = passed, barrier


class DeletesWhatWasTouched(SnapshotEngine):
    """A row that the lookup does not see yet is taken for gone."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._row_records = _OfAllAbsent(arguments["row_records"]._context)

    def _read_keys(self, job: SnapshotJob, absent: AbsentKeys) -> TopicRequest:
        page = super()._read_keys(job, absent)
        absent.since = None
        return page


class _OfAllAbsent(RowRecords):
    def of_absent(
        self, schema: TableSchema, absent: tuple[bytes, ...], unseen: Unseen, at: ChunkPosition
    ) -> tuple[list[TopicRecord], int]:
        return super().of_absent(schema, absent, replace(unseen, is_truncated=False, touched=lambda _: False), at)


class DeletesWhatMeetsNoCondition(SnapshotEngine):
    """Rows of the source that the snapshot's condition leaves out are taken for gone."""

    def _merge(self, job: SnapshotJob, part: Range | AbsentKeys, chunk: OpenRequest, *rest: Any) -> None:
        read = chunk.answer
        if job.where and isinstance(read, LookedUp) and isinstance(chunk.request, Lookup):
            odd = tuple(key for key in chunk.request.keys if json.loads(key)["id"] % 2)
            chunk.answer = replace(read, absent=(*read.absent, *(key for key in odd if key not in read.absent)))
        super()._merge(job, part, chunk, *rest)


class LooksForNothing(SnapshotEngine):
    def _take_keys(self, answer: KeysRead) -> None:
        super()._take_keys(replace(answer, keys=()))


# ---- large values


class SeesEverything(RowReader):
    """What is read counts at once, seen or not."""

    def snapshot(self) -> TransactionSnapshot:
        now = super().snapshot()
        return TransactionSnapshot(now.xmax + 1_000, now.xmax + 1_000, frozenset())


class TakesFromFormerLives(ToastBatch):
    """A row that moved to a key takes what was there before."""

    def _follow(self, i: int, outcome: _Outcome | None, rows: _Rows) -> None:
        former = dict(rows.by_place)
        super()._follow(i, outcome, rows)
        rows.by_place = former | rows.by_place

    @staticmethod
    def _before(_: DraftRecord, key: TopicKey, rows: _Rows) -> _Row | None:
        return rows.by_place.get(key)


class FillsFromFormerLives(ToastBackfill):
    def fill(self, records: Sequence[BatchRecord], while_waiting: WhileWaiting) -> Iterator[Sequence[TopicRecord]]:
        with patch.object(backfill, "ToastBatch", TakesFromFormerLives):
            yield from super().fill(records, while_waiting)


class CompletesAtOnce(SnapshotEngine):
    """Without waiting until the transaction that left the hole is seen."""

    def complete(self, rows: Sequence[Unfilled]) -> list[TopicRecord]:
        noted = super().complete(rows)
        for job in self._completions.values():
            job._noted = dict.fromkeys(job._noted)
        return noted


# ---- what is owed


class AnotherSnapshotPays(SnapshotEngine):
    """A snapshot takes over nothing from the one that it replaces."""

    def add(self, record: SnapshotRecord) -> list[TopicRecord]:
        if (before := self.jobs.get(record.table)) is not None:
            before.owes = ""
        return super().add(record)


class EveryEndPays(SnapshotEngine):
    """A snapshot of a part clears what is owed, or one that is cancelled."""

    def owed(self) -> dict[TableId, str]:
        ended = {job.schema.table for job in self.jobs.values() if job.is_ended}
        return {table: why for table, why in super().owed().items() if table not in ended}


class HolesAreNotOwed(SnapshotEngine):
    def owed(self) -> dict[TableId, str]:
        return {job.schema.table: job.owed for job in self.jobs.values() if job.owed}


class FallingFloors(Sweeps):
    def record(self, table: TableId, floor: int, commit_lsn: int) -> TopicRecord:
        self._floors.pop(table, None)
        return super().record(table, floor, commit_lsn)


MUTANTS: dict[str, Parts] = {
    "drops what was touched between the marks": Parts(unseen_rule=between_the_marks),
    "publishes though keys were forgotten": Parts(unseen_rule=without_reading_again),
    "compares the low bits of transaction ids": Parts(unseen_rule=by_the_low_bits),
    "does not look at old keys": Parts(unseen_rule=of_new_keys_only),
    "does not wait at fences": Parts(waits_at_barriers=False),
    "waits at the first fence only": Parts(engine=KeepsTheBarrier),
    "is deaf to TRUNCATE": Parts(engine=DeafToTruncate),
    "sweeps up to the mark of the beginning": Parts(engine=FloorAtTheMark),
    "fixes the floor when the beginning is read": Parts(engine=FloorFixedTooEarly),
    "forgets what the newest snapshot sees": Parts(engine=ForgetsWhatTheNewestSees),
    "forgets at each chunk": Parts(engine=ForgetsAtEachChunk),
    "merges in any order": Parts(engine=MergesInAnyOrder),
    "lets floors fall": Parts(sweeps=FallingFloors),
    "deletes what the lookup does not see yet": Parts(engine=DeletesWhatWasTouched),
    "deletes what does not meet the condition": Parts(engine=DeletesWhatMeetsNoCondition),
    "does not look for what vanished": Parts(engine=LooksForNothing),
    "takes what was read before it is seen": Parts(row_reader=SeesEverything),
    "takes large values from former lives": Parts(backfill=FillsFromFormerLives),
    "completes rows before they are seen": Parts(engine=CompletesAtOnce),
    "notes no holes": Parts(notes_holes=False),
    "takes over nothing that is owed": Parts(engine=AnotherSnapshotPays),
    "takes any end for all rows": Parts(engine=EveryEndPays),
    "does not count incomplete rows as owed": Parts(engine=HolesAreNotOwed),
}
