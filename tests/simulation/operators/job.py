"""A sink's job: the real one, without Spark's session and threads.

ServingThread, Builder, SinkSync, SparkBatches, ControlReader, the data source's planner, the tasks and their readers
are the product's. Their clients are fakes, tasks run one after the other, and the other threads work while a task
reports.
"""

import pickle
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql.datasource import InputPartition

from cdc.config.settings import KafkaConfig
from cdc.config.store_mapping import StoredTables
from cdc.config.stores import CacheConfig, SqlConfig
from cdc.config.topic_settings import TopicSettings
from cdc.daemon.conditions import Conditions
from cdc.kafka import topic_reader
from cdc.model.control import Record
from cdc.model.errors import WatershedError
from cdc.model.job_records import RebuildRecord
from cdc.model.rejected_rows import RejectedRow, dead_letter_generation
from cdc.model.sink_records import SinkRecord
from spark_jobs import batches, building, rebuild, rejections, serving, sink_thread, writer
from spark_jobs.batches import MicroBatch, SparkBatches
from spark_jobs.building import Builder
from spark_jobs.control_reader import ControlReader
from spark_jobs.dead_letters import OpenDeadLetters, record_of
from spark_jobs.live_reports import LiveReports
from spark_jobs.rejections import DeadLetterUpdates
from spark_jobs.serving import ServingThread, SinkFile
from spark_jobs.sink_thread import OpenSink, PipelineConnections, Portions
from spark_jobs.sinks_file import SinkConfig
from spark_jobs.source import group, reading, sink_plan, sink_stream, topic_ends
from spark_jobs.source.group import GroupOffsets, group_name
from spark_jobs.source.reading import PartitionReader
from spark_jobs.source.sink_options import SinkStreamOptions
from spark_jobs.source.sink_stream import SinkStreamReader, TaskInput, read_live
from spark_jobs.sync import QueryStopped, SinkSync
from spark_jobs.task_errors import TaskError, error_of_task
from spark_jobs.task_report import SinkTaskConfig, TaskReport
from spark_jobs.writer import StoreWriter, write_pieces
from tests.simulation.operators.brokers import TOPICS, Brokers
from tests.simulation.operators.source import PREFIX
from tests.simulation.operators.store import FakeSink, FakeSlots, FakeTarget, Store
from tests.simulation.operators.world import CLOCK, World, numbered

NAME: Final = "store"
LETTERS_ARRIVE: Final = 4  # each so many times that the driver follows their topic
BATCH_S: Final = 0.5
BUILDER_TURNS: Final = 3  # within which a new generation catches up, once nothing more is published
KAFKA: Final = KafkaConfig(bootstrap_servers="none:1")
LETTERS: Final = TOPICS.sink_dead_letter(NAME)


class _Begun(Exception):  # noqa: N818
    """Says that a worker has started its SinkSync, and would now watch its query."""


class _Inline:
    """Stands for ThreadPoolExecutor: a call is made at once."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            value = function(*arguments)
        except Exception as error:  # noqa: BLE001 - as the executor does
            failure = error

            def failed() -> None:
                raise failure

            return SimpleNamespace(result=failed)
        return SimpleNamespace(result=lambda: value)


class Session:
    """Stands for a Spark session, in which one query of a generation runs: plans its batches, and runs their tasks."""

    def __init__(self, options: SinkStreamOptions) -> None:
        self._reader = SinkStreamReader(KAFKA, PREFIX, options)
        self._offset = self._reader.initialOffset()

    def frame(self) -> Any:
        """Returns the next batch. Raises what the worker finds in the exception of a query that can't be planned."""
        try:
            start, self._offset = self._offset, self._reader.latestOffset()
            parts = self._reader.partitions(start, self._offset)
        except TaskError as error:
            raise error_of_task(error) or error from error

        def collect(writer: StoreWriter) -> list[Any]:
            tasks = [partial(_attempt, writer, number, part) for number, part in enumerate(parts)]
            try:
                reports = [RUN.attempts.result(task) for task in tasks]
            except TaskError as error:
                raise PySparkException(f"Job aborted: {error}") from error
            RUN.attempts.late(tasks)
            return [SimpleNamespace(report=pickle.dumps(report)) for report in reports]

        return SimpleNamespace(mapInArrow=lambda writer, _: SimpleNamespace(collect=lambda: collect(writer)))


