"""Snapshots as the capture loop drives them: answers of the reader, requests to it, signals, and progress reports."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from cdc.model.control import (
    NEXT_AFTER_OTHERS,
    REPUBLISHED_MAX,
    RangeRecord,
    ReloadRecord,
    SignalAnswer,
    SignalRecord,
    SnapshotProgress,
    SnapshotRecord,
)
from cdc.model.errors import NEXT_AFTER_STOP, GapError, UnsupportedChangeError, WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.suggestions import did_you_mean
from cdc.model.table_state import TableRecord
from cdc.model.topic_record import TopicRecord
from cdc.ports.chunk_reader import ChunkReader, KeyPage, ReadTopic, Request, TopicRequest
from cdc.ports.stream import Signal, Signals
from cdc.snapshots.chunk_engine import SnapshotEngine
from cdc.snapshots.jobs import SnapshotJob, asked_keys
from cdc.snapshots.signal_answers import Answers, offset_record, refusal

log = structlog.get_logger(__name__)

REPORT_INTERVAL_S: Final = 1.0
SIGNAL_INTERVAL_S: Final = 0.2
NOT_READ: Final = "snapshot.mode is never"
NEXT_PART: Final = (
    "wait until it is done (`cdc snapshot status`), or end it first with `cdc snapshot cancel`: then rows are missing "
    "until a snapshot of all rows is done"
)
_RATE_REPORTS: Final = 10  # number of reports over which the rate is computed

_Effect = tuple[SignalAnswer, list[TopicRecord]]  # of a signal: its answer and other records


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Tables whose rows can't be read beside the stream, or not now."""

    unchunkable: Collection[TableId] = ()  # tables whose rows can be read only before streaming begins
    # Configured tables that are not captured, with the reason why they can't be added now; None: an operator stopped
    # them.
    stopped: Mapping[TableId, WatershedError | None] = field(default_factory=dict)
    outboxes: Collection[TableId] = ()  # outbox tables, whose rows are never read
    uncaptured: Mapping[TableId, str] = field(default_factory=dict)  # configured tables, with the reason in words
    server: tuple[str, str] = ("", "")  # see SourceIdentity.server


