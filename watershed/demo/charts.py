"""Calculations of the demo: percentiles, the chart of lags, the schedule of kills. Pure; time is an argument."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

WIDTH: Final = 60  # of the chart
MARK: Final = "▲"
KILL_GAP_S_MAX: Final = 10.0
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles (nearest rank) of durations in seconds; None without any."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    worst: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        ranked = sorted(values)
        if not ranked:
            return cls()
        p50, p95 = (ranked[max(0, math.ceil(share * len(ranked)) - 1)] for share in (0.5, 0.95))
        return cls(len(ranked), p50, p95, ranked[-1])


class Kill(NamedTuple):
    """A scheduled SIGKILL."""

    at_s: float  # after the workload's start
    process: str


def kill_schedule(processes: Sequence[str], duration_s: float) -> list[Kill]:
    """Returns the kills: one process after the other from the middle of the run on. They are far enough apart that the
    other processes are at work again, and near enough that a third of the time is left after the last one.
    """
    gap_s = min(KILL_GAP_S_MAX, duration_s / 6 / max(1, len(processes) - 1))
    return [Kill(duration_s / 2 + place * gap_s, process) for place, process in enumerate(processes)]


def duration(seconds: float | None) -> str:
    """Returns a duration that fits a table's cell: `84 ms`, `1.3 s`, `2 m 05 s`."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{int(seconds // 60)} m {int(seconds % 60):02} s"


def sparkline(values: Sequence[float]) -> str:
    """Returns the values as bars from zero to the largest."""
    top = max(values, default=0.0) or math.inf
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] for value in values)


class LagChart:
    """Lags in seconds by second of the workload, with the kills marked."""

    def __init__(self) -> None:
        self._lags: dict[str, list[float]] = {}
        self._kills: list[Kill] = []

    def observe(self, at_s: float, store: str, lag_s: float) -> None:
        """Records a store's lag: the largest of each second counts, and a second without any repeats the last."""
        second, line = int(at_s), self._lags.setdefault(store, [])
        if len(line) > second:
            line[second] = max(line[second], lag_s)
        else:
            line += [line[-1] if line else 0.0] * (second - len(line)) + [lag_s]

    def kill(self, kill: Kill) -> None:
        self._kills.append(kill)

    def column_s(self, width: int = WIDTH) -> int:
        """Returns the number of seconds in a column."""
        return max(1, math.ceil(max(map(len, self._lags.values()), default=0) / width))

    def lines(self, width: int = WIDTH) -> list[tuple[str, str, float]]:
        """Returns name, bars and largest lag of each store. A column is the largest lag of its seconds."""
        step = self.column_s(width)
        columns = {
            name: [max(lags[place : place + step]) for place in range(0, len(lags), step)]
            for name, lags in self._lags.items()
        }
        return [(name, sparkline(values), max(values)) for name, values in columns.items()]

    def marks(self, width: int = WIDTH) -> str:
        """Returns the line with a mark below each second in which a process was killed, and what was killed."""
        if not self._kills:
            return ""
        places = {min(width - 1, int(kill.at_s) // self.column_s(width)) for kill in self._kills}
        row = "".join(MARK if place in places else " " for place in range(max(places) + 1))
        killed = ", ".join(f"{kill.process} at {duration(kill.at_s)}" for kill in self._kills)
        return f"{row}  kill -9: {killed}"
