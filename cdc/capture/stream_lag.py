"""The seconds by which the stream is behind the commits of the source, so that snapshots can pause for a backlog. Pure.

The server stamps each frame with its clock when it sends it, and each transaction with the same clock when it commits.
The difference is the delay of the server, whatever its speed. Frames in our own buffers come on top; a read that
reached its limit shows that there are more.
"""

from collections.abc import Sequence
from typing import Final

from cdc.pgoutput.frames import Keepalive, is_commit, parse_frame

QUIET_S: Final = 2.0
"""Seconds without a frame after which the stream counts as caught up. Between two transactions of a backlog the server
needs less, and it does not always report that it has sent everything."""


class StreamLag:
    """Computes the lag after each read."""

    def __init__(self) -> None:
        self._sent_late_s = 0.0
        self._received_at = float("-inf")

    def after(
        self, frames: Sequence[bytes], now: float, now_us: int, commit_ts_us: int, *, is_begun: bool, is_full: bool
    ) -> float:
        """Returns the lag in seconds. `commit_ts_us`: commit time of the newest transaction that began to arrive, µs
        since 1970. `is_begun`: that transaction has not ended. `is_full`: the read reached its limit. `now`, `now_us`:
        our clocks, monotonic seconds and µs since 1970."""
        if frames:
            self._received_at = now
            last = parse_frame(frames[-1])
            if is_begun or is_commit(frames[-1]):
                self._sent_late_s = (last.clock_us - commit_ts_us) / 1e6
            elif isinstance(last, Keepalive):
                self._sent_late_s = 0.0  # the server has sent everything that committed before
        elif not is_begun and now - self._received_at >= QUIET_S:
            self._sent_late_s = 0.0
        arrived_late_s = (now_us - commit_ts_us) / 1e6 if is_full else 0.0
        return max(0.0, self._sent_late_s, arrived_late_s)