class Snapshots:
    """The snapshots of a session, and all signals: they also stop and start tables, and publish rows again."""

    def __init__(
        self,
        engine: SnapshotEngine,
        reader: ChunkReader[Request],
        keys: ChunkReader[TopicRequest],
        signals: Signals,
        answers: Answers,
        restrictions: Restrictions | None = None,
        reload: Callable[[], str] | None = None,
    ) -> None:
        """`reader`: reads the source. `keys`: reads topics. `reload`: reads the configuration file again; returns what
        changes, raises WatershedError."""
        self._reload = reload
        restrictions = restrictions or Restrictions()
        self._outboxes = restrictions.outboxes
        self._stopped = restrictions.stopped
        self._server = restrictions.server
        self.tables_changed = False  # an operator stopped or started tables: a new session is needed
        self._unchunkable = restrictions.unchunkable
        self._engine = engine
        self._reader = reader
        self._keys = keys
        self._signals = signals
        self._answers = answers
        self._topics = engine.sweeps.topics
        self._limits = engine.limits
        self._now_us = 0
        self._reported_at = float("-inf")
        self._signals_at = float("-inf")
        self._reports = _Reports()
        self._pending: list[TopicRecord] = []
        self._uncaptured = {str(table): why for table, why in restrictions.uncaptured.items()}
        # As committed: schema.table → why committed rows may be missing from its topic. Replaced when it changes.
        self.owed = self._owed_now()

    def begin_all(self, request: str, now_us: int) -> None:
        """Reads every table again, except those that are being read or can't be read now."""
        signal = SignalRecord(action="snapshot", requested_us=now_us)
        for table in self._engine.tables:
            if table in self._outboxes:
                continue
            job = self._engine.jobs.get(table)
            if table in self._unchunkable:
                log.warning("rows are not read again: the key has no unique index to read them by", table=str(table))
            elif job is None or job.is_ended:
                self._pending += self._engine.add(requested(request, table, signal))

    def alter(self, schema: TableSchema) -> None:
        """The table has this schema from here on."""
        self._engine.alter(schema)

    def reread(self, table: TableId, why: str) -> list[TopicRecord]:
        """Reads all rows of a table again, because they changed without events. Returns the records of the snapshot.
        Raises UnsupportedChangeError if the rows can't be read beside the stream."""
        if not self._engine.tables[table].key:
            return []  # rows without a key are only ever inserted
        record = requested(why, table, SignalRecord(action="snapshot", requested_us=self._now_us))
        record = record.model_copy(update={"owes": f"the snapshot that is due since its rows changed ({why})"})
        job = self._engine.jobs.get(table)
        if self._limits.mode == "never" and (job is None or job.is_ended or not job.is_whole):
            log.warning("rows are not read again: snapshot.mode is never", table=str(table), why=why)
            return self._engine.add(record.model_copy(update={"status": "cancelled", "message": NOT_READ}))
        if table in self._unchunkable:
            raise UnsupportedChangeError(
                f"table {table}: {why}, and its rows can't be read again beside the stream: no unique index has "
                "exactly its key columns, in this order",
                "create such an index, " + NEXT_AFTER_STOP.format(table=table),
                table=table,
            )
        return self._engine.add(record)

    def forget(self, tables: Iterable[TableId]) -> None:
        """Deletes the records of snapshots of tables that are no longer captured."""
        for table in tables:
            key = SnapshotRecord.key_of(table).encode()
            self._pending += [TopicRecord(self._topics.state, key, None), TopicRecord(self._topics.progress, key, None)]

    def on_committed(self) -> None:
        """The records that were produced so far are committed."""
        self._engine.tombstones.on_committed()
        owed = self._owed_now()
        if owed != self.owed:
            self.owed = owed

    def _owed_now(self) -> dict[str, str]:
        return self._uncaptured | {str(table): why for table, why in self._engine.owed().items()}

    def take_answers(self, now: float) -> None:
        """Takes the answers that the readers have. `now`: monotonic seconds."""
        self._engine.take([*self._reader.answers(), *self._keys.answers()], now)

    def advance(self, now: float, now_us: int, stream_lag_s: float) -> list[TopicRecord]:
        """Requests the next reads. Returns the records of signals, failures and reports that are due. `now`: monotonic
        seconds."""
        self._now_us = now_us
        records = [*self._pending, *self._engine.endings()]
        self._pending.clear()
        if now - self._signals_at >= SIGNAL_INTERVAL_S:
            self._signals_at = now
            for signal in self._signals.poll():
                records += self._handle(signal, now_us)
        for request in self._engine.requests(now, is_behind=stream_lag_s > self._limits.lag_s_max):
            if isinstance(request, KeyPage | ReadTopic):
                self._keys.ask(request)
            else:
                self._reader.ask(request)
        if now - self._reported_at >= REPORT_INTERVAL_S:
            self._reported_at = now
            records += self._report(now, now_us)
            records += self._answers.expired(now_us)
        return records

    # ---- signals

    def _handle(self, signal: Signal, now_us: int) -> list[TopicRecord]:
        """Returns the records of a signal's effect and answer, for the Kafka transaction of the offset behind it."""
        if self._answers.has(signal):
            return [offset_record(self._topics, signal)]
        records: list[TopicRecord] = []
        answer = refusal(signal, now_us)
        if answer is None:
            assert signal.record is not None, "it would be refused"
            answer, records = self._execute(signal.identity, signal.record)
        log.info("signal answered", id=signal.identity, accepted=answer.is_accepted, message=answer.message)
        return [*records, *self._answers.give(signal, answer, now_us)]

    def _execute(self, identity: str, signal: SignalRecord) -> _Effect:
        if signal.action in ("stop_table", "start_table"):
            return self._stop_or_start(signal)
        if signal.action == "reload":
            return self._reload_file(signal)
        if signal.action == "move":
            return self._move(signal)
        unknown = [name for name in signal.tables if _table(name) not in self._engine.tables]
        if unknown:
            return _refused(f"table {unknown[0]} is not captured{did_you_mean(unknown[0], self._engine.tables)}")
        if signal.action == "heal":
            waiting = [table for table in self._stopped if table in self._unchunkable]
            if waiting and self._limits.method == "consistent":
                # Not answered here: the process obeys the signal in state GAP.
                raise GapError(
                    f"table {waiting[0]} can be added with a new slot only", "cdc snapshot heal, as requested"
                )
            held = ", ".join(f"cdc table start {table}" for table, barrier in self._stopped.items() if barrier is None)
            hint = f"{held}: it is stopped, and all its rows are read again" if held else ""
            return _refused("there is no gap to heal: capture is streaming", hint)
        wanted = [_table(name) for name in signal.tables] or list(self._engine.tables)
        events, wanted = _partition(wanted, self._outboxes)
        if events and (signal.tables or not wanted):
            return _refused(f"the rows of {events[0]} are events, which `cdc outbox republish` publishes again")
        if not wanted:
            return _refused("no table is captured: `cdc table list` says why")
        if signal.action == "republish":
            return self._republish(wanted, signal.keys)
        if signal.action == "snapshot":
            is_whole = signal.where is None and signal.after is None and signal.up_to is None
            if not is_whole and len(wanted) != 1:
                return _refused("a condition or a range needs exactly one table")
            if problem := self._range_problem(wanted[0], signal):
                return _refused(problem)
            job = self._engine.jobs.get(wanted[0])
            if not is_whole and job is not None and job.owed and job.is_whole and not job.is_ended:
                return _refused(f"a part of {wanted[0]} can't be read now: {job.owed}, which reads all rows", NEXT_PART)
            barred, wanted = _partition(wanted, self._unchunkable)
            if barred and (signal.tables or not wanted):
                return _refused(self._why_barred(barred[:1]))
            records = [record for table in wanted for record in self._engine.add(requested(identity, table, signal))]
            return _accepted(f"begun; {self._why_barred(barred)}" if barred else "begun", wanted), records
        status = {"pause": "paused", "resume": "running", "cancel": "cancelled"}[signal.action]
        changed = [(table, records) for table in wanted if (records := self._engine.set_status(table, status))]
        if not changed:
            return _refused(f"there is no snapshot to {signal.action}")
        lacking = [str(table) for table, _ in changed if status == "cancelled" and self._engine.jobs[table].owes]
        if lacking:
            status += f"; committed rows may be missing from {', '.join(lacking)} until a snapshot of all rows is done"
        return _accepted(status, [table for table, _ in changed]), [record for _, some in changed for record in some]

    def _move(self, signal: SignalRecord) -> _Effect:
        """Continues with another server only where this one was left. A move that is done already, by a process that
        ended before it answered, is one that succeeded."""
        if signal.server == self._server:
            return _accepted("capture reads from the new server", []), []
        return _refused(
            "capture still streams from the former server",
            "stop it, let source.dsn name the new server, start it; then cdc source move again",
        )

    def _republish(self, wanted: Sequence[TableId], keys: Sequence[str]) -> _Effect:
        """Publish rows of one table again, by their keys, and deletes of those that it has not."""
        if len(wanted) != 1 or not 0 < len(keys) <= REPUBLISHED_MAX:
            return _refused(f"1 to {REPUBLISHED_MAX} keys of exactly one table can be published again at once")
        table = wanted[0]
        if table in self._unchunkable:
            return _refused(self._why_barred(wanted))
        known = asked_keys(self._engine.tables[table], keys)
        if len(known) < len(keys):
            return _refused(f"{len(keys) - len(known)} of the keys are not record keys of {table}")
        if records := self._engine.republish(table, known):
            return _accepted(f"publishes {len(keys)} keys again", wanted), records
        return _refused(f"rows of {table} are being published again already", NEXT_AFTER_OTHERS)

    def _stop_or_start(self, signal: SignalRecord) -> _Effect:
        """Stops tables, or starts stopped ones; the next session applies that."""
        is_stop = signal.action == "stop_table"
        wanted = [_table(name) for name in signal.tables]
        known = self._engine.tables.keys() if is_stop else self._stopped
        unknown = [table for table in wanted if table not in known]
        if not wanted or unknown:
            what = "captured" if is_stop else "stopped"
            if not unknown:
                return _refused("no table is named")
            return _refused(f"table {unknown[0]} is not {what}{did_you_mean(unknown[0], known)}")
        if not is_stop and (barred := next(((t, why) for t in wanted if (why := self._stopped[t]) is not None), None)):
            table, barrier = barred
            return _refused(
                f"table {table} can't be captured now: {barrier.message}. It is captured again by itself once its "
                "catalog allows that",
                barrier.hint,
            )
        why = WatershedError("an operator stopped it", "cdc table start, which reads all its rows again")
        self.tables_changed = True
        return _accepted("stopped" if is_stop else "captured again", wanted), [
            TableRecord.stopped(table, why, self._now_us, is_held=is_stop).to(self._topics.state) for table in wanted
        ]

    def _reload_file(self, signal: SignalRecord) -> _Effect:
        """Capture takes up the configuration file; the record says to sinks that they may do so with theirs."""
        if self._reload is None:
            return _refused("this process of capture has no configuration file")
        try:
            said = self._reload()
        except WatershedError as error:
            return _refused(error.message, error.hint)
        return _accepted(said, []), [ReloadRecord(requested_us=signal.requested_us).to(self._topics.control)]

    def _why_barred(self, tables: Sequence[TableId]) -> str:
        keys = {table: ", ".join(self._engine.tables[table].key) or "none" for table in tables}
        names = ", ".join(f"{table} ({key})" for table, key in keys.items())
        return f"can't be read in chunks: {names}: no unique index has exactly these key columns, in this order"

    def _range_problem(self, table: TableId, signal: SignalRecord) -> str:
        """Returns why the ends of the range are not keys of the table; empty if they are."""
        key = self._engine.tables[table].key
        for end in (signal.after, signal.up_to):
            if end is not None and len(end) != len(key):
                columns = f"{len(key)} column{'s' if len(key) > 1 else ''} ({', '.join(key)})"
                return f"the key of {table} has {columns}, but the range names {len(end)}"
        return ""

    # ---- reports

    def _report(self, now: float, now_us: int) -> list[TopicRecord]:
        """Returns the report of each table whose snapshot runs, or changed its status since the last report."""
        records = []
        for table, job in self._engine.jobs.items():
            rate = self._reports.rate(job, now)
            if rate is not None:
                progress = SnapshotProgress(
                    request=job.request,
                    table=str(table),
                    status="waiting" if job.is_active and self._engine.waits_for else job.status,
                    rows=job.rows,
                    rows_estimated=job.rows_estimated,
                    rows_per_s=rate,
                    updated_us=now_us,
                    message=job.message or (self._doing(job) if job.is_active else ""),
                )
                records.append(progress.to(self._topics.progress))
        return records

    def _doing(self, job: SnapshotJob) -> str:
        """Returns what the job waits for, or does beside reading rows."""
        if job.absent is not None and job.compares and not job.absent.is_read:
            return "reading the topic, with which rows are compared"
        if job.absent is not None and job.is_read_out:
            return "looking for rows that vanished"
        return self._engine.waits_for


