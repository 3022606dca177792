"""A thread of the driver for one generation of a sink: it starts the query, watches it, and starts it again after a
failure. spark_jobs/serving.py and spark_jobs/building.py determine the purpose of the generation.
"""

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeGuard

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdc.config.config_file import Config
from cdc.daemon.conditions import Conditions
from cdc.kafka.daemon_thread import start_thread
from cdc.kafka.signals import deliver
from cdc.model.condition import Condition
from cdc.model.control import ProgressRecord, Record
from cdc.model.errors import ConfigError, WatershedError
from cdc.model.events import TableId
from cdc.model.job_records import SinkErrorRecord
from cdc.model.rejected_rows import dead_letter_table
from cdc.model.sink_records import STALLED_S, JobId, SinkRecord
from cdc.model.topics import Topics
from sinks.contract import Sink
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from sinks.shaping.table import TableShape
from sinks.slots import FIRST, Slots
from spark_jobs.applied import AppliedPosition
from spark_jobs.batches import Batches, MicroBatch
from spark_jobs.control_reader import ControlReader, ControlUpdate
from spark_jobs.cuts import TransactionalBatches
from spark_jobs.dead_letters import DeadLetterTopic
from spark_jobs.failures import reason
from spark_jobs.generations import Checkpoints, recorded_mappings
from spark_jobs.jvm import is_cut_off, jvm_failure
from spark_jobs.lineage import SinkRun
from spark_jobs.observing import ObservedRun, SinkObserver, new_run_id
from spark_jobs.progress_writer import ProgressWriter
from spark_jobs.publishing import CutMarks, JobEnvironment
from spark_jobs.query_listener import query_name
from spark_jobs.source import stream_of_sink
from spark_jobs.source.sink_options import SinkStreamOptions
from spark_jobs.staging import WarehouseBatches
from spark_jobs.starting import too_old_s, with_closings_owed
from spark_jobs.sync import SinkSync
from spark_jobs.task_errors import error_of_task

log = structlog.get_logger(__name__)

WATCH_S: Final = 0.25  # between reads of control and progress where nothing is written
HOUSEKEEPING_PAUSE_S_MIN: Final = 0.1  # at least between two
# The pause is also as long as the last time: a busy index needs seconds to make rows readable (five of them 1 to 3 s on
# two full cores), and must have time for other work.
HOUSEKEEPING_PAUSE_S_MAX: Final = 2.0
# While a backlog is worked off, nobody waits for the newest row, and each refresh makes a segment that is merged later.
HOUSEKEEPING_PAUSE_BEHIND_S: Final = 2.0
MAINTAIN_S: Final = 20.0
CUT_TRIGGER_MS: Final = 200  # between looks for a cut
CUT_PATIENCE_S: Final = 60.0  # for one transaction, in which a backlog is merged
STANDBY_POLL_S: Final = 0.1
RETRY_S_FIRST: Final = 1.0
RETRY_S_MAX: Final = 30.0
# How long a batch may continue after a request to stop; the process has 10 s in all.
FINISH_S_MAX: Final = 6.0
# At other times, a batch that does not end in this time is abandoned: its late writes are guarded by the version.
BATCH_S_MAX: Final = 600.0
BOUNDED_BATCH_S: Final = 10.0  # what a warehouse's batch may take, however often one begins
# A query that has not failed for this long counts as working, also if nothing is to be written.
WORKS_S: Final = 3.0
JVM_END_S_MAX: Final = 2.0  # after a call was cut off, until the end of the Java process shows
ERROR_S_MAX: Final = 3.0  # until the last error is published
NEXT_RETRY: Final = "nothing to do if this is temporary: the sink tries again"


@dataclass(frozen=True, slots=True)
class Portions:
    """The portions in which a sink's query reads, see SinkStreamOptions."""

    task_count_max: int
    piece_bytes_max: int
    live_s: float = 0.0
    task_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class OpenSink:
    """A sink's store in the driver, and its tasks."""

    sink: Sink
    batches: Callable[[int, JobId, Callable[[Record], None]], Batches]  # see SparkBatches: generation, job id
    portions: Portions
    maintain: Callable[[], None]  # maintenance of the store beside batches
    slots: Slots | None = None  # None: of this store there can only be one generation
    slot: str = FIRST  # that `sink` writes
    marks: CutMarks | None = None

    def close(self) -> None:
        self.sink.close()
        if self.slots is not None:
            self.slots.close()


