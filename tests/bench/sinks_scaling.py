"""Measures how fast records reach a store that does not limit the rate, with 1, 2 and 4 executor threads: a null sink,
whose tasks read a backlog, parse it and reduce it, and write nothing.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cdc.config.config_file import load_config
from cdc.model.topics import Topics
from sinks.contract import Change, Outcome, Result
from sinks.reduction import reduce_changes
from spark_jobs.applied import covers
from spark_jobs.class_archive import JAR_SETS
from spark_jobs.control_reader import ControlReader
from spark_jobs.jars.java import spark_java
from spark_jobs.jars.resolver import resolve_sets
from spark_jobs.rounds import SparkRounds
from spark_jobs.session import spark_session
from spark_jobs.task_report import SchemaCatalog
from spark_jobs.tasks import Limits, SinkTaskConfig

THREADS: Final = (1, 2, 4)
ROUND_S: Final = 2.0
PIECE_BYTES_MAX: Final = 8 * 1024 * 1024
_WRITTEN: Final = Result(Outcome.WRITTEN)


class NullTarget:
    """Implements spark_jobs.pieces.ChangeWriter."""

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
    control = ControlReader(config.kafka, Topics(config.topics.prefix))
    schema_histories = {
        schema_history.newest.topic: schema_history for schema_history in control.read().schema_histories
    }
    job = SinkTaskConfig("cache", config.kafka, config.sinks["cache"], config.topics.prefix, 1)
    rounds = SparkRounds(spark, job, Limits(ROUND_S, ROUND_S, PIECE_BYTES_MAX), threads, open_null)
    rounds.set_tables(schema_histories)
    ends = {topic: found.ends for topic, found in rounds.find_topics().items()}
    rounds.run({}, ends, lambda _: True)  # starts the worker processes
    position: dict[str, tuple[int, ...]] = {}
    records, begun = 0, time.monotonic()
    while not covers(position, ends):
        report = rounds.run(position, ends, lambda _: True)
        assert report.failure is None, report.failure
        records += report.records
        for topic, offsets in report.offsets.items():
            held = list(position.get(topic, (0,) * len(ends[topic])))
            for number, offset in offsets.items():
                held[number] = offset
            position[topic] = tuple(held)
    return round(records / (time.monotonic() - begun))


if __name__ == "__main__":
    print(_measure(Path(sys.argv[1]), int(sys.argv[2])))
