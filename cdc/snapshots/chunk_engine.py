"""Chunks beside the stream: DBLog's algorithm (Andreakis and Papapanagiotou, 2020) with the rule that PostgreSQL needs.

A chunk is read in its own short transaction; then its watermark is written into the log. When the watermark arrives in
the stream, the chunk's rows are published, with two exceptions:

- A row is dropped if its key was touched by a transaction that was received and that the chunk's snapshot does not see:
  the event is newer. (DBLog drops what was touched between two watermarks. That is not enough: a commit is in the log
  before it is visible, so an event from before the first watermark can be newer than the row.)
- The whole chunk is read again if so many keys were touched that some were forgotten.

A transaction barrier covers what was received before this process remembered anything: no chunk is read until every
transaction that ran then has ended, so all snapshots see it. Time, answers and watermarks are arguments.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from cdc.config.settings import SnapshotConfig
from cdc.model.control import IncompleteRowsRecord, SnapshotRecord
from cdc.model.events import TableId, TableSchema, pack_version
from cdc.model.lsn import Lsn
from cdc.model.seq import SeqCounter
from cdc.model.topic_record import TopicRecord
from cdc.ports.chunk_reader import (
    Answer,
    BarrierPassed,
    Chunk,
    ChunkRead,
    DescribeTable,
    Key,
    KeyPage,
    KeysRead,
    LookedUp,
    Lookup,
    ReadFailed,
    ReadTopic,
    Request,
    ScanLostError,
    TableDescribed,
    TopicRead,
    TopicRequest,
    TransactionBarrier,
)
from cdc.ports.row_reader import Unfilled
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.absent_keys import AbsentKeys
from cdc.snapshots.change_memory import ChangeMemory, Unseen, Watch
from cdc.snapshots.chunk_records import ChunkPosition, RowRecords
from cdc.snapshots.completion import CompletionJob
from cdc.snapshots.jobs import STATUSES_BEFORE, SnapshotJob
from cdc.snapshots.ranges import AHEAD_MAX, RETRY_S, OpenRequest, Range, WatermarkedAnswer
from cdc.snapshots.sweeps import Sweeps
from cdc.snapshots.tombstones import TombstoneJobs

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RecordedSnapshots:
    """The records of snapshots in the state topic when a session begins."""

    records: Iterable[SnapshotRecord] = ()  # includes ended ones
    tombstones: Mapping[TableId, int] | None = None  # table → floor up to which they are written; None: not wanted
    incomplete: Iterable[IncompleteRowsRecord] = ()


class SnapshotEngine:
    """The snapshots of all tables in one session. The assembler calls it for the stream, `Snapshots` with
    answers, requests and signals."""

    def __init__(
        self,
        *,
        schemas: Iterable[TableSchema],
        row_records: RowRecords,
        sweeps: Sweeps,
        limits: SnapshotConfig,
        recorded: RecordedSnapshots | None = None,
        memory: ChangeMemory | None = None,
        new_nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """`schemas`: those of the captured tables. `recorded`: None if nothing is recorded."""
        recorded = recorded or RecordedSnapshots()
        self._topics = sweeps.topics
        self.tables = {schema.table: schema for schema in schemas}
        self._row_records = row_records
        self.sweeps = sweeps
        self.limits = limits
        self._new_nonce = new_nonce
        self.memory = ChangeMemory() if memory is None else memory
        oldest_first = sorted(recorded.records, key=lambda record: record.requested_us)
        self.jobs = {r.table: SnapshotJob(r, self.tables[r.table]) for r in oldest_first if r.table in self.tables}
        self._completions = {
            r.table: CompletionJob(self.tables[r.table], r) for r in recorded.incomplete if r.table in self.tables
        }
        self._barrier: str | None = None  # nonce of the requested barrier
        self._barrier_not_before = 0.0
        # The newest known transaction snapshot; None before the barrier is passed
        self._latest_snapshot: TransactionSnapshot | None = None
        # Nonce → job, part, request. Without a part it describes the table.
        self._open: dict[str, tuple[SnapshotJob, Range | AbsentKeys | None, OpenRequest]] = {}
        self.tombstones = TombstoneJobs(self.tables, sweeps, recorded.tombstones)
        self._watermarks: list[str] = []  # nonces of our watermarks in the current transaction
        self._row_count = 0  # rows published in the current transaction; they count as its changes
        self._ended: list[SnapshotJob] = []  # jobs that ended outside of a transaction and are not recorded yet
        self._next_chunk_at = self._now = 0.0
        self.is_active = False  # rows of some table are still to be published; otherwise nothing is remembered
        self._settle()

    # ---- the stream, as the assembler receives it

    def begin(self, xid: int, next_seq: int) -> bool:
        """A transaction begins; its first row record will have seq `next_seq`. Returns whether to tell `memory` of its
        records and TRUNCATEs."""
        return self.is_active and self.memory.begin(xid, next_seq)

    def watermark(self, content: bytes) -> None:
        """Notes a watermark of the current transaction. Those of other processes and earlier sessions are ignored."""
        nonce = content.decode("ascii", "replace")
        if nonce in self._open:
            self._watermarks.append(nonce)

    def end(self, commit_lsn: Lsn, seq: SeqCounter, now_us: int) -> list[TopicRecord]:
        """The transaction was received completely. Returns the records that its watermarks publish, numbered by `seq`:
        rows as of the chunk's snapshot, which count as changes of this transaction."""
        self.memory.end()
        records: list[TopicRecord] = []
        if not self._watermarks:
            return records
        for nonce in self._watermarks:
            if nonce not in self._open:
                continue  # its job was given up by another watermark of this transaction
            job, part, request = self._open[nonce]
            request.has_watermark = True
            if part is None:
                del self._open[nonce]
                self._on_described(job, request.answer, seq)
                if self._is_done(job):
                    records += self._ending(job)
                continue
            # Watermarks of one range may arrive out of order: a later chunk waits for the earlier one.
            while part.open and part.open[0].has_watermark:
                self._merge(job, part, part.open[0], commit_lsn, seq, now_us, records)
        self._prune()
        self._watermarks.clear()
        self._row_count = 0
        self._settle()
        return records

    # ---- the reader

    def take(self, answers: Sequence[Answer], now: float) -> None:
        """Takes the reader's answers. `now`: monotonic seconds."""
        self._now = now
        for answer in answers:
            match answer:
                case BarrierPassed():
                    if answer.nonce == self._barrier:
                        self._latest_snapshot, tables = answer.snapshot, sum(job.is_active for job in self._all_jobs())
                        log.info("transaction barrier passed, snapshots begin", tables=tables)
                case TableDescribed() | ChunkRead() | LookedUp():
                    if answer.nonce in self._open:
                        assert self._latest_snapshot is not None, "nothing is read before the barrier is passed"
                        self._open[answer.nonce][2].answer = answer
                        newer = max(self._latest_snapshot, answer.snapshot, key=TransactionSnapshot.order)
                        self._latest_snapshot = newer
                case KeysRead():
                    self._take_keys(answer)
                case TopicRead():
                    self._take_topic(answer)
                case ReadFailed():
                    self._on_failure(answer)
        if answers:
            self._prune()

    def requests(self, now: float, *, is_behind: bool) -> list[Request | TopicRequest]:
        """Returns the next requests to the readers. `is_behind`: no chunks, because the stream has priority."""
        self._now = now
        if self.tombstones.due:
            self._give_up(self.tombstones.begin())
            self._settle()
        if not self.is_active:
            return []
        if self._barrier is None:
            if now < self._barrier_not_before:
                return []
            # From now on changes are remembered; the reader lists the running transactions after this request.
            self._barrier = self._new_nonce()
            return [TransactionBarrier(self._barrier)]
        if self._latest_snapshot is None:
            return []
        wanted: list[Request | TopicRequest] = []
        described = {job for job, part, _ in self._open.values() if part is None}
        chunks = [request for _, part, request in self._open.values() if part is not None]
        count, reading = len(chunks), sum(request.answer is None for request in chunks)
        scans = [job.absent for job in self._all_jobs() if job.is_active and job.absent is not None]
        for job in self._all_jobs():
            if not job.is_active or now < job.not_before:
                continue
            if job.fingerprint is None:
                if job not in described:
                    wanted.append(self._describe_table(job))
                continue
            if job.absent is not None and not is_behind and job.wants_topic(now, scans):
                wanted.append(self._read_keys(job, job.absent))
            for part in job.parts:
                is_full = reading >= self.limits.workers or count >= self.limits.workers * AHEAD_MAX
                if is_behind or is_full or now < self._next_chunk_at:
                    return wanted
                if part.wants(now):
                    if isinstance(part, Range):
                        wanted.append(self._read_chunk(job, part))
                    else:
                        wanted.append(self._look_up_keys(job, part))
                    count, reading = count + 1, reading + 1
        return wanted

    def complete(self, rows: Sequence[Unfilled]) -> list[TopicRecord]:
        """Notes rows that lack columns, to be read again. Returns records for the same Kafka transaction."""
        noted: dict[TableId, CompletionJob] = {}
        for row in rows:
            job = noted[row.schema.table] = self._completion(row.schema.table)
            job.note(row.key, row.xid)
        self._give_up(job for job in noted.values() if job.is_too_long)
        self._settle()
        return [record for job in noted.values() for record in job.state(self._topics)]

    def republish(self, table: TableId, keys: Mapping[Key, bytes]) -> list[TopicRecord]:
        """Publish rows of these keys again, and deletes of those without a row. Nothing while earlier ones wait."""
        if table in self._completions:
            return []
        job = self._completion(table)
        job.ask(keys)
        self._settle()
        return job.state(self._topics)

    def _completion(self, table: TableId) -> CompletionJob:
        if table not in self._completions:
            self._completions[table] = CompletionJob(self.tables[table])
        return self._completions[table]

    def endings(self) -> list[TopicRecord]:
        """Returns the records of jobs that failed or had nothing more to do since the last call."""
        records = [record for job in self._ended for record in self._ending(job)]
        self._ended.clear()
        return records

    def owed(self) -> dict[TableId, str]:
        """Returns the tables whose topics may lack committed rows that were received, each with the reason in words."""
        return {
            job.schema.table: why for job in (*self._completions.values(), *self.jobs.values()) if (why := job.owed)
        }

    @property
    def waits_for(self) -> str:
        """The reason why nothing is read yet; "" if nothing is waited for."""
        return "" if self._latest_snapshot or not self.is_active else "transactions that began earlier"

    def alter(self, schema: TableSchema) -> None:
        """The table has this schema from here on."""
        self.tables[schema.table] = schema
        for job in self._all_jobs():
            if job.schema.table == schema.table:
                self._give_up([job])
                job.alter(schema)

    # ---- operators

    def add(self, record: SnapshotRecord) -> list[TopicRecord]:
        """Begins a table's snapshot, or restarts it; it takes over what the previous one owes. Raises KeyError for a
        table that is not captured."""
        schema = self.tables[record.table]
        if (before := self.jobs.get(record.table)) is not None:
            self._give_up([before])
            record = record.model_copy(update={"owes": record.owes or before.owes})
        self.jobs[record.table] = job = SnapshotJob(record, schema)
        self._settle()
        return job.state(self._topics)

    def set_status(self, table: TableId, status: str) -> list[TopicRecord]:
        """Pauses, resumes (`running`) or cancels a snapshot. Returns its records; none if that changes nothing."""
        job = self.jobs.get(table)
        if job is None or job.status not in STATUSES_BEFORE[status]:
            return []
        self._give_up([job])
        record = job.record().model_copy(update={"status": status, "message": ""})
        self.jobs[table] = job = SnapshotJob(record, job.schema)
        self._settle()
        return job.state(self._topics)

    # ---- inside

    def _describe_table(self, job: SnapshotJob) -> DescribeTable:
        request = DescribeTable(self._new_nonce(), job.schema, self.limits.workers if job.splits else 1)
        self._note_open(job, None, request)
        return request

    def _read_chunk(self, job: SnapshotJob, part: Range) -> Chunk:
        assert job.fingerprint is not None
        request = Chunk(
            nonce=self._new_nonce(),
            schema=job.schema,
            fingerprint=job.fingerprint,
            after=part.next_after,
            up_to=part.record.up_to,
            where=job.where,
            rows_max=part.rows_max,
            bytes_max=self.limits.chunk_bytes_max,
            keys=part.record.keys,
            compared_with=job.absent.scan if job.absent is not None and job.compares else None,
        )
        self._note_open(job, part, request)
        if self.limits.rows_per_s_max is not None:
            self._next_chunk_at = max(self._next_chunk_at, self._now) + request.rows_max / self.limits.rows_per_s_max
        return request

    def _look_up_keys(self, job: SnapshotJob, absent: AbsentKeys) -> Lookup:
        assert job.fingerprint is not None
        keys = absent.pages.popleft() if absent.pages else ()
        request = Lookup(self._new_nonce(), job.schema, job.fingerprint, keys, absent.after, absent.up_to)
        absent.looked_up_at = self._now
        self._note_open(job, absent, request)
        return request

    def _note_open(
        self, job: SnapshotJob, part: Range | AbsentKeys | None, request: DescribeTable | Chunk | Lookup
    ) -> None:
        assert self._latest_snapshot is not None
        opened = OpenRequest(request, since=self._latest_snapshot, asked_at=self._now)
        self._open[request.nonce] = job, part, opened
        if part is not None:
            part.open.append(opened)

    def _read_keys(self, job: SnapshotJob, absent: AbsentKeys) -> TopicRequest:
        if absent.scan is None:
            absent.scan, absent.looked_up_at = self._new_nonce(), self._now
            absent.since = self.memory.watch(job.schema.topic)
        absent.page = self._new_nonce()
        if absent.compares and not absent.is_read:
            return ReadTopic(absent.page, absent.scan, job.schema, self.sweeps.floor(job.schema.table))
        return KeyPage(absent.page, absent.scan, job.schema.topic, absent.below)

    def _take_keys(self, answer: KeysRead) -> None:
        if (job := self._scanning(answer.nonce)) is not None and job.absent is not None:
            job.absent.take_page(answer)
            if self._is_done(job):
                self._ended.append(job)
                self._settle()

    def _take_topic(self, answer: TopicRead) -> None:
        if (job := self._scanning(answer.nonce)) is not None and job.absent is not None:
            job.absent.page, job.absent.is_read = None, True
            log.info("topic read, its rows are compared with the table's", table=job.table, rows=answer.rows)

    def _scanning(self, nonce: str) -> SnapshotJob | None:
        """Returns the job that waits for this page."""
        return next((job for job in self._all_jobs() if job.absent is not None and job.absent.page == nonce), None)

    def _on_failure(self, failure: ReadFailed) -> None:
        if failure.nonce == self._barrier:
            self._barrier, self._barrier_not_before = None, self._now + RETRY_S  # another barrier serves as well
            return
        if failure.nonce in self._open:
            job: SnapshotJob | None = self._open[failure.nonce][0]
            is_scan_lost = isinstance(failure.error, ScanLostError)
        else:
            job, is_scan_lost = self._scanning(failure.nonce), True
        if job is None:
            return
        if job.absent is not None and is_scan_lost:
            job.absent.scan_failed(self._now)
        self._give_up([job])
        if failure.is_permanent:
            job.status, job.message = "failed", failure.error.message
            self._ended.append(job)
            self._settle()
            log.error("snapshot failed", table=job.table, error=failure.error.message, next=failure.error.hint)
        else:
            job.failed(failure.error.message, self._now)

    def _on_described(self, job: SnapshotJob, described: WatermarkedAnswer | None, seq: SeqCounter) -> None:
        """The watermark behind a table's description was received."""
        assert isinstance(described, TableDescribed), "the answer is there before its watermark is written"
        if not job.may_begin(described.snapshot, self._now):
            return
        unseen = self.memory.lowest_unseen_seq(job.schema.topic, described.snapshot)
        if job.sweeps and job.floor is None:
            job.fix_floor(self.sweeps.epoch, seq.next, unseen)
        if job.unpublished is None:
            # A chunk's row is dropped in favour of a change that it does not see, also of one that was left out.
            job.unpublished = 0 if unseen is not None else self._row_records.unpublished(job.schema.table)
        job.take_description(described, (self.limits.chunk_rows_max, self.limits.chunk_bytes_max))
        job.look_for_absent()

    def _merge(
        self,
        job: SnapshotJob,
        part: Range | AbsentKeys,
        chunk: OpenRequest,
        commit_lsn: Lsn,
        seq: SeqCounter,
        now_us: int,
        records: list[TopicRecord],
    ) -> None:
        read = chunk.answer
        assert read is not None, "the answer is there before its watermark is written"
        unseen = self.memory.unseen(job.schema.topic, read.snapshot)
        if unseen.is_forgotten:
            log.info("too many keys changed meanwhile: a chunk is read again", table=job.table)
            part.rewind(self._now)
            self._open = {nonce: entry for nonce, entry in self._open.items() if entry[1] is not part}
            return
        del self._open[chunk.request.nonce]
        position = ChunkPosition(commit_lsn, self._row_count, seq.next, now_us)
        if isinstance(read, ChunkRead):
            assert isinstance(part, Range)
            since = job.absent.since if job.absent is not None and job.compares else None
            made, count = self._row_records.of_chunk(job.schema, read, _or_published(unseen, since), position)
            job.rows += count
            rows, size = read.compared or (len(read.lines), sum(map(len, read.lines)))
            job.compared += rows if job.compares else 0
            waited_s = self._now - chunk.asked_at - read.seconds
            # Rows that are left out delay nobody: smaller chunks would only make more of them.
            part.size.took(rows, size, read.seconds, waited_s * len(read.lines) / max(rows, 1))
        else:
            assert isinstance(part, AbsentKeys) and isinstance(read, LookedUp)
            made, count = self._row_records.of_absent(job.schema, part.vanished(read.absent), unseen, position)
            job.deleted += count
        records += made
        seq.take(count)
        self._row_count += count
        job.merged(part)
        if self._is_done(job) and job.sweeps:
            assert job.floor is not None, "fixed before the first chunk"
            if job.floor > pack_version(self.sweeps.epoch, seq.last):
                seq.take()  # nothing was published since the floor was fixed: the sweep takes a seq of its own
            records.append(self.sweeps.record(job.schema.table, job.floor, commit_lsn))
        records += self._ending(job)

    def _ending(self, job: SnapshotJob) -> list[TopicRecord]:
        """Returns the records of the job's progress. If it is done and has read all rows, those of changes that were
        left out before are in the topic, or it has left them out again."""
        settled: list[TopicRecord] = []
        if job.status == "done" and job.reads_all and job.unpublished:
            settled = self._row_records.settled(job.schema.table, job.unpublished)
        return [*job.state(self._topics), *settled]

    def _is_done(self, job: SnapshotJob) -> bool:
        """Ends the job if nothing is left to do. Returns whether it is done."""
        if not job.is_complete:
            return False
        job.end()
        return True

    def _prune(self) -> None:
        """Forgets changes that every open chunk sees. Of a backlog that all of them see, nothing is remembered."""
        if self._latest_snapshot is not None:
            in_use = [request.snapshot for _, _, request in self._open.values()]
            self.memory.forget_seen_by([self._latest_snapshot, *in_use])

    def _all_jobs(self) -> Iterable[SnapshotJob]:
        """All jobs; the completion of incomplete rows comes first, since those are few."""
        return (*self._completions.values(), *self.jobs.values(), *self.tombstones.jobs.values())

    def _give_up(self, jobs: Iterable[SnapshotJob]) -> None:
        """Makes the open requests of these jobs void."""
        for job in jobs:
            job.rewind(self._now)
            self._open = {nonce: entry for nonce, entry in self._open.items() if entry[0] is not job}

    def _settle(self) -> None:
        """Recomputes whether a job is active. If none is, nothing is remembered: the next one begins with a barrier."""
        self._completions = {table: job for table, job in self._completions.items() if job.has_rows}
        self.is_active = any(job.is_active for job in self._all_jobs())
        if self._barrier is not None and not self.is_active:
            self.memory.clear()
            self._barrier = self._latest_snapshot = None
            self._open.clear()


def _or_published(unseen: Unseen, since: Watch | None) -> Unseen:
    """Returns the changes that the snapshot does not see, and those since the topic was read, where rows are compared
    with it: if the snapshot sees all changes of a row, the topic has this row from the last of them."""
    if since is None:
        return unseen
    return replace(unseen, touched=lambda key: unseen.touched(key) or key in since.keys)