@dataclass(slots=True)
class PipelineConnections:
    """One attempt's connections to the brokers, and all that was published before it began."""

    control: ControlReader
    progress: ProgressWriter
    dead_letters: Callable[[int], DeadLetterTopic]  # opens those of a generation
    update: ControlUpdate

    @property
    def published(self) -> ProgressRecord | None:
        """The newest position of capture."""
        return self.update.progress[-1] if self.update.progress else None

    @property
    def history(self) -> str:
        """The identity of the topics (ProgressRecord.history)."""
        return "" if self.published is None else self.published.history

    def add(self, later: ControlUpdate) -> None:
        """Takes what was published since."""
        self.update = self.update.followed_by(later)


class SinkThread(ABC):
    """Runs until a request to stop, or until its sink has an error that a restart can't correct (`refusal`). A
    subclass determines the purpose of the generation: readers see it, or it is built beside the one that they see.
    """

    role: Literal["serving", "building", "kept"] = "serving"

    def __init__(
        self,
        name: str,
        config: Config,
        spark: SparkSession,
        open_sink: Callable[[str | None], OpenSink],
        stop: threading.Event,
        conditions: Conditions,
        observer: SinkObserver | None = None,
    ) -> None:
        """`open_sink`: opens it in a slot, None: in the serving one. `conditions`: receives the state of the sink.
        `observer`: for telemetry."""
        self.name = name
        self._observer = observer
        self._observed: ObservedRun | None = None  # of the present attempt
        self._conditions = conditions
        self.refusal: WatershedError | None = None
        self._config = config
        self._spark = spark
        self._open_sink = open_sink
        self._stop = stop
        self._topics = Topics(config.topics.prefix)
        self._checkpoints = Checkpoints(config.spark.checkpoint_location, config.topics.prefix, name)
        self._section = config.sinks[name]
        self._written_as = self._section  # whose mappings rows are written with
        self._mappings: dict[str, str] = {}  # see SinkRecord.mappings
        self._sync: SinkSync | None = None
        self._stream: SinkStreamOptions | None = None  # of the present attempt

    @property
    def _trigger_ms(self) -> int:
        """Milliseconds from one batch's begin to the next one's, at least. A live batch follows at once."""
        if self._section.type == "warehouse":
            return self._config.spark.warehouse_trigger_ms
        return CUT_TRIGGER_MS if self._section.has_bounded_batches else 0

    @property
    def _cut_patience_s(self) -> float:
        return CUT_PATIENCE_S if self._section.is_at_cuts else 0.0

    @property
    def _batch_s(self) -> float:
        """How long a batch may take, in seconds, from which nothing is published before it ends."""
        is_bounded = self._section.has_bounded_batches
        return max(self._trigger_ms / 1000, BOUNDED_BATCH_S) if is_bounded else 0.0

    def run(self) -> None:
        """Runs the thread."""
        delay_s = RETRY_S_FIRST
        while not self._stop.is_set() and self.refusal is None:
            self._sync = None
            try:
                self._run_once()
                self._end_observed(None)
            except (WatershedError, PySparkException, Py4JError, OSError) as error:
                self._end_observed(error)
                ended = jvm_failure(self._spark, JVM_END_S_MAX) if is_cut_off(error) else None
                self.refusal = ended or (error if self._is_permanent(error) else None)
                if self.refusal is None and not self._stop.is_set():
                    self._report("retrying", error)
                    delay_s = RETRY_S_FIRST if self._sync and self._sync.state.report_count else delay_s
                    log.warning("sink restarts", sink=self.name, after_s=delay_s, **_error_fields(error))
                    self._stop.wait(delay_s)
                    delay_s = min(delay_s * 2, RETRY_S_MAX)
            except Exception as error:
                # An error that Watershed raised: a retry may help or not.
                self._end_observed(error)
                log.exception("sink failed", sink=self.name)
                self.refusal = SinkError(f"{self.name}: {type(error).__name__}", "report this with the log's traceback")
        if self.refusal is not None:
            self._report("stopped", self.refusal)
            log.error("sink stopped", sink=self.name, **_error_fields(self.refusal))

    def _end_observed(self, error: Exception | None) -> None:
        observed, self._observed = self._observed, None
        if observed is not None:
            observed.end(error)

    def _is_permanent(self, error: Exception) -> TypeGuard[WatershedError]:
        """Returns whether the error is one that no retry solves."""
        return isinstance(error, RefusedError | ConfigError)

    def _report(self, state: str, error: Exception | None = None) -> None:
        """Reports to the status of this process."""
        fields = {} if error is None else _error_fields(error)
        hint = fields.get("next") or NEXT_RETRY
        message = f"{self.name}: {fields['because']}" if fields else ""
        self._conditions.report(
            Condition("sink", self.name, state, message, hint if fields else "", is_failure=error is not None)
        )
        if error is not None:
            self._publish_error(message, hint, is_final=state == "stopped")

    def _publish_error(self, message: str, hint: str, *, is_final: bool) -> None:
        """Publishes an error for the status of other processes. Unreachable brokers do not delay the sink."""
        now_us = time.time_ns() // 1000
        record = SinkErrorRecord(sink=self.name, message=message, next=hint, is_final=is_final, at_us=now_us)
        publishing = start_thread(lambda: deliver(self._config.kafka, record.to(self._topics.progress)))
        if is_final:  # the process may end with it
            wait([publishing], ERROR_S_MAX)

    def _run_once(self) -> None:
        with ExitStack() as stack:
            if not stack.enter_context(self._locked()):
                return
            control = stack.enter_context(closing(ControlReader(self._config.kafka, self._topics, self._section.holds)))
            writer = stack.enter_context(closing(ProgressWriter(self._config.kafka, self._topics)))
            update = self._wait_for_tables(control)
            if update is None:
                return
            # A mapping that does not fit its table is refused before anything is deleted.
            for schema_history in control.schema_histories.values():
                TableShape(self.name, self._section, schema_history)

            def dead_letters(generation: int) -> DeadLetterTopic:
                return stack.enter_context(closing(self._open_dead_letters(generation)))

            self._work(stack, PipelineConnections(control, writer, dead_letters, update))

    def _open_dead_letters(self, generation: int) -> DeadLetterTopic:
        return DeadLetterTopic(self._config.kafka, self._config.topics, self.name, generation)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Holds the lock while this thread works. Waits as standby while another process of this machine runs the sink,
        and takes over when that ends. Yields False after a request to stop."""
        has_waited = False

        def stand_by() -> bool:
            nonlocal has_waited
            if not has_waited:
                has_waited = True
                log.info("standing by", sink=self.name, because="another process of this machine runs the sink")
                self._report("standby")
            return self._stop.wait(STANDBY_POLL_S)

        with self._checkpoints.locked(stand_by) as is_held:
            if has_waited and is_held:
                log.info("taking over", sink=self.name)
                self._report("starting")
            yield is_held

    @abstractmethod
    def _work(self, stack: ExitStack, connections: PipelineConnections) -> None:
        """Makes one attempt, until a request to stop or an error; `stack` is closed after it."""

    def _run_queries(self, sync: SinkSync, generation: int, is_over: Callable[[], bool]) -> None:
        """Works until a request to stop, or until `is_over`, which is called several times a second, returns true. When
        it returns, nothing more is written, unless a batch had to be abandoned.
        """
        self._sync = sync
        query = self._start(sync, generation)
        try:
            self._watch(query, sync, is_over)
        finally:
            self._end(query, sync)

    @contextmanager
    def _maintained(self, opened: OpenSink) -> Iterator[None]:
        """Calls the store's maintenance regularly, in a separate thread, so that batches don't wait for it."""
        ended = threading.Event()

        def maintain() -> None:
            while not ended.wait(MAINTAIN_S):
                try:
                    opened.maintain()
                except (WatershedError, PySparkException, Py4JError, OSError) as error:
                    log.warning("maintenance failed", sink=self.name, **_error_fields(error))

        thread = threading.Thread(target=maintain, name=f"{self.name} maintenance", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()

    def _wait_for_tables(self, control: ControlReader) -> ControlUpdate | None:
        """Returns everything that was published so far; None after a request to stop before capture has published a
        table."""
        update = control.read()
        if not update.schema_histories:
            log.info("waiting for capture to publish its tables", sink=self.name, topic=self._topics.control)
        while not update.schema_histories:
            if self._stop.wait(WATCH_S):
                return None
            update = update.followed_by(control.read())
        return update

    def _begin_sync(self, opened: OpenSink, connections: PipelineConnections, start: SinkRecord) -> SinkSync:
        """Returns the SinkSync of the generation that continues at `start`, with its tables prepared."""
        control, update = connections.control, connections.update
        dead_letters = connections.dead_letters(start.generation)
        if self._section.is_transactional:
            start = with_closings_owed(start, dead_letters.open)
        position = AppliedPosition.of(start)
        position.add_published(update.progress, update.sweeps)
        held = {schema_history.newest.table for schema_history in control.schema_histories.values()}
        if not start.end_offsets:  # the generation begins again
            dead_letters.publish(dict.fromkeys(dead_letters.open))
        job_id = self._next_job_id(connections, start)
        batches = opened.batches(start.generation, job_id, connections.progress.send)
        observed = self._observed = self._begin_observed(control, start.generation)
        publish = connections.progress.publish
        self._stream = SinkStreamOptions(
            name=self.name,
            generation=start.generation,
            job_id=job_id,
            tables=tuple(self._section.tables),
            exclude_tables=tuple(self._section.exclude_tables),
            task_count_max=opened.portions.task_count_max,
            piece_bytes_max=opened.portions.piece_bytes_max,
            live_s=opened.portions.live_s,
            task_bytes_max=opened.portions.task_bytes_max,
            at_cuts=self._section.is_at_cuts,
        )
        environment = JobEnvironment(
            opened.sink,
            start.generation,
            batches if observed is None else observed.batches(batches),
            control,
            dead_letters,
            complete=partial(self._complete, control),
            publish=publish if observed is None else observed.publishing(publish),
            now_us=lambda: time.time_ns() // 1000,
            wait=self._stop.wait,
            job_id=job_id,
            dead_letters_max=self._section.dead_letters_max,
            may_hold_more=self.role == "serving" and is_filled_in_place(opened),
            at_cuts=self._section.is_at_cuts,
            transactional=batches if isinstance(batches, TransactionalBatches) else None,
            marks=opened.marks,
            unread_s_max=too_old_s(self._config.topics.config.deletes_kept_s),
        )
        sync = SinkSync(environment, position)
        if isinstance(batches, WarehouseBatches):
            batches.incarnation_of = sync.state.incarnation_of
            if self._section.is_at_cuts:
                batches.cut_of = sync.state.cut_of
        sync.housekeeper.begin(update.schema_histories)
        # Of tables that the configuration excludes now: after the position that says so, from which they are read again
        # when they are included.
        dead_letters.publish({key: None for key in dead_letters.open if dead_letter_table(key) not in held})
        return sync

    def _begin_observed(self, control: ControlReader, generation: int) -> ObservedRun | None:
        if self._observer is None:
            return None

        def histories() -> Mapping[TableId, SchemaHistory]:
            return control.schema_histories

        run = SinkRun(new_run_id(), self.name, generation, self.role, self._written_as, histories)
        return self._observer.begin(run)

    def _next_job_id(self, connections: PipelineConnections, last: SinkRecord | None) -> JobId:
        """Returns the id of a job that continues all others."""
        numbers = [record.job[0] for record in connections.control.sinks.values() if record.sink == self.name]
        return max([*numbers, last.job[0] if last is not None else 0]) + 1, secrets.token_hex(4)

    def _complete(self, control: ControlReader, record: SinkRecord) -> SinkRecord:
        excluded = {*map(str, control.excluded), *self._section.excluded_names}
        self._mappings = recorded_mappings(self._written_as, control.schema_histories, self._mappings)
        owed = {table: reason for table, reason in record.owed.items() if table not in excluded}
        shape = {
            "excluded": tuple(sorted(excluded)),
            "mappings": self._mappings,
            "owed": owed,
            "role": self.role,
            "store": self._section.type,
            "patience_s": STALLED_S + 2 * self._batch_s + self._cut_patience_s,
        }
        return record.model_copy(update=shape)

    def _start(self, sync: SinkSync, generation: int) -> StreamingQuery:
        assert self._stream is not None
        stream = stream_of_sink(self._spark, self._config.kafka, self._topics.prefix, self._stream)
        query_number = sync.state.start_query()

        def apply_batch(frame: DataFrame, batch_id: int) -> None:
            sync.batch_runner.apply_batch(query_number, MicroBatch(frame, batch_id))

        # Jobs of a query run in the pool of the thread that starts it.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"{self.name} {self.role}")
        writer: Any = stream.writeStream.foreachBatch(apply_batch)
        query: StreamingQuery = (
            writer.queryName(query_name(self._topics.prefix, self.name, generation))
            .option("checkpointLocation", self._checkpoints.of(generation))
            .trigger(processingTime=f"{self._trigger_ms} milliseconds")
            .start()
        )
        return query

    def _watch(self, query: StreamingQuery, sync: SinkSync, is_over: Callable[[], bool]) -> None:
        """Returns after a request to stop, or when `is_over` says so. Raises the query's error."""
        pause_s = HOUSEKEEPING_PAUSE_S_MIN
        began, is_reported = time.monotonic(), False
        while not self._stop.is_set():
            sync.state.has_new_writes.wait(WATCH_S)
            if self._pause(sync, pause_s):
                return
            if not query.isActive:
                failure = sync.batch_runner.failure or error_of_query(query)
                raise failure or SinkError(f"{self.name}: the query ended by itself")
            begun = time.monotonic()
            sync.housekeeper.work()
            took_s = time.monotonic() - begun
            if not is_reported and (sync.state.report_count or begun - began >= WORKS_S):
                is_reported = True
                self._report("running")
            pause_s = min(max(HOUSEKEEPING_PAUSE_S_MIN, took_s), HOUSEKEEPING_PAUSE_S_MAX)
            if is_over():
                return

    def _pause(self, sync: SinkSync, pause_s: float) -> bool:
        """Waits for so long, and longer while a backlog is worked off; says whether there was a request to stop."""
        begun, state = time.monotonic(), sync.state
        while (waited_s := time.monotonic() - begun) < (HOUSEKEEPING_PAUSE_BEHIND_S if state.is_behind else pause_s):
            if self._stop.wait(min(HOUSEKEEPING_PAUSE_S_MIN, max(0.0, HOUSEKEEPING_PAUSE_BEHIND_S - waited_s))):
                return True
        return self._stop.is_set()

    def _end(self, query: StreamingQuery, sync: SinkSync) -> None:
        """Lets the running batch end, and begins no other."""
        sync.state.stop_query()
        begun = time.monotonic()
        try:
            while query.isActive and query.status["isTriggerActive"]:
                if time.monotonic() - begun > (FINISH_S_MAX if self._stop.is_set() else BATCH_S_MAX):
                    break
                time.sleep(WATCH_S / 5)
            query.stop()
        except (PySparkException, Py4JError, OSError) as error:
            log.debug("query ended with an error", sink=self.name, **_error_fields(error))


def error_of_query(query: StreamingQuery) -> Exception | None:
    """Returns the error with which a query ended: that of the process that planned its batches, if it is one of
    Watershed's."""
    error = query.exception()
    return error and (error_of_task(error) or error)


def is_filled_in_place(opened: OpenSink) -> bool:
    """Says whether each generation is written over what the store has."""
    return opened.slots is None or opened.slots.in_place


def _error_fields(error: Exception) -> dict[str, str]:
    """Returns an error as fields of a log line: a sentence and the next step, or the most informative line of a foreign
    message.
    """
    if isinstance(error, WatershedError):
        return {"because": error.message, "next": error.hint}
    return {"because": reason(error), "next": NEXT_RETRY}
