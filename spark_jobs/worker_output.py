"""What Spark's Java process and its Python workers print, without the tracebacks of workers that were dismissed.

Java closes the connection of a Python worker that was idle for a minute, and PySpark's own daemon, which runs the parts
of a data source, then prints a traceback for it. Nothing is wrong, and nothing can be set. So the output of the Java
process passes through a thread of this process.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

_BEGIN: Final = "Traceback (most recent call last):"
_DAEMON: Final = "/pyspark/daemon.py"
_CLOSED: Final = ("BrokenPipeError:", "ConnectionResetError:")


def without_dismissals(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines, except tracebacks of PySpark's daemon for a connection that Java has closed."""
    held: list[str] = []
    for line in lines:
        if held and line.startswith(" "):
            held.append(line)
            continue
        if held and not (line.startswith(_CLOSED) and any(_DAEMON in part for part in held)):
            yield from held
            held = []
        if held:
            held = []
        elif line.startswith(_BEGIN):
            held = [line]
        else:
            yield line
    yield from held


@contextmanager
def filtered_output() -> Iterator[None]:
    """A process that is started within this context has this filter before its standard error."""
    reads, writes = os.pipe()
    errors = os.dup(2)
    os.dup2(writes, 2)
    os.close(writes)
    try:
        yield
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        threading.Thread(target=_pass_on, args=(reads,), name="output of Spark", daemon=True).start()


def _pass_on(descriptor: int) -> None:
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
        for line in without_dismissals(lines):
            sys.stderr.write(line)
            sys.stderr.flush()
