"""Observes the status at a regular rhythm, whether or not somebody asks for it."""

import threading
from collections.abc import Callable

from cdc.status.model import Status
from cdc.status.trend import INTERVAL_S, Recent, Trend


class Observed:
    """The trend of one process. Its thread is a daemon, and calls only what a request for the status calls too."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._trend = Trend()
        self._lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._run, name="trend", daemon=True).start()

    def observe(self) -> None:
        status = self._status()
        with self._lock:
            self._trend.observe(status)

    def recent(self) -> Recent:
        with self._lock:
            return self._trend.recent()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self.observe()
            pause.wait(INTERVAL_S)