def _attempt(writer: StoreWriter, number: int, part: InputPartition) -> TaskReport:
    """Runs a task once. Raises TaskError."""
    assert isinstance(part, TaskInput)
    return write_pieces(writer, read_live(part, PartitionReader(KAFKA, "task")), number)


class Attempts:
    """Spark may run a task more than once: at its choice, after a failure, and without knowing that it still runs."""

    def __init__(self, kind: str) -> None:
        """`kind`: "once"; "retried": a task that fails is tried again; "twice": a second attempt of each task follows;
        "late": it follows the tasks of the next batch, perhaps another job's."""
        self._kind = kind
        self._former: Sequence[Callable[[], TaskReport]] = ()

    def result(self, task: Callable[[], TaskReport]) -> TaskReport:
        """Raises TaskError."""
        if self._kind == "retried":
            with suppress(TaskError):
                return task()
        return task()

    def late(self, tasks: Sequence[Callable[[], TaskReport]]) -> None:
        """What is run of these and of former tasks when they have their results."""
        repeated = {"twice": tasks, "late": self._former}.get(self._kind, ())
        self._former = tasks
        for task in repeated:
            with suppress(TaskError):
                task()


class _Config(SimpleNamespace):
    """What workers read of a Config."""

    def model_copy(self, update: Mapping[str, Any]) -> "_Config":
        return _Config(**{**vars(self), **update})


class _Run:
    """What belongs to the run that is under way."""

    brokers: Brokers
    attempts: Attempts
    looks: list[Callable[[], None]]  # what drivers' threads do while tasks run


RUN: Final = _Run()


class InlineReports(LiveReports):
    """Reports that are published, and looked at by the driver, when they are sent."""

    @classmethod
    @contextmanager
    def opened(cls, job: SinkTaskConfig, batch: str, task: int) -> Iterator["InlineReports"]:
        group = GroupOffsets(job.kafka, group_name(job.prefix, job.sink, job.generation))
        yield cls(group, FakeProducer(RUN.brokers), batch, task)  # type: ignore[arg-type]

    def send(self, report: TaskReport, *, is_over: bool = False) -> None:
        super().send(report, is_over=is_over)
        self._publish_pending()
        for look in [*RUN.looks]:
            look()
        CLOCK.world.meanwhile()


@contextmanager
def _looked_at(look: Callable[[], None]) -> Iterator[None]:
    """Stands for spark_jobs.batches.called_regularly."""
    RUN.looks.append(look)
    try:
        yield
    finally:
        RUN.looks.remove(look)


