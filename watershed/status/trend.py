"""The last half hour of a pipeline, for the charts of the console: samples of the status, and problems with the times
at which they began and ended."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import field_serializer

from watershed.status.model import Node, Part, Problem, Status

KEPT_S: Final = 1800.0
INTERVAL_S: Final = 5.0
PROBLEMS_MAX: Final = 100  # that are over; the oldest are forgotten


class SinkSample(Node):
    generation: int
    lag_seconds: float | None
    lag_records: int
    written: int  # since its job started


class Sample(Node):
    """The numbers of one moment; null means not known."""

    unix_seconds: float
    epoch: int | None
    published: int | None  # records in this epoch
    lag_seconds: float | None  # of capture
    retained_bytes: int | None
    rate_bytes_per_second: float | None  # at which the source writes WAL
    sinks: Mapping[str, SinkSample]

    @field_serializer("sinks")
    def _plain(self, sinks: Mapping[str, SinkSample]) -> dict[str, SinkSample]:
        return dict(sinks)


class SeenProblem(Node):
    """A problem with its newest message, and when it was seen."""

    problem: Problem
    first_unix_seconds: float
    last_unix_seconds: float
    is_over: bool


class Recent(Node):
    interval_seconds: float
    samples: tuple[Sample, ...]  # the oldest first
    problems: tuple[SeenProblem, ...]  # the newest first


class Trend:
    """Remembers samples and problems, whether or not somebody asks for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque()
        self._present: dict[tuple[Part, str, str, str], SeenProblem] = {}
        self._over: deque[SeenProblem] = deque(maxlen=PROBLEMS_MAX)

    def observe(self, status: Status) -> None:
        """Adds the status of a later moment."""
        with self._lock:
            self._samples.append(sample_of(status))
            while self._samples[0].unix_seconds < status.unix_seconds - KEPT_S:
                self._samples.popleft()
            self._observe_problems(status)

    def follow(self, status: Callable[[], Status]) -> None:
        """Observes `status` at a regular rhythm from now on, in a daemon thread."""

        def run() -> None:
            pause = threading.Event()
            while True:
                self.observe(status())
                pause.wait(INTERVAL_S)

        threading.Thread(target=run, name="trend", daemon=True).start()

    def recent(self) -> Recent:
        with self._lock:
            seen = sorted((*self._present.values(), *self._over), key=lambda one: -one.first_unix_seconds)
            return Recent(interval_seconds=INTERVAL_S, samples=tuple(self._samples), problems=tuple(seen))

    def _observe_problems(self, status: Status) -> None:
        now, before = status.unix_seconds, self._present
        self._present = {}
        for problem in status.problems:
            # A message has numbers that change: its first words say which of a part's problems it is.
            kind = " ".join(problem.message.split()[:3])
            identity = (problem.part, problem.name, problem.severity, kind)
            known = before.pop(identity, None)
            first = now if known is None else known.first_unix_seconds
            self._present[identity] = SeenProblem(
                problem=problem, first_unix_seconds=first, last_unix_seconds=now, is_over=False
            )
        self._over.extend(ended.model_copy(update={"is_over": True}) for ended in before.values())


def sample_of(status: Status) -> Sample:
    slot, capture = status.source.slot, status.capture
    return Sample(
        unix_seconds=status.unix_seconds,
        epoch=capture.epoch,
        published=capture.seq,
        lag_seconds=capture.lag_seconds,
        retained_bytes=None if slot is None else slot.budget.retained_bytes,
        rate_bytes_per_second=None if slot is None else slot.budget.rate_bytes_per_second,
        sinks={
            sink.sink: SinkSample(
                generation=sink.generation,
                lag_seconds=sink.lag_seconds,
                lag_records=sink.lag_records,
                written=sink.written,
            )
            for sink in status.sinks
        },
    )
