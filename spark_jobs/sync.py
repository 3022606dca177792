"""Keeps one generation of one sink up to date: in batches, and beside them. Does not use Spark.

Two threads work on a sink. The query's thread runs a batch: rounds of tasks, one after the other, which read records
and write them to the store. The watching thread makes readable what was written, applies sweeps and publishes the
applied position. In the order written, readable, published, the job may be killed at any moment: unpublished work is
repeated, and the store's guard by version makes that harmless.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.events import TableId, pack_version
from cdc.model.rejected_rows import letters_table
from cdc.model.sink_records import SinkRecord
from sinks.contract import Sink, lost_writes
from sinks.errors import RefusedError, SinkError
from sinks.lineage import Lineage
from sinks.records import NEXT_AFTER_LOST_SCHEMA
from spark_jobs.applied import Applied, AppliedPosition, FoundTopic, Lives, Offsets, covers
from spark_jobs.control_reader import News
from spark_jobs.dead_letters import LetterBox
from spark_jobs.rejections import Letters
from spark_jobs.rounds import RoundReport, Rounds

log = structlog.get_logger(__name__)

GENERATION_CHECK_S: Final = 3.0  # how soon it is noticed that the store's data was deleted
# A record's schema was committed with it or before it; its partition's marker follows within milliseconds.
SCHEMA_WAIT_S_MAX: Final = 30.0
SCHEMA_WAIT_S: Final = 0.05
BEHIND_S: Final = 0.25
# Dead letters that are still to be published, with more of which tasks are stopped: a letter may have 16 KiB.
LETTERS_WAITING_MAX: Final = 2_000


class Control(Protocol):
    """Reads the control and progress topics."""

    @property
    def sinks(self) -> Mapping[str, SinkRecord]:
        """The newest record of each sink and generation, by record key, as far as was read."""

    def read(self) -> News: ...


@dataclass(frozen=True, slots=True)
class World:
    """The environment of a sink's job, besides its store."""

    control: Control
    complete: Callable[[SinkRecord], SinkRecord]  # adds what the job knows of the sink, besides its position
    publish: Callable[[SinkRecord], None]
    now_us: Callable[[], int]  # µs since 1970
    wait: Callable[[float], bool]  # seconds; says whether there was a request to stop meanwhile
    job: tuple[int, str]  # see SinkRecord.job
    letters: LetterBox
    letters_max: int  # open dead letters, with more of which the sink stops


class Ended(Exception):  # noqa: N818
    """Raised when the query was requested to end; records that the batch did not read yet are left to the next one."""


