"""What Spark's Java process and its Python workers print, without the tracebacks of workers that were dismissed.

Java closes the connection of a Python worker that was idle for a minute, and PySpark's own daemon, which runs the parts
of a data source, then prints a traceback for it. Nothing is wrong, and nothing can be set. So the output of the Java
process passes through a thread of this process.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

_BEGIN: Final = "Traceback (most recent call last):"
_DAEMON: Final = "/pyspark/daemon.py"
# A Python process that started so slowly that Java, which waits for 10 s, does not listen any more: Java reports it.
_CONNECTING: Final = "in local_connect_and_auth"
_UNREACHED: Final = "[CANNOT_OPEN_SOCKET]"
_DURING: Final = "During handling of the above exception"
_CLOSED: Final = ("BrokenPipeError:", "ConnectionResetError:")


def without_dismissals(lines: Iterable[str]) -> Iterator[str]:
    """Yields the lines, except tracebacks of PySpark's own code for a connection that Java has closed. Several workers
    may print theirs at once, so that the lines are mixed."""
    held: list[str] = []
    is_left_out = False  # what was printed last
    for line in lines:
        if line.startswith(_BEGIN) or (held and line.startswith((" ", *_CLOSED))):
            held.append(line)
        elif held:
            passed_on = _worth_passing_on([*held, line])
            yield from passed_on
            held, is_left_out = [], not passed_on
        elif not (is_left_out and (not line.strip() or line.startswith(_DURING))):
            yield line
            is_left_out = False
    yield from _worth_passing_on(held)


def _worth_passing_on(held: Sequence[str]) -> Sequence[str]:
    """Returns the lines; of tracebacks for closed connections only the line that follows."""
    frames = [line for line in held if line.lstrip().startswith('File "')]
    *tracebacks, last = held if held and not held[-1].startswith((_BEGIN, " ", *_CLOSED)) else [*held, ""]
    if _UNREACHED in last or (_is_error(last) and any(_CONNECTING in frame for frame in frames)):
        return []
    is_dismissal = (
        bool(frames)
        and all(_DAEMON in frame for frame in frames)
        and any(line.startswith(_CLOSED) for line in tracebacks)
        and not _is_error(last)
    )
    return [last] if is_dismissal and last else [] if is_dismissal else held


def _is_error(line: str) -> bool:
    """Says whether a line can be the end of a traceback: the name of an exception."""
    return line.partition(":")[0].endswith(("Error", "Exception", "Interrupt", "Exit"))


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
