"""The machine: what it is, and how much of it a run took."""

import os
import platform
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil  # type: ignore[import-untyped]

SAMPLE_S: Final = 1.0
CORES_MIN: Final = 2


def description() -> dict[str, Any]:
    """Returns processor, cores that may be used, memory, system."""
    return {
        "processor": processor(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def processor(cpuinfo: str) -> str:
    """Returns the processor's name from the text of /proc/cpuinfo; on ARM, which has none, the architecture."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def family(pids: Iterable[int]) -> list[psutil.Process]:
    """Returns the processes with all that they started, each once."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                found[one.pid] = one
    return list(found.values())


def cpu_s(pids: Iterable[int]) -> float:
    """Returns the processor seconds of the processes, of all that they started, and of what has ended of these."""
    total = 0.0
    for process in family(pids):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and those of ended children
    return total


def pss_mb(pids: Iterable[int]) -> float:
    """Returns the proportional set size in MB: memory that several processes share counts once."""
    total = 0
    for process in family(pids):
        with suppress(OSError, psutil.NoSuchProcess):
            total += pss_kib(Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii"))
    return total * 1024 / 1e6


def pss_kib(rollup: str) -> int:
    """Returns the value of the line `Pss:`; 0 without one."""
    return next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def busy_s() -> float:
    """Returns the seconds of all processors that were not idle."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


class Meter:
    """What a system takes within this block: processor seconds, the peak of its memory, and the share of the machine
    that neither it nor the servers nor this process used.
    """

    def __init__(self, system: int, servers: Sequence[int]) -> None:
        """`system`: the pid of what is measured; it may be this process."""
        self._system = system
        self._ours = [os.getpid(), system, *servers]
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self.peak_pss_mb = 0.0
        self._cpu_s = 0.0
        self._start_cpu_s = 0.0
        self.foreign_share = 0.0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._before = cpu_s([self._system]), cpu_s(self._ours), busy_s()
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._sampler.join()
        self.peak_pss_mb = max(self.peak_pss_mb, pss_mb([self._system]))
        system, ours, busy = self._before
        self._cpu_s = cpu_s([self._system]) - system
        foreign_s = busy_s() - busy - (cpu_s(self._ours) - ours)
        seconds = time.monotonic() - self._began
        self.foreign_share = round(max(0.0, foreign_s) / seconds / (os.cpu_count() or 1), 3)

    def end_start(self) -> None:
        """Counts the processor seconds so far as those of the start, not of rows."""
        self._start_cpu_s = cpu_s([self._system]) - self._before[0]

    @property
    def start_cpu_s(self) -> float:
        return round(self._start_cpu_s, 2)

    def figures(self, rows: int) -> dict[str, float | None]:
        """`rows`: those that were published after the start."""
        return {
            "cpu_s_per_million": round((self._cpu_s - self._start_cpu_s) / rows * 1e6, 1) if rows > 0 else None,
            "peak_pss_mb": round(self.peak_pss_mb),
            "foreign_share": self.foreign_share,
        }

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.peak_pss_mb = max(self.peak_pss_mb, pss_mb([self._system]))
