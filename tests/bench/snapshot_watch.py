"""Observes a snapshot: its progress, the source's open transactions, and the use of the machine."""

import json
import os
import statistics
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, LiteralString, Self

import psutil  # type: ignore[import-untyped]
import psycopg
from confluent_kafka import Consumer, TopicPartition

SAMPLE_S: Final = 0.1
MACHINE_S: Final = 1.0
# Open transactions of capture's connections. The replication connection is left out: it decodes in a transaction that
# does not hold back vacuum.
_OPEN: LiteralString = """
SELECT application_name, extract(epoch FROM max(clock_timestamp() - xact_start))::float8
  FROM pg_stat_activity
 WHERE application_name LIKE 'watershed%' AND xact_start IS NOT NULL AND backend_type <> 'walsender'
 GROUP BY application_name
"""


class Tail:
    """The latest record of one key in a topic of one partition."""

    def __init__(self, bootstrap_servers: str, topic: str, key: bytes) -> None:
        self._topic, self._key = topic, key
        self._latest: dict[str, Any] | None = None
        self._is_assigned = False
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "bench-tail",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def latest(self) -> dict[str, Any] | None:
        """Returns the latest record; None until there is one."""
        if not self._is_assigned and self._topic in self._consumer.list_topics(timeout=10).topics:
            self._consumer.assign([TopicPartition(self._topic, 0, 0)])
            self._is_assigned = True
        while self._is_assigned and (messages := self._consumer.consume(100, 0.02)):
            for message in messages:
                value = message.value()
                if not message.error() and message.key() == self._key and value:
                    self._latest = json.loads(value)
        return self._latest


class Machine:
    """The machine's size, its load, and the share that other processes use than these and their descendants."""

    def __init__(self, roots: Sequence[int]) -> None:
        self._roots = roots
        self._spent: dict[int, float] = {}  # seconds of processor time
        self._spent_before = 0.0
        self._loads: list[float] = []
        self._busy: list[float] = []  # seconds, since the machine began
        self._times: list[float] = []

    def sample(self) -> None:
        for root in self._roots:
            try:
                family = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for process in family:
                try:
                    times = process.cpu_times()
                except psutil.Error:
                    continue
                self._spent[process.pid] = times.user + times.system
        if not self._times:
            self._spent_before = sum(self._spent.values())
        busy = psutil.cpu_times()
        self._busy.append(busy.user + busy.nice + busy.system)
        self._times.append(time.monotonic())
        self._loads.append(os.getloadavg()[0])

    def report(self) -> dict[str, Any]:
        seconds, busy = self._times[-1] - self._times[0], self._busy[-1] - self._busy[0]
        ours = sum(self._spent.values()) - self._spent_before
        return {
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "load": round(statistics.fmean(self._loads), 1),
            "cores_used": round(busy / seconds, 2),
            "cores_used_by_others": round(max(0.0, busy - ours) / seconds, 2),
        }


class Watch:
    """A thread that takes samples while the block runs."""

    def __init__(self, dsn: str, machine: Machine) -> None:
        self.machine = machine
        self.longest: dict[str, float] = {}  # seconds a transaction was open, by the connection's application name
        self.samples = 0
        self._dsn = dsn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        machine_at = 0.0
        with psycopg.connect(self._dsn, autocommit=True, application_name="bench") as connection:
            while not self._stop.wait(SAMPLE_S):
                for name, seconds in connection.execute(_OPEN).fetchall():
                    self.longest[name] = max(self.longest.get(name, 0.0), seconds)
                self.samples += 1
                if time.monotonic() - machine_at >= MACHINE_S:
                    machine_at = time.monotonic()
                    self.machine.sample()
        self.machine.sample()
