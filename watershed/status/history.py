"""Facts that need several observations: how fast WAL grows, how old a lag is, since when something has not moved.
Pure."""

from collections import deque
from typing import Any, Final

KEPT_S: Final = 600.0  # a lag that is older is measured by commit times
RATE_WINDOW_S: Final = 60.0
SAMPLES_MAX: Final = 1_000
# pg_current_wal_flush_lsn() may be after a page header that no record has reached: 40 bytes at most.
PAGE_HEADER_BYTES: Final = 64

EpochLsn = tuple[int, int]  # epoch, LSN


class ObservationHistory:
    """Remembers observations, which are added one at a time. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, EpochLsn]] = deque(maxlen=SAMPLES_MAX)
        self._values: dict[str, tuple[Any, float, bool]] = {}  # name → value, since when, whether it had another

    def observe_end(self, now: float, end: EpochLsn) -> None:
        """Adds an observation of the end of the source's log."""
        if self._ends and end < self._ends[-1][1]:
            self._ends.clear()  # another history: LSNs went back
        self._ends.append((now, end))
        while len(self._ends) > 2 and self._ends[1][0] <= now - KEPT_S:
            self._ends.popleft()

    def silent_s(self, name: str, value: Any, now: float, before_s: float = 0.0) -> float:
        """Returns for how long `name` has had this value. `before_s`: for how long it had had the first observed value,
        if that is known."""
        known, since, has_moved = self._values.get(name, (value, now, False))
        if known != value:
            since, has_moved = now, True
        self._values[name] = (value, since, has_moved)
        return now - since if has_moved else max(now - since, before_s)

    def behind_s(self, place: EpochLsn, now: float) -> tuple[float, bool]:
        """Returns how long ago the log's end first lay after `place` (0: it does not), and whether that was observed:
        otherwise it is a lower bound."""
        found = 0.0
        for number, (at, end) in enumerate(reversed(self._ends)):
            if end[0] == place[0] and end[1] - place[1] <= PAGE_HEADER_BYTES:
                return found, True
            if end <= place:
                return found, True
            found = now - at
            if number == len(self._ends) - 1:
                return found, False
        return found, True

    def wal_rate(self, now: float) -> float | None:
        """Bytes per second, over the last RATE_WINDOW_S; None before there are two observations."""
        seen = [(at, end) for at, end in self._ends if at >= now - RATE_WINDOW_S]
        if len(seen) < 2 or seen[-1][0] <= seen[0][0] or seen[0][1][0] != seen[-1][1][0]:
            return None
        return (seen[-1][1][1] - seen[0][1][1]) / (seen[-1][0] - seen[0][0])
