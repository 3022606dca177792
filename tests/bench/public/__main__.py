"""Measures capture and Debezium side by side: the same log, broker and workloads, in turns.

    make bench                             everything, about an hour on two cores that nothing else uses
    make bench PARTS='catchup latency'     only these parts
    make bench QUICK=1                     one small run of each: shows that all works, measures nothing

It starts its own servers, and fetches Debezium. Runs are kept in .watershed/bench; an interrupted benchmark continues
after the last complete run when it is started again at the same commit on the same machine.
`python -m tests.bench.public.report` makes the page from them.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import psycopg
from confluent_kafka import KafkaException
from rich.console import Console

from cdc import __version__
from cdc.model.errors import StackError, WatershedError
from docs.build.versions import jar, locked
from spark_jobs.jars.java import ask, spark_java
from spark_jobs.jars.resolver import resolve
from tests.bench.public import catchup, latency, others, restart, snapshots, systems
from tests.bench.public.bench import FULL, QUICK, Bench, Size
from tests.bench.public.evaluation import results
from tests.bench.public.machine import CORES_MIN, description
from tests.bench.public.raw_data import RawData, identity, read_all
from tests.bench.public.report import published, write
from watershed.devstack import kafka, postgres
from watershed.devstack.instance import package_folder
from watershed.devstack.stack import Stack

ROOT: Final = Path(__file__).parents[3]
FOLDER: Final = ROOT / ".watershed" / "bench"
# Modules that say which runs are `wanted`, and `measure` them.
COMPARED: Final = {"catchup": catchup, "latency": latency, "snapshot": snapshots, "restart": restart}
PARTS: Final = (*COMPARED, *others.MODULES)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="one small run of each")
    parser.add_argument("--large-rows", type=int, help="rows of the one large transaction: 500,000 by default")
    parser.add_argument("--cases", nargs="+", default=[], help="only these cases of parts that compare")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where runs are kept")
    given = parser.parse_args(arguments)
    console = Console(stderr=True)
    size = QUICK if given.quick else FULL
    if given.large_rows:
        size = replace(size, large_rows=given.large_rows)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is running ends as after Ctrl-C
    try:
        folder = measured(given.parts or PARTS, size, given.folder, given.cases, console)
        write(published(folder), folder / "page")
    except KeyboardInterrupt:
        print("interrupted\n  next: start it again: it continues after the last complete run", file=sys.stderr)
        return 130
    except (
        WatershedError,
        AssertionError,
        OSError,
        subprocess.SubprocessError,
        psycopg.Error,
        KafkaException,
    ) as error:
        reason = error if isinstance(error, WatershedError) else f"{error}\n  next: start it again: it continues"
        print(f"error: {reason}", file=sys.stderr)
        return 1
    for result in results(read_all(folder)):
        verdict = f"not quoted: {result.objection}" if result.objection else "may be quoted"
        console.print(f"{result.part:10}{result.case:18}{verdict}", highlight=False, soft_wrap=True)
    console.print(
        f"page: {folder / 'page'}\npublish: python -m tests.bench.public.report --from {folder}", soft_wrap=True
    )
    return 0


def measured(parts: Sequence[str], size: Size, folder: Path, cases: Sequence[str], console: Console) -> Path:
    """Measures what is missing, and returns the folder of the raw data. Raises WatershedError."""
    require(parts, console)
    for_all = environment(size)
    runs = folder / ("quick" if size.rounds == 1 else "runs") / identity(for_all)
    raws = {
        part: RawData.opened(runs / f"{part}.jsonl", {**for_all, **of_part(part, size)})
        for part in PARTS
        if part in parts
    }
    compare({part: raw for part, raw in raws.items() if part in COMPARED}, size, cases, console)
    for part in others.MODULES:
        if part in raws:
            with timed(part, console):
                others.measure(part, size, raws[part], console)
    return runs


def compare(raws: Mapping[str, RawData], size: Size, cases: Sequence[str], console: Console) -> None:
    """Measures what is missing, on servers of its own; starts none if nothing is."""
    found = {part: COMPARED[part].wanted(raw, size.rounds) for part, raw in raws.items()}
    wanted = {part: [run for run in found[part] if not cases or run[0] in cases] for part in found}
    if not any(wanted.values()):
        return
    with tempfile.TemporaryDirectory(prefix="watershed-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may run under another account
        with Stack(folder / "stack", given={}, progress=console) as stack:
            endpoints = stack.start("postgres", "kafka")
            servers = stack.pid("postgres"), stack.pid("kafka")
            bench = Bench(folder, endpoints, servers, size, console)
            for part, runs in wanted.items():
                if runs:
                    with timed(part, console):
                        COMPARED[part].measure(bench, raws[part], runs)


@contextmanager
def timed(part: str, console: Console) -> Iterator[None]:
    """Prints the part's name, and at its end how long it took."""
    console.rule(part)
    began = time.monotonic()
    yield
    console.print(f"{part} took {(time.monotonic() - began) / 60:.1f} minutes", highlight=False)


