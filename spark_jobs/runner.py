"""Several sinks in one Spark application: `cdc sink run NAME…`."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Final, NoReturn

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from cdc.config.config_file import Config
from cdc.config.stores import SqlConfig, StoreConfig, WarehouseConfig, sink_config
from cdc.daemon.conditions import Conditions
from cdc.kafka.signals import deliver
from cdc.model.condition import Condition
from cdc.model.control import Record
from cdc.model.errors import WatershedError
from cdc.model.job_records import SinkErrorRecord
from cdc.model.sink_records import JobId
from cdc.model.topics import Topics
from cdc.telemetry.process import Telemetry
from sinks.errors import SinkError
from sinks.registry import make_sink, open_slots
from sinks.shaping.sink import shaped
from sinks.slots import FIRST, Slots
from spark_jobs import stores
from spark_jobs.batches import SparkBatches
from spark_jobs.engine import KnownProperties, SparkEngine
from spark_jobs.failures import reason
from spark_jobs.jar_sets import jar_sets
from spark_jobs.jars.java import spark_java
from spark_jobs.jars.resolver import resolve_sets
from spark_jobs.jvm import jvm_failure, jvm_process, kill_python_workers, task_slots
from spark_jobs.observing import SinkObserver
from spark_jobs.pipelining import check_versions, start_probe
from spark_jobs.progress_writer import ProgressWriter
from spark_jobs.publishing import CutMarks
from spark_jobs.query_listener import NewestRecords, SinkQueryListener
from spark_jobs.serving import ServingThread, SinkFile
from spark_jobs.session import is_submitted, spark_session, submitted_session
from spark_jobs.sink_thread import FINISH_S_MAX, OpenSink, Portions
from spark_jobs.sinks_file import SinksFile
from spark_jobs.task_report import SinkTaskConfig
from spark_jobs.task_slots import SlotWatch, needed_slots

log = structlog.get_logger(__name__)

# The store takes one piece while the task decodes the next: small ones keep both busy.
PIECE_BYTES_MAX: Final = 2 * 1024 * 1024
STAGE_PIECE_BYTES_MAX: Final = 8 * 1024 * 1024
MERGES_AT_ONCE_MAX: Final = 4  # a merge is planned and committed in one thread of the driver
OpenBy = Callable[[SparkSession, int, str | None], OpenSink]  # with how many tasks it may run at once, in a slot
POLL_S: Final = 0.25
EXECUTORS_S_MAX: Final = 10.0
# After the last batch is done: the query's end, and closing clients.
LEAVE_S_MAX: Final = FINISH_S_MAX + 2.0
JVM_END_S_MAX: Final = 1.5
DELIVERY_S_MAX: Final = 0.5  # further seconds


def run_sinks(
    config: Config,
    names: Sequence[str],
    conditions: Conditions | None = None,
    reread: Callable[[], Config] | None = None,
    telemetry: Telemetry | None = None,
) -> NoReturn:
    """Runs until SIGTERM or SIGINT, then ends the process. Exit code 0: after a request to stop; 1: a sink had an error
    that no restart helps against (the others continued until the request, or had one too). `conditions` receive the
    state of each sink. `reread`: see SinksFile. `telemetry`: is closed at the end.
    Raises ConfigError and StackError before anything is written."""
    openers = _check(config, names)
    reports_to = conditions or Conditions()
    for name in names:
        starting = Condition("sink", name, "starting", f"{name} is starting", "wait for it", is_failure=True)
        reports_to.report(starting)
    stop = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        stop.set()

    file, is_hung_up = SinksFile(config, names, reread), threading.Event()

    def on_hangup(_: int, __: FrameType | None) -> None:
        is_hung_up.set()

    signal.signal(signal.SIGHUP, on_hangup)
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    # We get failures as exceptions and log them once; py4j's root logger would add tracebacks.
    logging.getLogger().addHandler(logging.NullHandler())
    begun = time.monotonic()
    # While a sink is rebuilt it has two queries. A query without a task of its own would wait for the others, and its
    # applied position with it. Where tasks are threads of this process, idle ones cost nothing; the processors of a
    # cluster are shared for one rebuild at a time.
    try:
        spark, task_count = started(config, len(names) + 1 if is_submitted() else 2 * len(names))
    except SinkError:
        if not stop.is_set():
            raise
        # A service manager sends the signal to all processes of a service, and Java ends with it.
        log.info("stopped before Spark had started", exit_code=0)
        _end(0)
    log.info("spark started", took_s=round(time.monotonic() - begun, 1), sinks=" ".join(names))
    check_versions(spark)
    probed = start_probe(spark)
    slots = _slot_watch(spark, config, names)

    def opener(name: str, now: Config) -> Callable[[str | None], OpenSink]:
        return partial(_check(now, [name])[name], spark, task_count)

    observer = None
    if telemetry is not None and (telemetry.has_spans or telemetry.has_lineage):
        observer = SinkObserver(telemetry, config)
    workers = [
        ServingThread(
            name,
            config,
            spark,
            partial(open_sink, spark, task_count),
            stop,
            reports_to,
            SinkFile(partial(file.of, name), partial(opener, name), file.follow),
            observer,
        )
        for name, open_sink in openers.items()
    ]
    live = [name for name in names if not config.sinks[name].has_bounded_batches]
    threads = [threading.Thread(target=worker.run, name=worker.name, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    while not stop.wait(POLL_S) and any(thread.is_alive() for thread in threads):
        if is_hung_up.is_set():
            is_hung_up.clear()
            file.reload()
        if (failure := jvm_failure(spark)) is not None:
            raise failure
        slots.check(time.monotonic())
        if live and probed.done() and probed.exception() is not None:
            _publish_error(config, live, probed.exception())
            probed.result()
    stopped = time.monotonic()
    for thread in threads:
        thread.join(max(0.0, LEAVE_S_MAX - (time.monotonic() - stopped)))
    code = 1 if any(worker.refusal for worker in workers) else 0
    log.info("stopped", exit_code=code)
    delivering = None if telemetry is None else telemetry.begin_close()
    _leave(spark, code, delivering)


def started(config: Config, query_count: int) -> tuple[SparkSession, int]:
    """Returns the session, and the number of tasks that each query may run at once. Raises SinkError."""
    try:
        spark = _session(config, query_count)
        _wait_for_executors(spark, query_count)
        return spark, max(1, spark.sparkContext.defaultParallelism // query_count)
    except (PySparkException, Py4JError, OSError) as error:
        raise SinkError(
            f"Spark did not start: {reason(error)}",
            "start the command again if its Java process was killed; otherwise check spark.driver_memory and "
            "spark.options in the configuration",
        ) from error


def _wait_for_executors(spark: SparkSession, query_count: int) -> None:
    """Waits until a cluster's executors have a task slot for each query, or EXECUTORS_S_MAX: Spark knows only those
    that have answered, and the number of tasks of a query is divided by it."""
    # Executors that Spark starts on demand come with the first tasks.
    if not is_submitted() or spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    deadline = time.monotonic() + EXECUTORS_S_MAX
    while (slots := task_slots(spark)) is not None and slots < query_count and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _session(config: Config, query_count: int) -> SparkSession:
    if is_submitted():
        return submitted_session(config.spark.options)
    jars = [jar for found in resolve_sets(jar_sets(config), progress=Console(stderr=True)).values() for jar in found]
    return spark_session(spark_java(), jars, config.spark.driver_memory, config.spark.options, query_count)


def _slot_watch(spark: SparkSession, config: Config, names: Sequence[str]) -> SlotWatch:
    """Publishes from now on what Spark says about queries. Returns what compares their number with Spark's slots."""
    publish = NewestRecords(ProgressWriter(config.kafka, Topics(config.topics.prefix)).send)
    listener = SinkQueryListener(config.topics.prefix, publish.put)
    spark.streams.addListener(listener)
    bounded = {name for name in names if config.sinks[name].has_bounded_batches}
    return SlotWatch(
        partial(task_slots, spark),
        lambda: needed_slots(listener.running, bounded),
        spark.sparkContext.master or "",
        listener.note_shortage,
    )


