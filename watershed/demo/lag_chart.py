"""The stores' lags over the run, a point for each second, with the kills marked."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from watershed.demo.figures import duration, sparkline

WIDTH: Final = 60
MARK: Final = "▲"


class LagLine(NamedTuple):
    """One store's lag."""

    name: str
    bars: str  # zero to the store's largest lag
    largest_s: float


class LagChart:
    """Lags in seconds by second of the workload. Pure; time is an argument."""

    def __init__(self) -> None:
        self._lags: dict[str, list[float]] = {}
        self._kills: list[tuple[float, str]] = []

    def observe(self, at_s: float, lags: Mapping[str, float]) -> None:
        """Records the stores' lags: the largest of each second counts, and a second without any repeats the last."""
        second = int(at_s)
        for name, lag in lags.items():
            line = self._lags.setdefault(name, [])
            while len(line) < second:
                line.append(line[-1] if line else 0.0)
            if len(line) == second:
                line.append(lag)
            else:
                line[second] = max(line[second], lag)

    def kill(self, at_s: float, process: str) -> None:
        self._kills.append((at_s, process))

    def lines(self, width: int = WIDTH) -> list[LagLine]:
        """Returns a line for each store. A column is the largest lag of its seconds."""
        step = self._step(width)
        lines = []
        for name, lags in self._lags.items():
            columns = [max(lags[place : place + step]) for place in range(0, len(lags), step)]
            lines.append(LagLine(name, sparkline(columns, width), max(lags)))
        return lines

    def marks(self, width: int = WIDTH) -> str:
        """Returns the line with a mark below each second in which a process was killed, and what was killed."""
        if not self._kills:
            return ""
        places = {min(width - 1, int(at_s) // self._step(width)) for at_s, _ in self._kills}
        row = "".join(MARK if place in places else " " for place in range(max(places) + 1))
        said = ", ".join(f"{process} at {duration(at_s)}" for at_s, process in self._kills)
        return f"{row}  kill -9: {said}"

    def title(self, width: int = WIDTH) -> str:
        step = self._step(width)
        return f"behind, over the run; a column is {'a second' if step == 1 else f'{step} seconds'}"

    def _step(self, width: int) -> int:
        return max(1, math.ceil(max((len(line) for line in self._lags.values()), default=0) / width))
