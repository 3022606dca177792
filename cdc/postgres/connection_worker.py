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
        settings: LiteralString,
    ) -> None:
        self.requests = requests
        self.closing = threading.Event()
        self._source = source
        self._serve = serve
        self._settings = settings
        self._connection: SourceConnection | None = None
        self._lock = threading.Lock()  # guards _connection
        # A daemon thread: a server that hangs must not keep the process from ending.
        self.thread = threading.Thread(target=self._run, name="watershed snapshot", daemon=True)

    def start(self) -> None:
        """Starts the thread at the first call."""
        if self.thread.ident is None and not self.closing.is_set():
            self.thread.start()

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
                self.closing.wait(RECONNECT_S)
                raise ConnectionLost(error.message, error.hint) from error
            with self._lock:
                self._connection = made
        if self.closing.is_set():
            raise ConnectionLost("the reader is being closed")
        return self._connection

    def drop(self) -> None:
        with self._lock:
            dropped, self._connection = self._connection, None
        if dropped is not None:
            dropped.close()

    def _run(self) -> None:
        while not self.closing.is_set():
            try:
                request = self.requests.get(timeout=IDLE_S)
            except queue.Empty:
                self.drop()
                continue
            if request is not None:
                self._serve(self, request)
        self.drop()


def close_workers(workers: Sequence[ConnectionWorker[Any]]) -> None:
    """Cancels running queries and ends the threads, in little more than a second. Idempotent."""
    for worker in workers:
        worker.closing.set()
    for worker in workers:
        worker.requests.put(None)  # only now: workers may share a queue, and each ends at the first None
    deadline = time.monotonic() + CANCEL_S
    while (running := [worker for worker in workers if worker.thread.is_alive()]) and time.monotonic() < deadline:
        for worker in running:
            worker.cancel(deadline)  # may arrive between two statements, so it is repeated
        for worker in running:
            worker.thread.join(min(JOIN_S, max(0.0, deadline - time.monotonic())))
    for worker in running:
        worker.cut()
    deadline = time.monotonic() + END_S
    for worker in running:
        worker.thread.join(max(0.0, deadline - time.monotonic()))