class FakeProducer:
    """Stands for spark_jobs.dead_letters.DeadLetterProducer."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def publish(self, dead_letters: DeadLetterUpdates) -> None:
        if dead_letters:
            entries = [(LETTERS, 0, key.encode(), *record_of(dead_letter)) for key, dead_letter in dead_letters.items()]
            self._brokers.world.call("brokers.letters", lambda: self._brokers.write(entries))


class FakeLetters:
    """Implements spark_jobs.dead_letters.DeadLetterTopic on the brokers."""

    def __init__(self, brokers: Brokers, generation: int) -> None:
        self._brokers = brokers
        self._topic = brokers.make(LETTERS)
        self._letters = OpenDeadLetters(generation)
        self._generation = generation
        self._reached = 0
        self._asked = 0
        self.read_to_end()

    @property
    def open(self) -> Mapping[str, int]:
        return self._letters.versions

    @property
    def rows(self) -> Mapping[str, RejectedRow]:
        return self._letters.rows

    def follow(self) -> None:
        """What was published may arrive later."""
        self._asked += 1
        if self._asked % LETTERS_ARRIVE == 0:
            self.read_to_end()
        else:
            self._brokers.world.call("brokers")

    def read_to_end(self) -> None:
        self._brokers.world.call("brokers")
        topic = self._brokers.make(LETTERS)
        (log,) = topic.logs
        if topic is not self._topic or log.end < self._reached:  # another copy of the brokers
            self._topic, self._letters, self._reached = topic, OpenDeadLetters(self._generation), 0
        for message in log.records:
            if message.offset() >= self._reached:
                self._letters.add(message)  # type: ignore[arg-type]
        self._reached = log.end
        if hidden := self._letters.hidden():
            self.publish(hidden)

    def close_others(self, generations: Collection[int]) -> None:
        kept = {self._generation, *generations}
        self.publish({key: None for key in open_dead_letters(self._brokers) if dead_letter_generation(key) not in kept})

    def close(self) -> None:
        """Nothing to release."""

    def publish(self, dead_letters: DeadLetterUpdates) -> None:
        offset = self._topic.logs[0].end
        FakeProducer(self._brokers).publish(dead_letters)
        self._letters.put(dead_letters, {key: offset + number for number, key in enumerate(dead_letters)})


def open_dead_letters(brokers: Brokers) -> dict[str, int]:
    return {key: RejectedRow.decode(value, key).version for key, value in brokers.latest(LETTERS).items()}


class Writer:
    """Stands for spark_jobs.progress_writer.ProgressWriter."""

    def __init__(self, brokers: Brokers, on_published: Callable[[], None]) -> None:
        self._brokers = brokers
        self._on_published = on_published

    def publish(self, record: SinkRecord) -> None:
        self.send(record)
        self._on_published()

    def send(self, record: Record) -> None:
        entry = TOPICS.progress, 0, record.record_key.encode(), record.encode(), None
        self._brokers.world.call("brokers.publish", lambda: self._brokers.write([entry]))


class _Watched:
    """What is replaced in both workers: instead of watching a query, control returns to the simulation."""

    brokers: Brokers
    session: Session
    _stream: SinkStreamOptions | None
    _sync: SinkSync | None = None
    query_number = 0
    is_over: Callable[[], bool] = staticmethod(lambda: False)

    def _run_queries(self, sync: SinkSync, generation: int, is_over: Callable[[], bool]) -> None:
        del generation
        self._sync = sync
        self.is_over = is_over
        self.query_number = sync.state.start_query()
        assert self._stream is not None
        self.session = Session(self._stream)
        raise _Begun

    @contextmanager
    def _maintained(self, opened: OpenSink) -> Iterator[None]:
        """Nothing is to be maintained."""
        del opened
        yield

    def _open_dead_letters(self, generation: int) -> Any:
        return FakeLetters(self.brokers, generation)

    def _report(self, state: str, error: Exception | None = None) -> None:
        """Nobody reads it."""


class SimulatedBuilder(_Watched, Builder):
    """The builder of a generation, whose thread is a part of the job's."""

    world: World
    link: Callable[[], PipelineConnections]
    failed = False

    def start(self) -> None:
        """Begins with the next turn."""

    def join(self, _timeout_s: float) -> bool:
        return True

    def reaches(self, goal: Any, timeout_s: float) -> bool:
        for _ in range(BUILDER_TURNS):
            self.turn()
        return super().reaches(goal, min(timeout_s, 0.1))

    def turn(self) -> None:
        """One batch, and one look at the topics."""
        try:
            if self._sync is None:
                with suppress(_Begun):
                    self._work(ExitStack(), self.link())
            assert self._sync is not None
            self._sync.batch_runner.apply_batch(self.query_number, MicroBatch(self.session.frame(), 0))
            self._sync.housekeeper.work()
            self.is_over()
        except WatershedError as error:
            self._sync = None
            if self._is_permanent(error):
                self.refusal = error


class SimulatedWorker(_Watched, ServingThread):
    """The worker of the serving generation."""