def _publish_error(config: Config, names: Sequence[str], error: BaseException | None) -> None:
    """Publishes an error with which the process ends, for the status of others."""
    if not isinstance(error, WatershedError):
        return
    for name in names:
        now_us = time.time_ns() // 1000
        message = f"{name}: {error.message}"
        record = SinkErrorRecord(sink=name, message=message, next=error.hint, is_final=True, at_us=now_us)
        with suppress(WatershedError):  # the process reports the error itself
            deliver(config.kafka, record.to(Topics(config.topics.prefix).progress))


def _check(config: Config, names: Sequence[str]) -> dict[str, OpenBy]:
    """Returns the way to open each named sink. Raises ConfigError for what the configuration lacks."""
    sections = {name: sink_config(config.sinks, name) for name in names}
    return {
        name: _warehouse(config, name, section)
        if isinstance(section, WarehouseConfig)
        else partial(_stored, config, name, section)
        for name, section in sections.items()
    }


def _task_config(
    config: Config, name: str, section: StoreConfig, generation: int, *, slot: str | None = None, staging: str = ""
) -> SinkTaskConfig:
    prefix, functions = config.topics.prefix, section.function_versions
    return SinkTaskConfig(name, config.kafka, section, prefix, generation, staging, slot, functions)


def _stored(
    config: Config, name: str, section: StoreConfig, _: SparkSession, task_count: int, slot: str | None
) -> OpenSink:
    """Opens a sink whose store is written by tasks. `slot`: see make_sink."""
    slots = open_slots(section, config.topics.prefix)
    if slot is None and slots is not None:
        slot = slots.serving()
    piece_bytes_max = min(config.spark.bytes_per_write_max, PIECE_BYTES_MAX)
    if isinstance(section, SqlConfig) and section.is_transactional:
        return _transactional(config, name, section, slots, slot or FIRST, Portions(task_count, piece_bytes_max))

    def batches(generation: int, job_id: JobId, send: Callable[[Record], None]) -> SparkBatches:
        task_config = _task_config(config, name, section, generation, slot=slot)
        return SparkBatches(task_config, job_id, stores.open_store, send, is_live=True)

    sink = make_sink(name, section, config.topics.prefix, slot)
    portions = Portions(task_count, piece_bytes_max, live_s=config.spark.live_batch_s)
    return OpenSink(sink, batches, portions, lambda: None, slots, slot or FIRST)


