"""Changes that are written while a system runs, and the consumer that says when each became readable."""

import multiprocessing
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from tests.bench.public.bench import Bench
from tests.bench.public.systems import START_S_MAX, System
from tests.bench.public.workloads import LIVE
from tests.support.waiting import eventually

POLL_S: Final = 0.1
COUNTED_EVERY: Final = 50  # the counter is shared between processes
READ_S_MAX: Final = 120.0
SAMPLE_S: Final = 0.25
_ROW: Final = re.compile(rb'"after":\s*\{"id":\s*(\d+).*?"t_us":\s*(\d+)')


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record of the table `live`: its id, when it was written (just before its commit), and when it was readable, in
    seconds since 1970."""

    id: int
    written: float
    readable: float

    @property
    def seconds(self) -> float:
        return self.readable - self.written


def parse(value: bytes) -> tuple[int, int] | None:
    """Returns id and t_us of a record's row; None for a record without one."""
    found = _ROW.search(value)
    return (int(found[1]), int(found[2])) if found else None


def read(bootstrap_servers: str, topic: str, ready: Any, counted: Any, stop: Any, results: Any) -> None:
    """Reads a topic with isolation level `read_committed` until `stop` is set; sets `ready` when it begins. Keeps
    `counted` at the number of different ids, and puts (id, t_us, readable) of each record into `results`.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"bench-{topic}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    ready.set()
    found: list[tuple[int, int, float]] = []
    known: set[int] = set()
    while not stop.is_set():
        # One by one: a call for many waits until it has them, which would be measured.
        message = consumer.poll(POLL_S)
        now = time.time()
        value = None if message is None or message.error() else message.value()
        if value is not None and (row := parse(value)):
            found.append((*row, now))
            known.add(row[0])
        if value is None or len(known) % COUNTED_EVERY == 0:
            counted.value = len(known)
    consumer.close()
    results.put(found)


class Reader:
    """The consumer, in a process of its own."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._counted, self._stop, self._results = context.Value("q", 0), context.Event(), context.Queue()
        ready = context.Event()
        self._process = context.Process(
            target=read, args=(bootstrap_servers, topic, ready, self._counted, self._stop, self._results), daemon=True
        )
        self._process.start()
        # Its start takes a second, or many beside other programs: nothing is written meanwhile.
        eventually(ready.is_set, START_S_MAX, "the consumer reads")

    @property
    def count(self) -> int:
        return int(self._counted.value)

    def await_count(self, rows: int, system: System) -> None:
        def is_there() -> bool:
            system.check()
            return self.count >= rows

        eventually(is_there, READ_S_MAX, lambda: f"{rows} rows are readable, there are {self.count}")

    def arrivals(self) -> list[Arrival]:
        """Ends the consumer, and returns what it read, in order."""
        self._stop.set()
        found = self._results.get(timeout=START_S_MAX)
        self._process.join()
        return [Arrival(number, t_us / 1e6, readable) for number, t_us, readable in found]

    def end(self) -> None:
        """Ends it without a result; does nothing if it has ended."""
        self._process.kill()
        self._process.join()


@contextmanager
def reading(bench: Bench, system: System) -> Iterator[Reader]:
    reader = Reader(bench.endpoints.bootstrap_servers, system.topic(LIVE))
    try:
        yield reader
    finally:
        reader.end()


class Writer(threading.Thread):
    """Commits single rows with ids from `first` on, at a steady rate, by a procedure on the server. `join` returns when
    it has; then `rate` is the one that was reached."""

    def __init__(self, bench: Bench, first: int, rows: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._bench, self._first, self._rows, self._wanted = bench, first, rows, rate
        self.rate = 0.0
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        try:
            self._bench.query("CALL write_live(%s::bigint, %s::int, %s::float8)", self._first, self._rows, self._wanted)
        except Exception as error:  # noqa: BLE001  the thread's edge: `finish` raises it
            self.failure = error
        self.rate = self._rows / (time.monotonic() - began)

    def finish(self) -> float:
        """Waits for the end, and returns the rate that was reached. Raises what the server raised."""
        self.join()
        if self.failure:
            raise self.failure
        return self.rate


class Stream(threading.Thread):
    """Commits single rows at a steady rate until it is ended, a second's rows in each call of the procedure."""

    def __init__(self, bench: Bench, rate: int) -> None:
        super().__init__(daemon=True)
        self._bench, self._rate = bench, rate
        self._ended = threading.Event()
        self._sent = 0
        self.start()

    def run(self) -> None:
        while not self._ended.is_set():
            Writer(self._bench, self._sent + 1, self._rate, self._rate).finish()
            self._sent += self._rate

    def end(self) -> int:
        """Returns the number of rows that were committed."""
        self._ended.set()
        self.join()
        return self._sent


class RetainedLog(threading.Thread):
    """The most log that the server kept for a slot while this ran, in MB."""

    def __init__(self, bench: Bench, slot: str) -> None:
        super().__init__(daemon=True)
        self._bench, self._slot = bench, slot
        self._ended = threading.Event()
        self.peak_mb = 0.0
        self.start()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.peak_mb = max(self.peak_mb, self._bench.retained_mb(self._slot))

    def end(self) -> float:
        self._ended.set()
        self.join()
        return round(self.peak_mb, 1)
