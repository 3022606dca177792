"""What becomes of telemetry that a process sends: counted, and said once. Nobody waits for it."""

import threading
from typing import Literal

import structlog

log = structlog.get_logger(__name__)

Signal = Literal["traces", "metrics", "lineage"]


class Deliveries:
    """The deliveries of one signal. Called from any thread."""

    def __init__(self, signal: Signal, hint: str) -> None:
        """`hint`: the next step of a user where nothing is delivered."""
        self.signal = signal
        self._hint = hint
        self._lock = threading.Lock()
        self._dropped = 0
        self._is_failing = False

    @property
    def dropped(self) -> int:
        return self._dropped

    def drop(self, count: int) -> None:
        """Counts what was given up, because the queue is full."""
        with self._lock:
            self._dropped += count

    def on_failure(self, reason: str, given_up: int = 0) -> None:
        """Notes a delivery that failed. `given_up`: what is not sent again. The first failure after a success is
        logged."""
        with self._lock:
            self._dropped += given_up
            is_new, self._is_failing = not self._is_failing, True
        if is_new:
            log.warning(
                "telemetry can't be delivered, nothing else waits for it",
                signal=self.signal,
                because=reason,
                next=self._hint,
            )

    def on_success(self) -> None:
        with self._lock:
            was_failing, self._is_failing = self._is_failing, False
        if was_failing:
            log.info("telemetry is delivered again", signal=self.signal, dropped=self._dropped)
