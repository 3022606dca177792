"""Several sinks in one Spark application: `cdc sink run NAME…`."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final, NoReturn

import structlog
from pyspark.sql import SparkSession
from rich.console import Console

from cdc.config import Config
from cdc.errors import ConfigError, SinkError
from jars.java import spark_java
from jars.resolver import resolve_sets
from sinks.registry import OPENERS, make_sink
from spark_jobs.checkpoint import checkpoint_root
from spark_jobs.class_archive import JAR_SETS
from spark_jobs.engine import SparkEngine
from spark_jobs.session import spark_session
from spark_jobs.source import java_properties
from spark_jobs.worker import FINISH_S_MAX, OpenSink, SinkWorker

log = structlog.get_logger(__name__)

WAREHOUSE: Final = "warehouse"
SINKS: Final = (*OPENERS, WAREHOUSE)
LOOK_S: Final = 0.25
# After the last batch is done: the query's end, and closing clients.
LEAVE_S_MAX: Final = FINISH_S_MAX + 2.0
JVM_END_S_MAX: Final = 1.5


def run_sinks(config: Config, names: Sequence[str]) -> NoReturn:
    """Run until SIGTERM or SIGINT, then end the process. Exit code 0: told to stop; 1: a sink met what no restart can
    mend (the others went on until they were told to stop, or met the same). Raises ConfigError and StackError before
    anything is written."""
    openers = _check(config, names)
    stop = threading.Event()

    def told(_: int, __: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, told)
    # What fails reaches us as an exception and is said once, by us; py4j's root logger would add tracebacks.
    logging.getLogger().addHandler(logging.NullHandler())
    begun = time.monotonic()
    # The warehouse's too where there is none: Java's archive of classes is good for one class path.
    jars = [jar for found in resolve_sets(JAR_SETS, progress=Console(stderr=True)).values() for jar in found]
    spark = spark_session(spark_java(), jars, config.spark.driver_memory, config.spark.options)
    log.info("spark started", took_s=round(time.monotonic() - begun, 1), sinks=" ".join(names))
    workers = [SinkWorker(name, config, spark, partial(open_sink, spark), stop) for name, open_sink in openers.items()]
    threads = [threading.Thread(target=worker.run, name=worker.name, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    while not stop.wait(LOOK_S) and any(thread.is_alive() for thread in threads):
        _check_jvm(spark)
    stopped = time.monotonic()
    for thread in threads:
        thread.join(max(0.0, LEAVE_S_MAX - (time.monotonic() - stopped)))
    code = 1 if any(worker.refusal for worker in workers) else 0
    log.info("stopped", exit_code=code)
    _leave(spark, code)


def _check(config: Config, names: Sequence[str]) -> dict[str, Callable[[SparkSession], OpenSink]]:
    """How to open each sink that was named. Raises ConfigError for what the configuration lacks."""
    configured = [name for name in SINKS if getattr(config.sinks, name) is not None]
    for name in names:
        if name not in configured:
            raise ConfigError(
                f"the configuration has no sink {name!r}",
                f"sinks with a section are: {', '.join(configured) or 'none'}; there can be {', '.join(SINKS)}",
            )
    java_properties(config.kafka)
    openers: dict[str, Callable[[SparkSession], OpenSink]] = {}
    for name in names:
        checkpoint_root(config.spark.checkpoint_location, config.topics.prefix, name)
        openers[name] = _warehouse(config) if name == WAREHOUSE else partial(_registered, config, name)
    return openers


def _registered(config: Config, name: str, _: SparkSession) -> OpenSink:
    return OpenSink(make_sink(name, config.sinks, config.topics.prefix), lambda: None)


def _warehouse(config: Config) -> Callable[[SparkSession], OpenSink]:
    from sinks.warehouse.catalog import catalog_place
    from sinks.warehouse.reader import WarehouseReader
    from sinks.warehouse.sink import WarehouseSink

    assert config.sinks.warehouse is not None
    place = catalog_place(config.sinks.warehouse, config.topics.prefix)

    def open_sink(spark: SparkSession) -> OpenSink:
        sink = WarehouseSink(SparkEngine(spark, place), WarehouseReader(place), place.namespace)
        return OpenSink(sink, sink.maintain)

    return open_sink


def _jvm(spark: SparkSession) -> Any:
    """The process that PySpark started."""
    gateway: Any = spark.sparkContext._gateway
    return gateway.proc


def _check_jvm(spark: SparkSession) -> None:
    code = _jvm(spark).poll()
    if code is not None:
        raise SinkError(
            f"Spark's Java process ended by itself (exit code {code})",
            "start the command again: it goes on where it was; if it ran out of memory, raise spark.driver_memory or "
            "lower spark.bytes_per_write_max",
        )


def _leave(spark: SparkSession, code: int) -> NoReturn:
    """End at once: a thread that hangs in a call to a store must not hold the process. The JVM ends when its standard
    input does, and removes its temporary files."""
    jvm = _jvm(spark)
    jvm.stdin.close()
    try:
        jvm.wait(JVM_END_S_MAX)
    except subprocess.TimeoutExpired:
        jvm.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
