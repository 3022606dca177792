"""How far the stream is behind the source's commits, so that reading existing rows can pause for a backlog. Pure.

The server stamps each frame with its clock when it sends it, and each transaction with the same clock when it commits.
The difference is how late the server sends, at whatever speed it does. What waits in our own buffers comes on top; it
shows where a reading is full.
"""

from collections.abc import Sequence
from typing import Final

from cdc.pgoutput.frames import Keepalive, is_commit, parse_frame

QUIET_S: Final = 2.0
"""After so long without a frame the stream counts as caught up. Between two transactions of a backlog the server needs
less; and it does not always say that it has sent everything."""


class StreamLag:
    """Told of each reading."""

    def __init__(self) -> None:
        self._sent_late_s = 0.0
        self._heard_at = float("-inf")

    def after(
        self, frames: Sequence[bytes], now: float, now_us: int, commit_ts_us: int, *, is_begun: bool, is_full: bool
    ) -> float:
        """Seconds. `commit_ts_us`: of the newest transaction that has begun to arrive, µs since 1970. `is_begun`: it
        has not ended. `is_full`: there is more to be read at once. `now`, `now_us`: our clocks."""
        if frames:
            self._heard_at = now
            last = parse_frame(frames[-1])
            if is_begun or is_commit(frames[-1]):
                self._sent_late_s = (last.clock_us - commit_ts_us) / 1e6
            elif isinstance(last, Keepalive):
                self._sent_late_s = 0.0  # everything that committed before has been sent
        elif not is_begun and now - self._heard_at >= QUIET_S:
            self._sent_late_s = 0.0
        arrived_late_s = (now_us - commit_ts_us) / 1e6 if is_full else 0.0
        return max(0.0, self._sent_late_s, arrived_late_s)