class SinkJob:
    """One process of `cdc sink run`."""

    def __init__(
        self,
        world: World,
        brokers: Brokers,
        store: Store,
        section: SqlConfig | CacheConfig,
        on_published: Callable[[], None],
        *,
        has_slots: bool,
    ) -> None:
        self._environment = world
        self._brokers = brokers
        self._store = store
        self._section = section
        self._on_published = on_published
        self._has_slots = has_slots
        self._stack = ExitStack()
        self._builder: SimulatedBuilder | None = None
        self.watch_failed: WatershedError | None = None
        self.refusal: WatershedError | None = None
        config: Any = _Config(
            kafka=KAFKA,
            topics=SimpleNamespace(prefix=PREFIX, config=TopicSettings()),
            spark=SimpleNamespace(checkpoint_location="/nowhere", warehouse_trigger_ms=1000),
            sinks={NAME: section},
        )
        stop = threading.Event()
        stop.wait = self._waited  # type: ignore[method-assign, assignment]
        self._config = config
        self._number = 0  # of the configuration

        def opener(now: Any) -> Callable[[str | None], OpenSink]:
            return partial(self._open_sink, now.sinks[NAME])

        file = SinkFile(lambda: SinkConfig(self._number, self._config), opener, lambda _: None)
        spark: Any = None
        self._worker = SimulatedWorker(NAME, self._config, spark, opener(self._config), stop, Conditions(), file)
        self._worker.brokers = brokers
        self._worker._checkpoints = SimpleNamespace(keep_only=lambda _: None)  # type: ignore[assignment]

    def _waited(self, seconds: float) -> bool:
        """The worker waits: for a schema, or for a generation that is built while none serves."""
        if self._worker._sync is None:
            raise _Begun
        self._environment.now_s += seconds
        return False

    def _open_sink(self, section: SqlConfig | CacheConfig, slot: str | None) -> OpenSink:
        slots = FakeSlots(self._store) if self._has_slots else None
        slot = (self._store.serving if slots is not None else "") if slot is None else slot
        sink = FakeSink(self._store, slot, section)

        def opened(generation: int, number: tuple[int, str], send: Callable[[Record], None]) -> SparkBatches:
            job = SinkTaskConfig(NAME, KAFKA, section, PREFIX, generation, slot=slot)
            return SparkBatches(job, number, lambda *_: FakeTarget(sink), send, is_live=True)

        return OpenSink(sink, opened, Portions(1, 1 << 20, live_s=BATCH_S), lambda: None, slots, slot)

    def _link(self, section: StoredTables | None = None) -> PipelineConnections:
        control = ControlReader(KAFKA, TOPICS, (section or self._section).holds)
        update = control.read()
        writer = Writer(self._brokers, self._on_published)
        return PipelineConnections(control, writer, partial(FakeLetters, self._brokers), update)  # type: ignore[arg-type]

    @property
    def keeps_in_step(self) -> bool:
        """Says whether a generation serves that the job writes."""
        return self._worker._sync is not None

    @property
    def does_nothing(self) -> bool:
        """Says whether no generation serves, and none is built."""
        rebuild = self._worker._rebuild
        return self._worker._sync is None and (rebuild is None or rebuild._request is None)

    # ---- one step each, under `patched`

    def begin(self) -> bool:
        """Starts the job. Returns False if capture has published no table yet. Raises WatershedError."""
        self.link = self._link()
        if not self.link.update.schema_histories:
            return False
        with suppress(_Begun):
            self._worker._work(self._stack, self.link)
        return True

    def reload(self, section: SqlConfig) -> bool:
        """The sink has another configuration from its next attempt on, which begins now. As `begin`."""
        self._section = section
        self._config = self._config.model_copy(update={"sinks": {NAME: section}})
        self._number += 1
        worker, sync = self._worker, self._worker._sync
        if sync is not None:
            assert worker.is_over(), "the attempt ends by itself"
            sync.state.stop_query()
        self._stack.close()
        self._stack, worker._sync, self.watch_failed = ExitStack(), None, None
        worker._take_up()
        assert worker._section is section
        return self.begin()

    def batch(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """The query's thread works; `meanwhile` is what other threads do at a task's reports. Raises WatershedError."""
        sync = self._worker._sync
        if sync is None:
            return
        self._environment.meanwhile = meanwhile
        try:
            sync.batch_runner.apply_batch(self._worker.query_number, MicroBatch(self._worker.session.frame(), 0))
        except QueryStopped:  # the watching thread has failed meanwhile
            pass
        finally:
            self._environment.meanwhile = lambda: None
        if self.watch_failed is not None:
            raise self.watch_failed

    def tend_meanwhile(self) -> None:
        """The watching thread works while a task reports. If it fails, the batch ends as it can, and the job after
        it."""
        sync = self._worker._sync
        if sync is None or self.watch_failed is not None:
            return
        try:
            sync.housekeeper.work()
        except WatershedError as error:
            self.watch_failed = error
            sync.state.stop_query()

    def run_housekeeping(self) -> bool:
        """The watching thread works. Returns whether the job must start again, behind a swap. Raises WatershedError."""
        sync = self._worker._sync
        if sync is not None:
            sync.housekeeper.work()
        else:
            self.link.control.read()
        rebuild = self._worker._rebuild
        is_over = self._worker.is_over() if sync is not None else bool(rebuild and rebuild.follow(self.link.control))
        if rebuild is not None and rebuild.refusal is not None and sync is None:
            raise rebuild.refusal
        builder = None if rebuild is None else rebuild._builder
        if isinstance(builder, SimulatedBuilder):
            builder.link = partial(self._link, builder._section)
            builder.brokers = self._brokers
            builder._checkpoints = self._worker._checkpoints
            builder.turn()
        if is_over and rebuild is not None and rebuild.is_ready:
            if sync is not None:
                sync.state.stop_query()
            self._worker._replace(rebuild, sync, self.link)
            return True
        return False


def _last_request(brokers: Brokers) -> RebuildRecord | None:
    value = brokers.latest(TOPICS.progress).get(RebuildRecord.key_of(NAME))
    return None if value is None else RebuildRecord.decode(value, "")


def is_rebuilt(brokers: Brokers) -> bool:
    """Says whether a rebuild is requested, or under way."""
    last = _last_request(brokers)
    return last is not None and last.is_open


def request_rebuild(brokers: Brokers, action: str, number: int) -> bool:
    """What `cdc rebuild` does. `action`: rebuild, rollback, drop, cancel. Says whether it asked for something."""
    last = _last_request(brokers)
    if is_rebuilt(brokers) != (action == "cancel"):
        return False
    if last is not None and action == "cancel":
        record = last.model_copy(update={"status": "cancelled"})
    else:
        record = RebuildRecord(sink=NAME, request=f"request {number}", action=action, status="asked", asked_us=1)
    brokers.write([(TOPICS.progress, 0, record.record_key.encode(), record.encode(), None)])
    return True


def _kept_inline() -> Any:
    """What a worker process keeps, of a worker that has no other thread."""
    kept = writer._Kept()
    kept.executor = _Inline()  # type: ignore[assignment]
    return kept


@contextmanager
def patched(world: World, brokers: Brokers, attempts: str) -> Iterator[None]:
    """The product's modules use this world's clock and clients. `attempts`: see Attempts."""
    CLOCK.world, RUN.brokers, RUN.looks, RUN.attempts = world, brokers, [], Attempts(attempts)

    def new_client(kind: type, settings: Mapping[str, Any]) -> Any:
        return brokers.admin() if kind is AdminClient else brokers.consumer(settings["group.id"])

    with ExitStack() as stack:
        for module in (
            sink_thread,
            serving,
            building,
            rebuild,
            topic_reader,
            batches,
            sink_plan,
            sink_stream,
            writer,
            rejections,
        ):
            stack.enter_context(mock.patch.object(module, "time", CLOCK))
        for module in (topic_reader, reading, topic_ends, group):
            stack.enter_context(mock.patch.object(module, "new_client", new_client))
        stack.enter_context(mock.patch.object(batches, "called_regularly", _looked_at))
        stack.enter_context(mock.patch.object(writer, "LiveReports", InlineReports))
        stack.enter_context(mock.patch.object(writer, "_kept", _kept_inline()))
        stack.enter_context(mock.patch.object(serving, "Builder", SimulatedBuilder))
        for module in (sink_thread, serving):
            stack.enter_context(mock.patch.object(module, "secrets", numbered("s")))
        yield
