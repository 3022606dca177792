"""Chunks beside the stream: DBLog's idea (Andreakis and Papapanagiotou, 2020) with the rule that PostgreSQL needs.

A chunk is read in its own short transaction; then its watermark is written into the log. When the watermark comes back
through the stream, the chunk's rows are published, with two exceptions:

- a row whose key was touched by a transaction that was received and that the chunk's snapshot does not see: what was
  published for it is newer. (The published rule drops what was touched between two watermarks. That is not enough: a
  commit is in the log before it is visible, so an event from *before* the first watermark can be newer than the row.)
- all of them, when so many keys were touched that some were forgotten: the chunk is read again.

What was received before this process remembered anything is covered by a transaction barrier: no chunk is read until
every transaction that ran then has ended, so that all snapshots see it. Pure: time, answers and watermarks are
arguments.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from cdc.config.settings import SnapshotConfig
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
    Request,
    TableDescribed,
    TransactionBarrier,
)
from cdc.ports.row_reader import Unfilled
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.records.control import SnapshotRecord
from cdc.snapshots.absent_keys import AbsentKeys
from cdc.snapshots.change_memory import ChangeMemory
from cdc.snapshots.chunk_records import ChunkPosition, RowRecords
from cdc.snapshots.completion import Completions
from cdc.snapshots.jobs import STATUSES_BEFORE, Job
from cdc.snapshots.ranges import AHEAD_MAX, RETRY_S, OpenChunk, Range
from cdc.snapshots.recorded import RecordedSnapshots
from cdc.snapshots.sweeps import Sweeps
from cdc.snapshots.tombstones import Tombstones

log = structlog.get_logger(__name__)


class SnapshotEngine:
    """All tables' snapshots of one session. Told of the stream by the assembler, of answers by the loop."""

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
        """`schemas`: of the captured tables. `recorded`: None where nothing is."""
        recorded = recorded or RecordedSnapshots()
        self._topics = sweeps.topics
        self._epoch = sweeps.epoch
        self._schemas = {schema.table: schema for schema in schemas}
        self._row_records = row_records
        self._sweeps = sweeps
        self._limits = limits
        self._new_nonce = new_nonce
        self._memory = ChangeMemory() if memory is None else memory
        self.jobs: dict[TableId, Job] = {}
        for record in sorted(recorded.records, key=lambda record: record.requested_us):
            if record.table in self._schemas:
                self.jobs[record.table] = Job(record, self._schemas[record.table])
        self._completions = recorded.completions or Completions(self._schemas.values())
        self._barrier: str | None = None  # nonce of the barrier that is asked for
        self._barrier_not_before = 0.0
        self._passed: TransactionSnapshot | None = None  # newest snapshot known since the barrier was passed
        self._begun: dict[str, tuple[Job, TransactionSnapshot, TableDescribed | None]] = {}  # the answer's is not older
        self._chunks: dict[str, tuple[Job, Range | AbsentKeys, OpenChunk]] = {}
        self.tombstones = Tombstones(self._schemas, sweeps, recorded.tombstones)
        self._watermarks: list[str] = []  # nonces of the transaction that is being received
        self._row_count = 0  # published by the transaction that is being received: they count as its changes
        self._unsaid: list[Job] = []  # that have ended outside of a transaction, and whose records are to be written
        self._next_chunk_at = self._now = 0.0
        self._settle()

    @property
    def is_active(self) -> bool:
        """Whether some table's rows are still to be published. While none is, nothing is remembered."""
        return self._is_active

    @property
    def tables(self) -> Mapping[TableId, TableSchema]:
        """What is captured."""
        return self._schemas

    # ---- the stream, as the assembler receives it

    def begin(self, xid: int, next_seq: int) -> bool:
        """A transaction; its first row record will have `next_seq`. Whether `touch` is to be called."""
        return self._is_active and self._memory.begin(xid, next_seq)

    def touch(self, topic: str, key: bytes) -> None:
        """One of its records."""
        self._memory.touch(topic, key)

    def truncate(self, topic: str) -> None:
        self._memory.truncate(topic)

    def watermark(self, content: bytes) -> None:
        """One of its logical messages. Watermarks of others, and our own of earlier sessions, mean nothing."""
        nonce = content.decode("ascii", "replace")
        if nonce in self._chunks or nonce in self._begun:
            self._watermarks.append(nonce)

    def end(self, commit_lsn: Lsn, seq: SeqCounter, now_us: int) -> list[TopicRecord]:
        """The transaction was received whole. Returns what its watermarks publish, numbered by `seq`: rows are as the
        chunk's snapshot saw them, and count as changes of this transaction."""
        self._memory.end()
        records: list[TopicRecord] = []
        if not self._watermarks:
            return records
        for nonce in self._watermarks:
            if nonce in self._begun:
                job, _, begun = self._begun.pop(nonce)
                self._look(job, begun, seq)
                if self._is_done(job):
                    records += job.state(self._topics)
            elif nonce in self._chunks:
                job, part, chunk = self._chunks[nonce]
                chunk.has_watermark = True
                # Watermarks of one range may come in another order: the later chunk waits for the earlier one.
                while part.open and part.open[0].has_watermark:
                    self._merge(job, part, part.open[0], commit_lsn, seq, now_us, records)
        self._prune()
        self._watermarks.clear()
        self._row_count = 0
        self._settle()
        return records

    # ---- the reader

    def take(self, answers: Sequence[Answer], now: float) -> None:
        """What the reader answered. `now`: monotonic seconds."""
        self._now = now
        for answer in answers:
            match answer:
                case BarrierPassed():
                    if answer.nonce == self._barrier:
                        self._passed = answer.snapshot
                        log.info("snapshots begin", tables=sum(job.is_active for job in self._all_jobs()))
                case TableDescribed():
                    if answer.nonce in self._begun:
                        self._begun[answer.nonce] = (*self._begun[answer.nonce][:2], answer)
                case ChunkRead() | LookedUp():
                    if answer.nonce in self._chunks:
                        self._chunks[answer.nonce][2].read = answer
                        self._see(answer.snapshot)
                case KeysRead():
                    self._take_keys(answer)
                case ReadFailed():
                    self._failed(answer)
        if answers:
            self._prune()

    def requests(self, now: float, *, is_behind: bool) -> list[Request | KeyPage]:
        """What to read next. `is_behind`: the stream comes first."""
        self._now = now
        if (replaced := self.tombstones.begin()) is not None:
            self._give_up(replaced)
            self._settle()
        if not self.is_active:
            return []
        if self._barrier is None:
            if now < self._barrier_not_before:
                return []
            # What is received from now on is remembered; the reader looks at what runs after it was asked.
            self._barrier = self._new_nonce()
            return [TransactionBarrier(self._barrier)]
        if self._passed is None:
            return []
        wanted: list[Request | KeyPage] = []
        reading = sum(chunk.read is None for _, _, chunk in self._chunks.values())
        scans = [job.absent for job in self._all_jobs() if job.is_active and job.absent is not None]
        for job in self._all_jobs():
            if not job.is_active or now < job.not_before:
                continue
            if job.fingerprint is None:
                if job.begin is None:
                    wanted.append(self._ask_to_begin(job))
                continue
            if job.absent is not None and not is_behind and job.absent.wants_page(now, scans):
                wanted.append(self._ask_for_keys(job, job.absent))
            for part in job.parts:
                is_full = reading >= self._limits.workers or len(self._chunks) >= self._limits.workers * AHEAD_MAX
                if is_behind or is_full or now < self._next_chunk_at:
                    return wanted
                if part.wants(now):
                    wanted.append(
                        self._ask_for_chunk(job, part) if isinstance(part, Range) else self._ask_to_look_up(job, part)
                    )
                    reading += 1
        return wanted

    def complete(self, rows: Sequence[Unfilled]) -> list[TopicRecord]:
        """Rows went out with holes: they are to be read again. What is to be produced in the same Kafka transaction."""
        noted = self._completions.note(rows)
        self._give_up(job for job in noted if job.is_too_long)
        self._settle()
        return [record for job in noted for record in job.state(self._topics)]

    def republish(self, table: TableId, keys: Mapping[Key, bytes]) -> list[TopicRecord]:
        """Publish rows of these keys again, and deletes of those without a row. Nothing while earlier ones wait."""
        jobs = [] if table in self._completions.jobs else [self._completions.ask(table, keys)]
        self._settle()
        return [record for job in jobs for record in job.state(self._topics)]

    def endings(self) -> list[TopicRecord]:
        """Records of those that have failed, or found nothing more to do, since the last call."""
        unsaid, self._unsaid = self._unsaid, []
        return [record for job in unsaid for record in job.state(self._topics)]

    @property
    def waits_for(self) -> str:
        """Why nothing is read yet."""
        return "" if self._passed or not self.is_active else "transactions that began earlier"

    def alter(self, schema: TableSchema) -> None:
        """The table has another shape from here on."""
        self._schemas[schema.table] = schema
        self._completions.alter(schema)
        for job in self._all_jobs():
            if job.schema.table == schema.table:
                self._give_up([job])
                job.alter(schema)

    # ---- operators

    def add(self, record: SnapshotRecord) -> list[TopicRecord]:
        """Begin a table's snapshot, or restart it. Raises KeyError for a table that is not captured."""
        schema = self._schemas[record.table]
        if record.table in self.jobs:
            self._give_up([self.jobs[record.table]])
            self._settle()
        self.jobs[record.table] = job = Job(record, schema)
        self._settle()
        return job.state(self._topics)

    def set_status(self, table: TableId, status: str) -> list[TopicRecord]:
        """Pause, resume (`running`) or cancel it. Nothing when that changes nothing."""
        job = self.jobs.get(table)
        if job is None or job.status not in STATUSES_BEFORE[status]:
            return []
        self._give_up([job])
        record = job.record().model_copy(update={"status": status, "message": ""})
        self.jobs[table] = job = Job(record, job.schema)
        self._settle()
        return job.state(self._topics)

    # ---- inside

    def _ask_to_begin(self, job: Job) -> DescribeTable:
        assert self._passed is not None
        job.begin = self._new_nonce()
        self._begun[job.begin] = (job, self._passed, None)
        return DescribeTable(job.begin, job.schema, self._limits.workers if job.splits else 1)

    def _ask_for_chunk(self, job: Job, part: Range) -> Chunk:
        assert job.fingerprint is not None
        request = Chunk(
            nonce=self._new_nonce(),
            schema=job.schema,
            fingerprint=job.fingerprint,
            after=part.next_after,
            up_to=part.up_to,
            where=job.where,
            rows_max=part.rows_max,
            bytes_max=self._limits.chunk_bytes_max,
            keys=part.keys,
        )
        self._open(job, part, request)
        if self._limits.rows_per_s_max is not None:
            self._next_chunk_at = max(self._next_chunk_at, self._now) + request.rows_max / self._limits.rows_per_s_max
        return request

    def _ask_to_look_up(self, job: Job, absent: AbsentKeys) -> Lookup:
        assert job.fingerprint is not None
        keys = absent.pages.popleft() if absent.pages else ()
        request = Lookup(self._new_nonce(), job.schema, job.fingerprint, keys, absent.after, absent.up_to)
        absent.looked_at = self._now
        self._open(job, absent, request)
        return request

    def _open(self, job: Job, part: Range | AbsentKeys, request: Chunk | Lookup) -> None:
        assert self._passed is not None
        chunk = OpenChunk(request, since=self._passed, asked_at=self._now)
        part.open.append(chunk)
        self._chunks[request.nonce] = (job, part, chunk)

    def _ask_for_keys(self, job: Job, absent: AbsentKeys) -> KeyPage:
        if absent.scan is None:
            absent.scan, absent.looked_at = self._new_nonce(), self._now
            absent.since = self._memory.watch(job.schema.topic)
        absent.page = self._new_nonce()
        return KeyPage(absent.page, absent.scan, job.schema.topic, absent.below)

    def _take_keys(self, answer: KeysRead) -> None:
        if (job := self._scanning(answer.nonce)) is not None and job.absent is not None:
            job.absent.came(answer)
            if self._is_done(job):
                self._unsaid.append(job)
                self._settle()

    def _scanning(self, nonce: str) -> Job | None:
        """Who waits for this page."""
        return next((job for job in self._all_jobs() if job.absent is not None and job.absent.page == nonce), None)

    def _see(self, snapshot: TransactionSnapshot) -> None:
        assert self._passed is not None
        self._passed = max(self._passed, snapshot, key=TransactionSnapshot.order)

    def _failed(self, failure: ReadFailed) -> None:
        if failure.nonce == self._barrier:
            self._barrier, self._barrier_not_before = None, self._now + RETRY_S  # a later look is as good
            return
        if failure.nonce in self._begun:
            job: Job | None = self._begun.pop(failure.nonce)[0]
        elif failure.nonce in self._chunks:
            job = self._chunks[failure.nonce][0]
        else:
            job = self._scanning(failure.nonce)
            if job is not None and job.absent is not None:
                job.absent.scan_failed(self._now)
        if job is None:
            return
        self._give_up([job])
        if failure.is_permanent:
            job.status, job.message = "failed", failure.error.message
            self._unsaid.append(job)
            self._settle()
            log.error("snapshot failed", table=job.table, error=failure.error.message, next=failure.error.hint)
        else:
            job.failed(failure.error.message, self._now)

    def _look(self, job: Job, begun: TableDescribed | None, seq: SeqCounter) -> None:
        """The watermark of a table's beginning was received."""
        assert begun is not None, "the answer is there before its mark is written"
        job.begin = None
        self._see(begun.snapshot)
        if not job.may_begin(begun.snapshot, self._now):
            return
        if job.sweeps and job.floor is None:
            job.fix_floor(self._epoch, seq.next, self._memory.lowest_unseen_seq(job.schema.topic, begun.snapshot))
        if not job.look(begun, (self._limits.chunk_rows_max, self._limits.chunk_bytes_max)):
            log.warning("the key's index has another order now, reading all rows again", table=job.table)
        job.look_for_absent()

    def _merge(
        self,
        job: Job,
        part: Range | AbsentKeys,
        chunk: OpenChunk,
        commit_lsn: Lsn,
        seq: SeqCounter,
        now_us: int,
        records: list[TopicRecord],
    ) -> None:
        read = chunk.read
        assert read is not None, "the answer is there before its mark is written"
        unseen = self._memory.unseen(job.schema.topic, read.snapshot)
        if unseen.is_forgotten:
            log.info("too much happened meanwhile, reading a chunk again", table=job.table)
            self._forget_chunks(part.rewind(self._now))
            return
        del self._chunks[chunk.request.nonce]
        position = ChunkPosition(commit_lsn, self._row_count, seq.next, now_us)
        if isinstance(read, ChunkRead):
            assert isinstance(part, Range)
            made = self._row_records.of_chunk(job.schema, read, unseen, position)
            count = len(made)
            job.rows += count
            waited_s = self._now - chunk.asked_at - read.seconds
            part.size.took(len(read.lines), sum(map(len, read.lines)), read.seconds, waited_s)
        else:
            assert isinstance(part, AbsentKeys)
            made = self._row_records.of_absent(job.schema, part.vanished(read.absent), unseen, position)
            count = len(made) // 2
            job.deleted += count
        records += [*made, *self._row_records.instead()]
        seq.take(count)
        self._row_count += count
        job.merged(part)
        if self._is_done(job) and job.sweeps:
            assert job.floor is not None, "fixed before the first chunk"
            if job.floor > pack_version(self._epoch, seq.last):
                seq.take()  # nothing was published since it was fixed: the version is the sweep's own
            records.append(self._sweeps.record(job.schema.table, job.floor, commit_lsn))
        records += job.state(self._topics)

    def _is_done(self, job: Job) -> bool:
        """Whether there is nothing left to do; then that is its status from now on."""
        if not job.is_complete:
            return False
        job.end()
        self.tombstones.done(job)
        return True

    def _prune(self) -> None:
        """Forget what every chunk that is still to be merged sees. Of a backlog that they see nothing is remembered."""
        if self._passed is not None:
            open_chunks = [chunk.read.snapshot if chunk.read else chunk.since for _, _, chunk in self._chunks.values()]
            begun = [answer.snapshot if answer else since for _, since, answer in self._begun.values()]
            self._memory.forget_seen_by([self._passed, *open_chunks, *begun])

    def _all_jobs(self) -> Iterable[Job]:
        """Rows that lack something first: they are few."""
        return (*self._completions.jobs.values(), *self.jobs.values(), *self.tombstones.jobs.values())

    def _give_up(self, jobs: Iterable[Job]) -> None:
        """What is on its way for them."""
        for job in jobs:
            self._forget_chunks(job.forget(self._now))
            self._begun = {nonce: entry for nonce, entry in self._begun.items() if entry[0] is not job}

    def _forget_chunks(self, chunks: Iterable[OpenChunk]) -> None:
        for chunk in chunks:
            self._chunks.pop(chunk.request.nonce, None)

    def _settle(self) -> None:
        """After each change of a status, so that a transaction need not ask every table. When there is nothing left to
        do, nothing is remembered: what comes later begins with a transaction barrier of its own."""
        self._completions.settle()
        self._is_active = any(job.is_active for job in self._all_jobs())
        if self._barrier is not None and not self._is_active:
            self._memory.clear()
            self._barrier = self._passed = None
            self._begun.clear()
            self._chunks.clear()
