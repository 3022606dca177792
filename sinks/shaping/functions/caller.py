"""Calls Python functions in processes of their own, each with a limit of time for a row.

Only the end of a process ends a function that hangs in C code, or that has taken all memory. So a row that takes too
long costs its function's process, and nothing else.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Final

import structlog

from sinks.contract import Json
from sinks.errors import SinkError
from sinks.records import decode_json, encode_json
from sinks.shaping.expressions.types import ComputationError

log = structlog.get_logger(__name__)

START_S_MAX: Final = 60.0
_PROGRAM: Final = "sinks.shaping.functions.process"


class FunctionCaller:
    """Calls one function for rows of one table. The process is started for the first row, and again after it ended. It
    ends with this process."""

    def __init__(self, name: str, version: str, columns: tuple[tuple[str, str], ...], limit_s: float) -> None:
        """`columns`: that the function reads, with their types (`sinks.shaping.functions.values.read_type`)."""
        self._name = name
        self._words = (name, version)
        self._columns = columns
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._received = bytearray()

    def call(self, row: Mapping[str, Json]) -> dict[str, Json] | None:
        """Returns the function's columns in the form of records; None for a row that it leaves out. Raises
        ComputationError for a row without a result, and SinkError if the process can't be started."""
        line = encode_json(row) + b"\n"
        with self._lock:
            # What ends the process between two rows has nothing to do with the row: it gets a second try.
            answer = self._answer(line) or self._answer(line)
        if answer is None:
            raise ComputationError(f"function {self._name}: its process ended while it computed the row")
        if "error" in answer:
            raise ComputationError(f"function {self._name}: {answer['error']}")
        found: dict[str, Json] | None = answer["row"]
        return found

    def _answer(self, line: bytes) -> dict[str, Json] | None:
        """Returns the answer to a row; None if the process has ended. Raises ComputationError if it takes too long."""
        connection = self._connection or self._started()
        try:
            return self._exchanged(connection, line, self._limit_s)
        except TimeoutError:
            self._end()
            log.warning("a function took too long for a row", function=self._name, limit_s=self._limit_s)
            raise ComputationError(f"function {self._name}: no result within {self._limit_s:g} s") from None
        except OSError:
            self._end()
            return None

    def _started(self) -> socket.socket:
        """Starts the process and returns the connection to it. Raises SinkError."""
        self._connection, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _starter(os.getpid()).submit(_process, self._words, theirs.fileno()).result()
            self._exchanged(self._connection, json.dumps(dict(self._columns)).encode() + b"\n", START_S_MAX)
        except OSError as error:
            code = None if self._process is None else _exit_code(self._process)
            self._end()
            raise SinkError(
                f"the process of function {self._name} can't be started: "
                + (f"it ended with exit code {code}" if code is not None else str(error)),
                "read its output in the log; if its package was installed again, start the sink again",
            ) from error
        return self._connection

    def _exchanged(self, connection: socket.socket, line: bytes, limit_s: float) -> dict[str, Json]:
        """Sends a line and returns the answer. Raises OSError; TimeoutError after the limit."""
        deadline = time.monotonic() + limit_s
        connection.settimeout(limit_s)
        connection.sendall(line)
        while not self._received.endswith(b"\n"):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            connection.settimeout(remaining_s)
            part = connection.recv(1 << 16)
            if not part:
                raise ConnectionResetError("the process ended")
            self._received += part
        answer: dict[str, Json] = decode_json(bytes(self._received))
        self._received.clear()
        return answer

    def _end(self) -> None:
        self._received.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def caller(name: str, version: str, columns: Mapping[str, str], limit_s: float) -> FunctionCaller:
    """Returns this process's caller of a function for tables whose columns have these types."""
    return _caller(os.getpid(), name, version, tuple(columns.items()), limit_s)


@cache
def _caller(_: int, name: str, version: str, columns: tuple[tuple[str, str], ...], limit_s: float) -> FunctionCaller:
    return FunctionCaller(name, version, columns, limit_s)


@cache
def _starter(_: int) -> ThreadPoolExecutor:
    """The thread that starts processes: Linux ends such a process with the thread that started it."""
    return ThreadPoolExecutor(1, "function-starter")


def _process(words: Sequence[str], descriptor: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", _PROGRAM, *words, str(descriptor), str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[descriptor], env=environment)


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(1.0)
    return None