def require(parts: Sequence[str], console: Console) -> None:
    """Raises StackError if a part does not exist, or if the machine lacks what it needs."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise StackError(f"there is no part {unknown[0]!r}", f"choose from {', '.join(PARTS)}")
    cores = len(os.sched_getaffinity(0))
    if cores < CORES_MIN:
        raise StackError(
            "the benchmark may use one core only: systems, servers and load would wait for each other",
            f"run it where it may use {CORES_MIN} cores (`nproc` shows how many)",
        )
    spark_java()  # also runs Kafka Connect
    if any(part in COMPARED for part in parts):
        resolve("debezium", progress=console)


def environment(size: Size) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": shlex.join(["python", "-m", "tests.bench.public", *sys.argv[1:]]),
        "commit": commit(),
        "machine": description(),
        "versions": versions(),
        "size": asdict(size),
    }


def of_part(part: str, size: Size) -> dict[str, Any]:
    """Returns the number of rounds, and the settings."""
    if part not in COMPARED:
        command = shlex.join(["python", "-m", others.MODULES[part], *others.arguments(part, size)])
        return {"rounds": 1, "settings": {"command": command}}
    tunings: dict[str, dict[str, Any]] = {
        "catchup": {"connector": systems.FOR_RATE},
        "latency": {"connector": systems.FOR_LATENCY},
        "snapshot": dict(snapshots.TUNING),
        "restart": {"connector": systems.FOR_LATENCY, "worker": systems.FOR_RESTART},
    }
    own: dict[str, dict[str, Any]] = {
        "snapshot": {snapshots.INITIAL: snapshots.CONSISTENT},
        "latency": dict(latency.TUNED),
    }
    return {
        "rounds": size.rounds,
        "settings": {
            "watershed": {"topics": {"partitions": systems.PARTITIONS}, **catchup.SETTINGS, **own.get(part, {})},
            "debezium": {"all": {**systems.CONNECTOR, **systems.WORKER, "heap": systems.CONNECT_HEAP}, **tunings[part]},
            "postgresql": postgres.SETTINGS,
            "kafka": kafka.SETTINGS,
        },
    }


def versions() -> dict[str, str]:
    java = ask(spark_java())
    server = package_folder(postgres.PACKAGE) / postgres.VERSIONS[18] / "bin" / "postgres"
    return {
        "Watershed": __version__,
        "Debezium": jar("debezium-connector-postgres"),
        "Kafka and Kafka Connect": jar("connect-runtime"),
        "PostgreSQL": _said(str(server), "--version").split()[-1],
        "Java of Kafka Connect": str(java.major if java else "unknown"),
        "Python": ".".join(map(str, sys.version_info[:3])),
        "librdkafka": confluent_kafka.libversion()[0],
        "PySpark": locked("pyspark"),
    }


def commit() -> str:
    """Returns the hash of HEAD, with `+` if files differ from it: then the runs can't be repeated."""
    head = _said("git", "rev-parse", "--short=12", "HEAD").strip()
    changed = _said("git", "status", "--porcelain", "--", ".", ":!docs/benchmarks")
    return f"{head}+" if changed.strip() else head


def _said(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
