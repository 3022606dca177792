"""Measures how fast records reach a store that does not limit the rate, with 1, 2 and 4 executor threads: a null sink,
whose tasks read a backlog, parse it and reduce it, and write nothing.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from cdc.config.config_file import load_config
from cdc.model.topics import Topics
from sinks.contract import Change, Outcome, Result
from sinks.reduction import reduce_changes
from spark_jobs.batches import MicroBatch, SparkBatches
from spark_jobs.class_archive import JAR_SETS
from spark_jobs.control_reader import ControlReader
from spark_jobs.jars.java import spark_java
from spark_jobs.jars.resolver import resolve_sets
from spark_jobs.progress_writer import ProgressWriter
from spark_jobs.session import spark_session
from spark_jobs.source import stream_of_sink
from spark_jobs.source.sink_options import SinkStreamOptions
from spark_jobs.starting import first_position
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig

THREADS: Final = (1, 2, 4)
PIECE_BYTES_MAX: Final = 8 * 1024 * 1024
_WRITTEN: Final = Result(Outcome.WRITTEN)


class NullTarget:
    """Implements spark_jobs.piece_writer.ChangeWriter."""

    def reduced(self, changes: Sequence[Change]) -> list[Change]:
        return reduce_changes(changes)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        return [_WRITTEN] * len(changes)

    def finish(self) -> tuple[Any, ...]:
        return ()

    def close(self) -> None: ...


def open_null(job: SinkTaskConfig, catalog: SchemaCatalog) -> NullTarget:
    """Returns the target of a task; there is nothing to open."""
    del job, catalog
    return NullTarget()


def rates(config: Path) -> dict[str, int]:
    """Returns records per second for each number of threads, from the backlog in the topics of this configuration. Each
    number runs in a new Spark application.
    """
    return {f"{count}_threads": _rate(config, count) for count in THREADS}


def _rate(config: Path, threads: int) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.sinks_scaling", str(config), str(threads)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(done.stdout.split()[-1])


def _measure(path: Path, threads: int) -> int:
    config = load_config(path)
    jars = [jar for found in resolve_sets(JAR_SETS).values() for jar in found]
    spark = spark_session(spark_java(), jars, "512m", {"spark.master": f"local[{threads}]"})
    job = (1, "bench")
    control = ControlReader(config.kafka, Topics(config.topics.prefix))
    histories = {history.newest.topic: history for history in control.read().schema_histories}
    writer = ProgressWriter(config.kafka, Topics(config.topics.prefix))
    position = first_position("scaling", 1, "", (), 0).model_copy(update={"job": job, "role": "kept"})
    writer.publish(position)
    task = SinkTaskConfig("scaling", config.kafka, config.sinks["cache"], config.topics.prefix, 1)
    batches = SparkBatches(task, job, open_null, writer.send, is_live=False)
    batches.set_tables(histories)
    options = SinkStreamOptions("scaling", 1, job, ("*",), (), threads, PIECE_BYTES_MAX)
    stream = stream_of_sink(spark, config.kafka, config.topics.prefix, options)
    done: list[float] = []

    def apply_batch(frame: DataFrame, number: int) -> None:
        begun = time.monotonic()
        records = batches.run(MicroBatch(frame, number), {}, lambda _: True).records
        done.append(records / (time.monotonic() - begun))

    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):  # the first one starts the worker processes
            query = (
                stream.writeStream.foreachBatch(apply_batch)
                .option("checkpointLocation", f"{folder}/{number}")
                .trigger(processingTime="1 hour")
                .start()
            )
            while len(done) <= number and query.isActive:
                time.sleep(0.1)
            query.stop()
    return round(done[-1])


if __name__ == "__main__":
    print(_measure(Path(sys.argv[1]), int(sys.argv[2])))