class SinkSync:
    """One generation of one sink. Each method says which thread calls it."""

    def __init__(
        self, sink: Sink, generation: int, position: AppliedPosition, world: World, rounds: Rounds, batch_s: float
    ) -> None:
        """`batch_s`: a batch continues with records that arrive for this long after it began."""
        self.failure: Exception | None = None  # why the last batch failed
        self.rounds_done = 0
        self.has_news = threading.Event()  # something was written since the watching thread worked last
        self._sink = sink
        self._generation = generation
        self._position = position
        self._world = world
        self._rounds = rounds
        self._batch_s = batch_s
        self._admitted = 0  # the number of the query whose batches may begin; 0: none
        self._admissions = 0
        self._lineages: dict[str, Lineage] = {}  # by topic; prepared
        self._unreadable: dict[str, str] = {}  # topic → why it is not read
        self._former_job = world.control.sinks.get(SinkRecord.key_of(sink.name, generation))
        self._noted: str | None = None  # the text that the store must hold since this job wrote it
        self._prepared_us = 0  # when a table was prepared last
        # Held while a round runs and while tables are prepared: no task writes to a table that is being altered.
        self._writing = threading.Lock()
        self._store = threading.RLock()  # the sink object and the control reader serve one thread at a time
        self._state = threading.Lock()  # everything below
        self._written_tables: set[TableId] = set()  # since they were made readable last
        self._unprepared: list[Lineage] = []
        # Dead letters, first of rows that may not be readable yet, then those that are to be published.
        self._letters: Letters = {}
        self._readable_letters: Letters = {}
        self._written = 0
        self._stale = 0
        self._published: SinkRecord | None = None
        self._checked_us = world.now_us()
        self._behind_us: int | None = None  # when a task reported last that there are more records than it can take

    @property
    def is_behind(self) -> bool:
        """True while a backlog is being worked off. Tasks report several times a second."""
        return self._behind_us is not None and self._world.now_us() - self._behind_us < BEHIND_S * 1_000_000

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the prepared tables that exist and are those that capture has published."""
        return frozenset(self._lineages.keys() - self._unreadable.keys())

    @property
    def applied(self) -> Applied:
        """The position that readers of this generation see."""
        with self._state:
            return self._position.applied

    @property
    def published(self) -> Applied:
        """The furthest position that capture is known to have published."""
        with self._state:
            return self._position.published

    def begin(self, lineages: Sequence[Lineage]) -> None:
        """Prepares the tables, and publishes this generation's position, so that a waiter waits for it and not for an
        earlier one. To be called before the first query."""
        self._prepare(lineages)
        # An earlier job may have been killed between a write and making it readable.
        self._sink.make_readable({lineage.newest.table for lineage in lineages})
        self._find_topics()
        self._publish()

    def admit(self) -> int:
        """Returns a number for a new query: its batches may begin, those of earlier queries may not any more."""
        self._admissions += 1
        self._admitted = self._admissions
        return self._admitted

    def dismiss(self) -> None:
        """Ends the running batch after its round, and allows no other."""
        self._admitted = 0

    # ---- the query's thread

    def apply_batch(self, admission: int) -> None:
        """Applies the records in the topics, then those that arrive until the batch has lasted `batch_s`. Raises Ended
        for a query that is not admitted (any more)."""
        try:
            self._apply_batch(admission)
        except Ended:
            raise
        except Exception as error:
            self.failure = error
            raise

    def _apply_batch(self, admission: int) -> None:
        begun_us = self._world.now_us()
        goal: Offsets | None = None
        unknown_since_us: int | None = None
        while True:
            with self._writing:
                if admission != self._admitted:
                    raise Ended
                self._prepare_pending()
                with self._store:
                    with self._state:
                        open_letters = self._open_letters()
                    self._rounds.remember(open_letters)
                ends = self._find_topics()
                with self._state:
                    starts, lives = dict(self._position.written), dict(self._position.lives)
                goal = ends if goal is None else _within(goal, ends)
                report = self._rounds.run(starts, ends, partial(self._take_meanwhile, admission, lives))
            self._take(report, lives)
            if self._has_many_letters:
                self._show()
                with self._store:
                    self._publish_letters()
            if report.unknown_schema:
                unknown_since_us = unknown_since_us or self._world.now_us()
                self._wait_for_schema(report, unknown_since_us)
                continue
            unknown_since_us = None
            lasted_us = self._world.now_us() - begun_us
            if lasted_us >= self._batch_s * 1_000_000 and covers(self._position.written, goal):
                break
        # Before Spark notes that the batch is done: without new records it would never call for this to be published.
        self._show()
        self._learn()  # this process may have been stopped for a while, and another job may have taken over
        self._publish()

    def _find_topics(self) -> Offsets:
        """Looks for the tables' topics. Returns the ends of those that can be read: a topic that is missing, or is
        another one than capture has published, concerns its own table only."""
        found = self._rounds.find()
        with self._state:
            unreadable = {
                topic: reason
                for topic in self._lineages
                if (reason := self._obstacle(topic, found.get(topic))) is not None
            }
            before, self._unreadable = self._unreadable, unreadable
        for topic, reason in unreadable.items():
            if topic not in before:
                log.warning("table is not read", sink=self._sink.name, topic=topic, because=reason)
        return {topic: there.ends for topic, there in found.items() if topic not in unreadable}

    def _obstacle(self, topic: str, found: FoundTopic | None) -> str | None:
        if found is None:
            return f"topic {topic} does not exist"
        return self._position.meets(topic, found)

    def _take_meanwhile(self, admission: int, lives: Lives, report: RoundReport) -> bool:
        """Takes the work done by tasks of the running round; says whether they may continue. Called by other
        threads."""
        self._take(report, lives)
        with self._state:
            is_same = not self._unprepared and self._position.lives == lives
            return admission == self._admitted and is_same and not self._has_many_letters

    @property
    def _has_many_letters(self) -> bool:
        return len(self._letters) + len(self._readable_letters) >= LETTERS_WAITING_MAX

    def _take(self, report: RoundReport, lives: Lives) -> None:
        """`lives`: of the topics when the round began."""
        offsets = {
            topic: tuple(partitions.get(number, 0) for number in range(max(partitions) + 1))
            for topic, partitions in report.offsets.items()
        }
        with self._state:
            self._position.write(offsets, lives)
            for topic, reason in report.lost.items():
                if self._position.lives.get(topic, 0) == lives.get(topic, 0):
                    self._position.void(topic)
                    log.warning("topic is read from its beginning", sink=self._sink.name, because=reason)
            self._written_tables |= report.tables
            self._letters |= report.letters
            self._written += report.written
            self._stale += report.stale
        self.rounds_done += 1
        if report.is_behind:
            self._behind_us = self._world.now_us()
        if offsets:
            self.has_news.set()
        if report.records:
            log.debug(
                "written",
                sink=self._sink.name,
                records=report.records,
                behind=report.is_behind,
                write_ms=round(report.write_s * 1000),
            )
        match report.failure:
            case None:
                return
            case RefusedError() as error:
                raise RefusedError(f"{self._sink.name}: {error.message}", error.hint)
            case error:
                raise error

    def _wait_for_schema(self, report: RoundReport, since_us: int) -> None:
        """Waits for a schema. Raises SinkError if the control topic still lacks it after SCHEMA_WAIT_S_MAX. `since_us`:
        since when every round has met an unknown schema. It was another one before a table was prepared."""
        if self._world.now_us() - max(since_us, self._prepared_us) > SCHEMA_WAIT_S_MAX * 1_000_000:
            raise SinkError(
                f"{self._sink.name}: {report.unknown_schema}, for {SCHEMA_WAIT_S_MAX:.0f} s",
                NEXT_AFTER_LOST_SCHEMA,
            )
        self._learn()
        with self._state:
            is_there = bool(self._unprepared)
        if not is_there:
            self._world.wait(SCHEMA_WAIT_S)

    # ---- the watching thread

    def tend(self) -> None:
        """Makes readable what was written, reads what was published, applies due sweeps, publishes the applied
        position, and prepares tables that are new or altered."""
        self.has_news.clear()
        if self._world.now_us() - self._checked_us > GENERATION_CHECK_S * 1_000_000:
            self._check_generation()
            if self._unreadable:
                self._find_topics()
        self._show()
        self._learn()
        self._sweep()
        self._publish()
        if self._unprepared and self._writing.acquire(blocking=False):
            try:  # otherwise the query's thread does it before its next round
                self._prepare_pending()
            finally:
                self._writing.release()

    def _sweep(self) -> None:
        for sweep in self._position.due_sweeps():
            with self._store:
                swept = self._sink.sweep(sweep.table, sweep.floor)
                self._sink.make_readable({sweep.table})
                with self._state:
                    self._close_letters(self._letters_below(sweep))
                    self._position.finish(sweep)
            log.info("swept", sink=self._sink.name, table=str(sweep.table), rows=swept)

    def _letters_below(self, sweep: SweepRecord) -> list[str]:
        """Returns the keys of dead letters whose rows the sweep has removed."""
        return [
            letter
            for letter, version in self._open_letters().items()
            if version < sweep.floor and letters_table(letter) == sweep.table
        ]

    def _check_generation(self) -> None:
        self._checked_us = self._world.now_us()
        with self._store:
            found = self._sink.generation()
            noted = self._sink.noted()
            expected = self._noted
        if found != self._generation:
            raise SinkError(
                f"{self._sink.name}: the store no longer holds generation {self._generation}: its data was deleted",
                "nothing to do: the sink fills it again from the topics",
            )
        if expected is not None and noted != expected:
            raise lost_writes(f"{self._sink.name}: the store")

    # ---- both

    def _show(self) -> None:
        """Makes readable what was written. What could not be made readable is tried again before anything that was
        written with it counts as shown."""
        with self._store:
            with self._state:
                offsets, lives = dict(self._position.written), dict(self._position.lives)
                tables, letters = self._written_tables, self._letters
                self._written_tables, self._letters = set(), {}
            try:
                if tables:
                    self._sink.make_readable(tables)
            except BaseException:
                # The other thread may show what was written, too: it must not reach a position without these tables.
                with self._state:
                    self._written_tables |= tables
                    self._letters = letters | self._letters
                raise
            with self._state:
                self._readable_letters |= letters
                self._position.reach(offsets, lives)

    def _open_letters(self) -> dict[str, int]:
        """Returns letter_key → version of the open dead letters, those included that are not published yet. To be
        called with both locks."""
        versions = dict(self._world.letters.open)
        for key, letter in (self._readable_letters | self._letters).items():
            if letter is None:
                versions.pop(key, None)
            else:
                versions[key] = letter.version
        return versions

    def _close_letters(self, keys: Iterable[str]) -> None:
        """Closes dead letters with the next that are published. To be called with the lock of the state."""
        for key in keys:
            self._letters.pop(key, None)
            self._readable_letters[key] = None

    def _close_letters_of_removed(self, progress: Sequence[ProgressRecord]) -> None:
        """Closes the dead letters of tables that were captured when the row was rejected, and are not any more: nothing
        else would. A table that was only stopped is owed. To be called with the lock of the store."""
        with self._state:
            open_letters = self._open_letters() if progress else {}
            if not open_letters:
                return
            newest = progress[-1]
            known = pack_version(newest.epoch, newest.seq)
            captured = {
                lineage.newest.table for topic, lineage in self._lineages.items() if topic in newest.end_offsets
            }
            self._close_letters(
                letter
                for letter, version in open_letters.items()
                for table in (letters_table(letter),)
                if version <= known and table not in captured and str(table) not in newest.owed
            )

    def _publish_letters(self) -> None:
        """Publishes dead letters, before the position that covers their records. Raises RefusedError if there are too
        many.
        """
        with self._state:
            letters, self._readable_letters = self._readable_letters, {}
        try:
            self._world.letters.publish(letters)
        except BaseException:
            with self._state:
                self._readable_letters = letters | self._readable_letters
            raise
        count = len(self._world.letters.open)
        if any(letters.values()) and count > self._world.letters_max:
            raise RefusedError(
                f"{self._sink.name}: the store rejected {count} rows, more than dead_letters_max",
                f"cdc dlq list {self._sink.name} shows why; correct the rows, the mapping or the store, or raise the "
                "sink's dead_letters_max, and start the sink again",
            )

    def _publish(self) -> None:
        """Notes the position in the store, then publishes it: a store that loses its last writes loses the note."""
        with self._store:
            self._publish_letters()
            with self._state:
                record = self._world.complete(self._record())
            last = self._published
            if last is None or record.model_copy(update={"applied_ts_us": last.applied_ts_us}) != last:
                text, before = record.encode().decode(), self._noted
                self._noted = None  # while it is not known which text the store holds
                self._sink.note(text, before)
                self._noted = text
                self._world.publish(record)
                self._published = record

    def _record(self) -> SinkRecord:
        position, applied = self._position, self._position.applied
        owed = position.owed | {
            str(self._lineages[topic].newest.table): reason for topic, reason in self._unreadable.items()
        }
        return SinkRecord(
            sink=self._sink.name,
            generation=self._generation,
            end_offsets=dict(position.offsets),
            applied_lsn=applied.lsn,
            epoch=applied.epoch,
            commit_ts_us=applied.commit_ts_us,
            applied_ts_us=self._world.now_us(),
            sweeps=dict(position.sweeps),
            written=self._written,
            stale=self._stale,
            dead_letters=len(self._world.letters.open),
            rejected=dict(Counter(str(letters_table(letter)) for letter in self._world.letters.open)),
            history=position.history,
            incarnations={topic: position.incarnations.get(topic, "") for topic in position.offsets},
            owed=owed,
            shown=position.shown,
            job=self._world.job,
        )

    def _learn(self) -> None:
        with self._store:
            news = self._world.control.read()
            self._world.letters.follow()
            self._check_job()
            self._close_letters_of_removed(news.progress)
        with self._state:
            self._check_history(news)
            self._unprepared += news.lineages
            self._position.learn(news.progress, news.sweeps)

    def _check_history(self, news: News) -> None:
        """Raises SinkError if the topics were created again, all of them: what the store holds is of other ones."""
        history = news.progress[-1].history if news.progress else ""
        if history and self._position.history and history != self._position.history:
            raise SinkError(
                f"{self._sink.name}: capture has begun again with new topics; the store was filled from former ones",
                "nothing to do: the sink fills it again from the new topics",
            )

    def _check_job(self) -> None:
        """Raises RefusedError if another job has taken over: two would publish two positions in turn. If an earlier job
        has published after this one began, its position is adopted and published again: it may be ahead, and the
        applied position must not go back."""
        last = self._world.control.sinks.get(SinkRecord.key_of(self._sink.name, self._generation))
        if last is None or last == self._former_job:
            return
        if last.job < self._world.job:
            self._published, self._former_job = None, last
            with self._state:
                self._position.adopt(last)
        if last.job > self._world.job:
            raise RefusedError(
                f"{self._sink.name}: another job writes to this store now (job {last.job[0]}; this one is job "
                f"{self._world.job[0]})",
                "stop one of them; two jobs of one sink do not damage the store, but only one may publish its position",
            )

    def _prepare_pending(self) -> None:
        with self._state:
            lineages, self._unprepared = self._unprepared, []
        self._prepare(lineages)

    def _prepare(self, lineages: Sequence[Lineage]) -> None:
        if not lineages:
            return
        with self._store:
            for lineage in lineages:
                schema = lineage.newest
                known = self._lineages.get(schema.topic)
                self._sink.prepare(schema, lineage.earlier)
                self._lineages[schema.topic] = lineage
                if known is not None:
                    log.info("schema changed", sink=self._sink.name, table=str(schema.table), version=schema.version)
        self._rounds.learn(self._lineages)
        self._prepared_us = self._world.now_us()


def _within(goal: Offsets, ends: Offsets) -> Offsets:
    """Returns the part of a goal that can still be reached: a topic may be gone, or have been created again."""
    return {
        topic: tuple(min(wanted, end) for wanted, end in zip(goal[topic], ends[topic], strict=False))
        for topic in goal.keys() & ends.keys()
    }
