"""The process in which a Python function runs: `python -m sinks.shaping.functions.process NAME VERSION SOCKET PARENT`.

Each line that it reads from the socket is JSON, and so is its answer, one line for each: first the columns' types, with
an empty answer; then rows. An answer to a row has `row` (null: the row is left out) or `error`.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from cdc.config.row_functions import RowFunction, row_function
from sinks.records import decode_json, encode_json
from sinks.shaping.expressions.types import ComputationError
from sinks.shaping.functions.values import WrongValueError, readers, to_record
from sinks.shaping.functions.versions import require_versions

_PR_SET_PDEATHSIG: Final = 1
_ERROR_CHARS_MAX: Final = 500


def answer(function: RowFunction, reads: dict[str, Callable[[Any], Any]], row: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a row."""
    try:
        columns = {name: None if (value := row[name]) is None else read(value) for name, read in reads.items()}
    except ComputationError as error:
        return {"error": str(error)}
    try:
        returned = function.call(columns)
    except (Exception, SystemExit) as error:  # noqa: BLE001  code of another package: it belongs to the row
        return {"error": _described(error)}
    if returned is None:
        return {"row": None}
    try:
        return {"row": to_record(function.returns, returned)}
    except WrongValueError as error:
        return {"error": str(error)}


def _described(error: BaseException) -> str:
    """Returns the error in one line that can be encoded."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  its own __str__ fails
        text = ""
    whole = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return whole.encode("utf-8", "replace").decode()[:_ERROR_CHARS_MAX]


def _end_with(parent: int) -> None:
    """Ends this process with its parent, also while the function runs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def main() -> None:
    name, version, number, parent = sys.argv[1:]
    _end_with(int(parent))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the function prints goes to the log
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent ends this process
    require_versions({name: version})  # it may have been installed again while the sink runs
    function = row_function(name)
    with socket.socket(fileno=int(number)) as connection, connection.makefile("rwb") as lines:
        reads = readers(json.loads(lines.readline() or b"{}"))
        lines.write(b"{}\n")
        lines.flush()
        for line in lines:
            lines.write(encode_json(answer(function, reads, decode_json(line))) + b"\n")
            lines.flush()


if __name__ == "__main__":
    main()
