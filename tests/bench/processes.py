"""Measures memory and processor time of the programs that a benchmark runs."""

from collections.abc import Mapping
from typing import Final

import psutil  # type: ignore[import-untyped]


def family(pid: int) -> list[psutil.Process]:
    """Returns a process with all that it has started."""
    job = psutil.Process(pid)
    return [job, *job.children(recursive=True)]


def memory_mb(pid: int) -> int:
    total = 0
    for process in family(pid):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return round(total / 1e6)


def cpu_s(pid: int) -> float:
    total = 0.0
    for process in family(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


PROGRAMS: Final = {  # program → a part of its command line
    "kafka": "kafka.Kafka",
    "opensearch": "org.opensearch",
    "redis": "redis-server",
    "postgres": "postgres",
    "capture": "cli.main run",
    "sinks": "cli.main sink",
    "java of sinks": "pyspark-shell",
    "tasks": "spark_jobs.fork_server",
}


def cpu_by_program() -> dict[str, float]:
    """Returns the processor seconds so far of the servers, of capture, of the sinks, and of everything else together,
    which is the load and other programs of the machine.
    """
    found: dict[str, float] = {}
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            times = process.cpu_times()
        except psutil.Error:
            continue
        name = next((name for name, part in PROGRAMS.items() if part in line), "load and others")
        found[name] = found.get(name, 0.0) + times.user + times.system
    return found


def cores(before: Mapping[str, float], took_s: float) -> dict[str, float]:
    """Returns the number of cores that each program used since `before`, the result of cpu_by_program `took_s` ago."""
    return {
        name: round((cpu_s - before.get(name, 0.0)) / took_s, 2) for name, cpu_s in sorted(cpu_by_program().items())
    }
