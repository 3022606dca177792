"""Calculations of the demo: rates, lags, percentiles, the schedule of kills. Pure; time is an argument."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SOURCE_POINTS_MAX = 40_000  # at four a second: almost three hours
RATE_WINDOW_S = 3.0


def percentile(values: Sequence[float], share: float) -> float | None:
    """Returns the nearest-rank percentile: the smallest value that a `share` (0 to 1) of all values does not exceed;
    None for no values.
    """
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


class Rows:
    """Published rows and their rate, from capture's own sequence numbers, which start again with each epoch."""

    def __init__(self) -> None:
        self.total = 0
        self._epoch_seq = (0, 0)
        self._recent: deque[tuple[float, int]] = deque()

    def observe(self, at: float, epoch: int, seq: int) -> None:
        """Records a position. `at`: seconds, not decreasing."""
        known_epoch, known_seq = self._epoch_seq
        if epoch > known_epoch:
            self.total += seq
        elif epoch == known_epoch and seq > known_seq:
            self.total += seq - known_seq
        else:
            return
        self._epoch_seq = (epoch, seq)
        self._recent.append((at, self.total))

    def rate(self, now: float) -> float:
        """Returns the rows per second in the last RATE_WINDOW_S."""
        while len(self._recent) > 1 and self._recent[1][0] <= now - RATE_WINDOW_S:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        began, rows = self._recent[0]
        if began > now - RATE_WINDOW_S:  # less than a window has passed
            return (self.total - rows) / (now - began) if now > began else 0.0
        return (self.total - rows) / RATE_WINDOW_S


class Lag(NamedTuple):
    """The lag of a reader behind the source."""

    seconds: float  # age of the oldest commit that the reader may not have
    rows: int  # committed row changes that the reader may not have


class SourceHistory:
    """The source's end of log and its committed row changes over time, from which lag is calculated.

    The demo observes PostgreSQL itself, so lag is also known while capture does not run.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[int, float, int]] = deque(maxlen=SOURCE_POINTS_MAX)  # lsn, at, rows

    def observe(self, at: float, lsn: int, rows: int) -> None:
        """Records that at time `at` the log was flushed to `lsn`, below which at least `rows` changes were
        committed.
        """
        if not self._points or (lsn > self._points[-1][0] and rows > self._points[-1][2]):
            self._points.append((lsn, at, rows))

    def lag(self, applied_lsn: int, now: float) -> Lag:
        """Returns the lag of a reader that has everything below `applied_lsn`. The interval of observations limits its
        precision.
        """
        place = bisect_right(self._points, applied_lsn, key=lambda point: point[0])
        if place == len(self._points):
            return Lag(0.0, 0)
        before = self._points[place - 1][2] if place else 0
        return Lag(max(0.0, now - self._points[place][1]), self._points[-1][2] - before)


@dataclass(frozen=True, slots=True)
class Spread:
    """Freshness, commit to readable, in seconds."""

    count: int
    p50: float | None
    p95: float | None
    worst: float | None


class Freshness:
    """Timed rows of one store."""

    def __init__(self) -> None:
        self._timed: list[tuple[float, float]] = []  # committed at, seconds until readable

    def observe(self, committed_at: float, readable_at: float) -> None:
        self._timed.append((committed_at, max(0.0, readable_at - committed_at)))

    def spread(self, since: float = -math.inf, until: float = math.inf) -> Spread:
        """Returns the spread of rows that were committed at or after `since` and before `until`."""
        values = [took for committed_at, took in self._timed if since <= committed_at < until]
        return Spread(len(values), percentile(values, 0.5), percentile(values, 0.95), max(values, default=None))


class Kill(NamedTuple):
    """A scheduled SIGKILL."""

    at_s: float  # after the workload's start
    process: str


KILL_GAP_S_MAX = 10.0


def kill_schedule(processes: Sequence[str], duration_s: float) -> tuple[Kill, ...]:
    """Returns the kills: one process after the other from the middle of the run on. They are far enough apart that the
    other processes are at work again, and near enough that a third of the time is left after the last one.
    """
    gap_s = min(KILL_GAP_S_MAX, duration_s / 6 / max(1, len(processes) - 1))
    return tuple(Kill(duration_s / 2 + place * gap_s, process) for place, process in enumerate(processes))


def duration(seconds: float | None) -> str:
    """Returns a duration that fits a table's cell: `84 ms`, `1.3 s`, `2 m 05 s`."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} m {int(seconds % 60):02} s"


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Returns the last `width` values as bars from zero to the largest."""
    shown = values[-width:] if width else []
    top = max(shown, default=0.0)
    if top <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] for value in shown)