def _transactional(
    config: Config, name: str, section: SqlConfig, slots: Slots | None, slot: str, portions: Portions
) -> OpenSink:
    """Opens an SQL sink whose batches the driver merges."""
    from sinks.sql.sink import SqlSink
    from spark_jobs.cuts import TransactionalBatches

    sql = SqlSink.open(section, config.topics.prefix, name=name, slot=slot)
    sink = shaped(sql, section)

    def batches(generation: int, job_id: JobId, send: Callable[[Record], None]) -> TransactionalBatches:
        task_config = _task_config(config, name, section, generation, slot=slot)
        return TransactionalBatches(task_config, job_id, send, sql, sink)

    return OpenSink(sink, batches, portions, lambda: None, slots, slot)


def _warehouse(config: Config, name: str, section: WarehouseConfig) -> OpenBy:
    from sinks.warehouse.catalog import catalog_place
    from sinks.warehouse.maintenance import Maintenance
    from sinks.warehouse.reader import WarehouseReader
    from sinks.warehouse.sink import WarehouseSink
    from sinks.warehouse.slots import WarehouseSlots, in_slot
    from sinks.warehouse.staging import FOLDER, delete_leftovers, own_folder
    from spark_jobs.staging import WarehouseBatches, open_staging

    serving = catalog_place(section, config.topics.prefix)

    def open_sink(spark: SparkSession, task_count: int, slot: str | None) -> OpenSink:
        place = in_slot(serving, slot or FIRST)
        slots = None if section.no_rebuild else WarehouseSlots(SparkEngine(spark, serving), serving)
        folders = f"{place.location}/{FOLDER}/{place.namespace}"
        staging = own_folder(folders)
        delete_leftovers(folders, section.s3)
        known: KnownProperties = {}
        engines = [SparkEngine(spark, place, known) for _ in range(min(task_count, MERGES_AT_ONCE_MAX))]
        sink = WarehouseSink(
            SparkEngine(spark, place, known),
            engines,
            WarehouseReader(place),
            staging,
            name=name,
            options=section,
        )
        maintenance = Maintenance(SparkEngine(spark, place), time.time, section)
        portions = Portions(task_count, STAGE_PIECE_BYTES_MAX, task_bytes_max=config.spark.bytes_per_write_max)

        def batches(generation: int, job_id: JobId, send: Callable[[Record], None]) -> WarehouseBatches:
            task_config = _task_config(config, name, section, generation, staging=staging)
            staging_batches = SparkBatches(task_config, job_id, open_staging, send, is_live=False)
            return WarehouseBatches(staging_batches, sink, f"{name}/{generation}/{job_id[0]}", section.s3)

        def maintain() -> None:
            for table in sink.take_due():
                maintenance.run_if_due(table, sink.without_merges(table))

        marks = None if section.tag_interval_s is None else CutMarks(section.tag_interval_s, sink.tag)
        return OpenSink(shaped(sink, section), batches, portions, maintain, slots, slot or FIRST, marks)

    return open_sink


def _leave(spark: SparkSession, code: int, delivering: Future[None] | None) -> NoReturn:
    """Ends at once: a thread that hangs in a call to a store must not hold the process. The JVM ends when its standard
    input does, and removes its temporary files. `delivering`: telemetry, which has the time in which the JVM ends."""
    jvm = jvm_process(spark)
    if jvm is not None:
        kill_python_workers(jvm)
        jvm.stdin.close()
        try:
            jvm.wait(JVM_END_S_MAX)
        except subprocess.TimeoutExpired:
            jvm.kill()
    if delivering is not None:
        wait([delivering], DELIVERY_S_MAX)
    _end(code)


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