class _Reports:
    """The last report of each table, and the rate of rows."""

    def __init__(self) -> None:
        # Table → what was reported, times and rows of the reports since that began
        self._reported: dict[TableId, tuple[tuple[str, str], deque[tuple[float, int]]]] = {}

    def rate(self, job: SnapshotJob, now: float) -> float | None:
        """Returns the rows per second, for a report now. None: nothing is to be reported."""
        reported = (job.request, job.status)
        last, past = self._reported.get(job.schema.table, (reported if job.is_ended else None, None))
        if last == reported and not job.is_active:
            return None
        if last != reported or past is None:
            past = deque(maxlen=_RATE_REPORTS)
        past.append((now, job.rows_read))
        self._reported[job.schema.table] = reported, past
        began, rows = past[0]
        return round((job.rows_read - rows) / (now - began), 1) if now > began else 0.0


def requested(identity: str, table: TableId, signal: SignalRecord) -> SnapshotRecord:
    """Returns the record of the snapshot of one table that a signal requests."""
    is_range = signal.after is not None or signal.up_to is not None
    asked = RangeRecord(after=signal.after, up_to=signal.up_to)
    is_whole = signal.where is None and not is_range
    return SnapshotRecord(
        request=identity,
        table_schema=table.schema,
        table_name=table.name,
        status="running",
        where=signal.where,
        sweeps=is_whole,
        ranges=(asked,) if is_range else (),
        # Rows that don't meet the condition are not read, but a key without any row is gone.
        deletes_in=None if is_whole else asked,
        requested_us=signal.requested_us,
    )


def _refused(why: str, hint: str = "") -> _Effect:
    return SignalAnswer(is_accepted=False, message=why, next=hint), []


def _accepted(what: str, tables: Sequence[TableId]) -> SignalAnswer:
    names = tuple(str(table) for table in tables)
    return SignalAnswer(is_accepted=True, message=what, tables=names)


def _table(name: str) -> TableId:
    try:
        return TableId.parse(name)
    except ValueError:
        return TableId("", name)  # there is no such table: the signal is refused with the name


def _partition(tables: Sequence[TableId], others: Collection[TableId]) -> tuple[list[TableId], list[TableId]]:
    return [table for table in tables if table in others], [table for table in tables if table not in others]
