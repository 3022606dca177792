"""Threads that query the source beside the stream, each with a connection of its own."""

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, LiteralString, TypeVar

import psycopg
import structlog

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConnectionLost, WatershedError
from cdc.postgres.connection import SourceConnection, connect

log = structlog.get_logger(__name__)

RECONNECT_S: Final = 0.5  # seconds after a failed connection attempt
IDLE_S: Final = 30.0  # seconds after which an idle connection is closed
CANCEL_S: Final = 0.8
JOIN_S: Final = 0.05
END_S: Final = 0.4

T = TypeVar("T")


class ConnectionWorker(Generic[T]):
    """A thread and its connection, which serve requests from a queue."""

    def __init__(
        self,
        source: SourceConfig,
        requests: "queue.SimpleQueue[T | None]",
        serve: Callable[["ConnectionWorker[T]", T], None],
        closing: threading.Event,
        settings: LiteralString,
    ) -> None:
        self.requests = requests
        self._source = source
        self._serve = serve
        self._closing = closing
        self._settings = settings
        self._connection: SourceConnection | None = None
        self._lock = threading.Lock()  # guards _connection
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None and not self._closing.is_set():
            # A daemon thread: a server that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name="watershed snapshot", daemon=True)
            self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def join(self, deadline: float) -> None:
        """Waits for the end of the thread. `deadline`: monotonic seconds."""
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def cancel(self, deadline: float) -> None:
        """Asks the server to cancel the running query. `deadline`: monotonic seconds. Called from another thread."""
        with self._lock:
            connection = self._connection
        timeout = deadline - time.monotonic()
        if connection is not None and timeout > 0:
            try:
                connection.cancel_safe(timeout=timeout)
            except psycopg.Error as error:
                log.debug("could not cancel the query", error=" ".join(str(error).split()))

    def cut(self) -> None:
        """Shuts the connection's socket down, if the server did not cancel. Called from another thread: the connection
        object may be in use, its socket can be shut down all the same."""
        with self._lock:
            if self._connection is None or self._connection.closed:
                return
            descriptor = os.dup(self._connection.pgconn.socket)
        with socket.socket(fileno=descriptor) as connected:
            try:
                connected.shutdown(socket.SHUT_RDWR)
            except OSError as error:
                log.debug("could not shut the connection down", error=error.strerror)

    # ---- in the thread

    def connection(self) -> SourceConnection:
        """Returns the connection, which is opened if necessary. Raises ConnectionLost, also if the reader is being
        closed."""
        if self._connection is None:
            try:
                made = connect(self._source, application="watershed snapshot")
                made.prepare_threshold = None  # several statements in one string can't be prepared
                made.execute(self._settings)
            except WatershedError as error:
                self._closing.wait(RECONNECT_S)
                raise ConnectionLost(error.message, error.hint) from error
            with self._lock:
                self._connection = made
        if self._closing.is_set():
            raise ConnectionLost("the reader is being closed")
        return self._connection

    def drop(self) -> None:
        with self._lock:
            dropped, self._connection = self._connection, None
        if dropped is not None:
            dropped.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                request = self.requests.get(timeout=IDLE_S)
            except queue.Empty:
                self.drop()
                continue
            if request is not None:
                self._serve(self, request)
        self.drop()


def close_workers(workers: Sequence[ConnectionWorker[Any]]) -> None:
    """Cancels running queries and ends the threads, in little more than a second. Their `closing` must be set.
    Idempotent."""
    for worker in workers:
        worker.requests.put(None)
    deadline = time.monotonic() + CANCEL_S
    while (running := [worker for worker in workers if worker.is_running]) and time.monotonic() < deadline:
        for worker in running:
            worker.cancel(deadline)  # may arrive between two statements, so it is repeated
        for worker in running:
            worker.join(min(deadline, time.monotonic() + JOIN_S))
    for worker in running:
        worker.cut()
    deadline = time.monotonic() + END_S
    for worker in running:
        worker.join(deadline)
