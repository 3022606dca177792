"""Forks Spark's Python processes from one that has imported what they need.

Spark starts an interpreter for each step of a query with a Python data source (finding it, creating it, planning its
batches, planning its reads, running its tasks), one after the other, and each imports PySpark from an archive, without
compiled files: on two cores a sink's first batch waited 5 s for imports. This server imports them once, while Java
starts. Spark knows `fork_launcher.py` as its interpreter, which passes the request on; if the server is gone, it starts
the interpreter itself. Workers that run tasks are forked by Spark's daemon as ever (spark_jobs/daemon.py).

Only for the Spark that this process starts: a cluster's executors have interpreters of their own.
"""

import atexit
import gc
import json
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from spark_jobs.python_processes import SHARED, import_beforehand, is_spark_archive

# What Spark's processes import, besides the modules that they run.
PRELOADED: Final = (
    *SHARED,
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "spark_jobs.source.datasource",
    "spark_jobs.source.warming",
    "spark_jobs.daemon",
)
REQUEST_S_MAX: Final = 10.0  # a launcher sends its request at once
_SOCKET: Final = "socket"
_LAUNCHER: Final = Path(__file__).with_name("fork_launcher.py")
_running: Final[list[tuple[subprocess.Popen[bytes], Path]]] = []  # at most one


def interpreter() -> str:
    """Returns the path of the interpreter for Spark, and starts the server for it; it ends with this process. Returns
    that of Python itself where no server can be started, or its folder may not have programs."""
    if not _running:
        folder = Path(tempfile.mkdtemp(prefix="watershed-python-"))
        try:
            script = _script(folder)
            subprocess.run([script, "-c", ""], check=True)
            _running.append((_started(folder), script))
        except (OSError, subprocess.CalledProcessError):
            shutil.rmtree(folder, ignore_errors=True)
            return sys.executable
    return str(_running[0][1])


def _script(folder: Path) -> Path:
    words = [sys.executable, "-I", "-S", str(_LAUNCHER), str(folder / _SOCKET), sys.executable]
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    script.chmod(0o700)
    return script


def _started(folder: Path) -> "subprocess.Popen[bytes]":
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / _SOCKET))
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-m", "spark_jobs.fork_server", str(listener.fileno()), str(folder)],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            # Strings must have the same hash in all of Spark's processes: Spark sets the variable for them.
            env={**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},
        )
    atexit.register(_end, server, folder)
    return server


def server_number() -> int | None:
    """Returns the server's process number."""
    return _running[0][0].pid if _running else None


def _end(server: "subprocess.Popen[bytes]", folder: Path) -> None:
    assert server.stdin is not None
    server.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)


class ForkServer:
    """Serves launchers until the standard input is closed, that is until the process that started it has ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, socket.socket] = {}  # process number → its launcher
        self._woken, self._waker = socket.socketpair()

    def serve(self) -> None:
        """Returns when nobody needs the server any more. In a forked process it does not return."""
        for end in (self._woken, self._waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for source in (sys.stdin.fileno(), self._listener, self._woken):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == sys.stdin.fileno():
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._reap()
                else:
                    self._abandon(key.fileobj)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            connection.settimeout(REQUEST_S_MAX)
            head, streams, _, _ = socket.recv_fds(connection, 4, 3)
            request = _received(connection, int.from_bytes(head, "big"))
            arguments, environment, folder = json.loads(request)
            connection.sendall(b"+")
            child = os.fork()
        except (OSError, ValueError):  # the launcher has ended, or starts the interpreter itself
            connection.close()
            return
        if child == 0:
            self._become(arguments, environment, folder, streams)
        for stream in streams:
            os.close(stream)
        self._children[child] = connection
        self._selector.register(connection, selectors.EVENT_READ)

    def _become(
        self, arguments: Sequence[str], environment: dict[str, str], folder: str, streams: Sequence[int]
    ) -> NoReturn:
        """Runs the request in the forked process, and ends it. The connection stays open until all of its processes
        have ended."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        self._selector.close()
        for held in (self._listener, self._woken, self._waker, *self._children.values()):
            held.close()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        code = 1
        try:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            code = run_module(arguments)
        except BaseException:  # noqa: BLE001 - an interpreter prints it, and ends
            sys.excepthook(*sys.exc_info())
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        """Passes on the exit codes of processes that have ended."""
        for child in list(self._children):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                connection = self._children.pop(child)
                with suppress(KeyError):  # abandoned
                    self._selector.unregister(connection)
                code = os.waitstatus_to_exitcode(status)
                with suppress(OSError):
                    connection.send(bytes([code if code >= 0 else 128 - code]))
                connection.close()

    def _abandon(self, connection: object) -> None:
        """Spark has ended a launcher: its process ends, too."""
        self._selector.unregister(connection)  # type: ignore[arg-type]
        for child, launcher in self._children.items():
            if launcher is connection:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGTERM)


def run_module(arguments: Sequence[str]) -> int:
    """Does what `python -m MODULE ARGUMENT…` does, in this process. Returns the exit code."""
    module = arguments[1]
    with suppress(OSError):  # what `ps` shows of it, at most 15 characters
        Path("/proc/self/comm").write_text(f"spark {arguments[-1].rpartition('.')[2]}")
    sys.argv[:] = list(arguments[1:])
    sys.path[0] = str(Path.cwd())
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[1:1] = [path for path in own if not is_spark_archive(path)]
    sys.modules.pop(module, None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _received(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError
        received += part
    return bytes(received)


def main(listener: str, folder: str) -> None:
    """Runs the server on an open socket, and removes its folder in the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: Spark ends its processes
    import_beforehand(PRELOADED)
    gc.collect()
    gc.freeze()  # collections in forked processes would copy the pages that they share
    try:
        ForkServer(socket.socket(fileno=int(listener))).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
