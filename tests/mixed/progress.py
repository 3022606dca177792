"""Whether a capture that is behind goes on: what it publishes, what its processor time goes into, and its memory."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from tests.support.captured import Captured, CaptureProcess
from tests.support.waiting import eventually

STALL_CPU_S: Final = 20.0  # of the process itself, so that a busy machine is no stall
RSS_MEBIBYTES_MAX: Final = 150.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Progress:
    """What was seen until capture had caught up, or was given up."""

    complaints: list[str]
    records: int  # of all of its topics
    cpu_s: float
    rss_mebibytes: float


def caught_up(captured: Captured, process: CaptureProcess, end_lsn: int, deadline_s: float) -> Progress:
    """Wait until capture has confirmed `end_lsn`. A stall ends it: no new record in any topic while the process takes
    STALL_CPU_S of processor time."""
    topics = sorted(captured.topics())
    consumer = Consumer({"bootstrap.servers": captured.bootstrap_servers, "group.id": "ends", "log_level": 0})
    best = -1
    cpu_then, cpu_s, rss = _cpu_s(process), 0.0, 0.0
    complaints: list[str] = []

    def is_over() -> bool:
        nonlocal best, cpu_then, cpu_s, rss
        if process.exit_code is not None:
            complaints.append(f"capture ended with {process.exit_code}: {process.said()[-2000:]}")
            return True
        records, cpu_s, rss = _ends(consumer, topics), _cpu_s(process), max(rss, _peak(process))
        if records > best:
            best, cpu_then = records, cpu_s
        if (captured.confirmed() or 0) >= end_lsn:
            return True
        if cpu_s - cpu_then >= STALL_CPU_S:
            complaints.append(
                f"STALL: no record in {cpu_s - cpu_then:.0f} s of processor time, {best} records before, confirmed is "
                f"{captured.confirmed()} of {end_lsn}"
            )
        return bool(complaints)

    try:
        eventually(is_over, deadline_s, "capture has confirmed the end of the log")
    except AssertionError as error:
        complaints.append(str(error))
    finally:
        consumer.close()
    if rss > RSS_MEBIBYTES_MAX:
        complaints.append(f"MEMORY: capture had {rss:.0f} MiB, more than {RSS_MEBIBYTES_MAX:.0f}")
    return Progress(complaints, best, round(cpu_s, 1), round(rss, 1))


def _ends(consumer: Consumer, topics: list[str]) -> int:
    """How many records all of them have had, but for state and progress: these go on while nothing is published."""
    known = consumer.list_topics(timeout=15).topics
    count = 0
    for topic in topics:
        if not topic.endswith((".state", ".progress", ".control")):
            for partition in known[topic].partitions:
                offsets = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=15)
                count += 0 if offsets is None else offsets[1]
    return count


def _cpu_s(process: CaptureProcess) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak(process: CaptureProcess) -> float:
    """Resident, MiB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024 if "VmHWM" in lines else 0.0
