"""Reports of running tasks to the driver, whose answer says whether the task may continue.

Spark passes a task's result to the driver when the task ends. Rounds that are short for this reason cost a Spark job, a
seek of the consumer and a pause in reading several times a second. So tasks are long, and report meanwhile over a
connection to the driver. Both ends prove that they know a key which Spark has brought to the task (the handshake of
multiprocessing.connection: HMAC, no secret on the wire). Pickled reports are only read after that.

A task that can't reach its driver ends soon, and reports by its result alone.
"""

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, Final, NamedTuple

import structlog

log = structlog.get_logger(__name__)

CONNECT_S_MAX: Final = 5.0
ANSWER_S_MAX: Final = 30.0  # a driver that is silent for longer is frozen or dead
BACKLOG: Final = 64  # connections that wait to be accepted

Handler = Callable[[Any], bool]  # takes a report; says whether the task may continue


class Address(NamedTuple):
    """The address to which the tasks of one round report."""

    host: str
    port: int
    key: bytes
    round_number: int


class ReportServer:
    """The driver's end of the connections. One for each process."""

    def __init__(self, bind_host: str, host: str) -> None:
        """`host`: the name by which executors reach `bind_host`."""
        self._key = secrets.token_bytes(32)
        self._handlers: dict[int, Handler] = {}  # by round
        self._rounds_begun = 0
        self._lock = threading.Lock()  # of both
        self._socket = socket.create_server((bind_host, 0), backlog=BACKLOG)
        self._host = host
        threading.Thread(target=self._accept, name="task reports", daemon=True).start()

    @contextmanager
    def receiving(self, handler: Handler) -> Iterator[Address]:
        """Passes reports to the address on within this context, each in a thread of its task's connection."""
        with self._lock:
            self._rounds_begun += 1
            number = self._rounds_begun
            self._handlers[number] = handler
        try:
            yield Address(self._host, self._socket.getsockname()[1], self._key, number)
        finally:
            with self._lock:
                del self._handlers[number]

    def _accept(self) -> None:
        while True:
            accepted, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(accepted,), name="task reports", daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        accepted.settimeout(None)
        with Connection(accepted.detach()) as connection, suppress(OSError, EOFError, AuthenticationError):
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            number = connection.recv()
            while True:
                report = connection.recv()
                with self._lock:
                    handler = self._handlers.get(number)
                if handler is None:  # the round is over for the driver: its job failed or was cancelled
                    return
                connection.send(handler(report))


class Reporter:
    """A task's end of the connection."""

    def __init__(self, address: Address) -> None:
        """Connects. Raises OSError, AuthenticationError if the driver can't be reached."""
        opened = socket.create_connection((address.host, address.port), CONNECT_S_MAX)
        opened.settimeout(None)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = Connection(opened.detach())
        try:
            answer_challenge(self._connection, address.key)
            deliver_challenge(self._connection, address.key)
            self._connection.send(address.round_number)
        except BaseException:
            self._connection.close()
            raise

    def send(self, report: Any) -> bool | None:
        """Sends a report. Returns whether the task may continue; None without an answer: the driver may have the report
        or not."""
        try:
            self._connection.send(report)
            return bool(self._connection.recv()) if self._connection.poll(ANSWER_S_MAX) else None
        except (OSError, EOFError):
            return None

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()


def open_reporter(address: Address) -> Reporter | None:
    """Opens a connection; None if the driver can't be reached. Logs the reason once for each process."""
    try:
        return Reporter(address)
    except (OSError, EOFError, AuthenticationError) as error:
        _log_unreachable(address.host, type(error).__name__)
        return None


@cache
def _log_unreachable(host: str, reason: str) -> None:
    log.warning(
        "tasks report their progress only at their end",
        because=f"the driver at {host} can't be reached ({reason})",
        next="let executors connect to the driver's machine, or set spark.driver.host to an address that they reach",
    )


@cache
def report_server(bind_host: str, host: str) -> ReportServer:
    """Returns this process's server for these addresses."""
    return ReportServer(bind_host, host)
