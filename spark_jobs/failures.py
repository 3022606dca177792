"""Finds the cause of an error of Spark's, as one line for a log. Pure."""

import re
from typing import Final

REASON_CHARS_MAX: Final = 300
_TRACEBACK: Final = "Traceback (most recent call last)"
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit)\b[^\n]*", re.MULTILINE)
# The exceptions of a worker whose Java process, or whose daemon, has ended: they name no cause.
_CONNECTIONS: Final = ("BrokenPipeError", "ConnectionResetError", "EOFError")
# Texts with which drivers announce a task's failure, before its cause.
_WRAPPERS: Final = ("An error occurred while calling", "org.apache.spark.SparkException: Job aborted")


def reason(error: BaseException) -> str:
    """Returns the most informative line: the exception of a task's Python code if there is one, otherwise the first
    line that is not Spark's own announcement. It may be cut; it is always one line."""
    text = str(error).strip()
    _, found, traceback = text.partition(_TRACEBACK)
    raised = _RAISED.search(traceback) if found else None
    if raised is not None:
        line = raised[0].strip()
        if line.startswith(_CONNECTIONS):
            line = (
                f"a Python worker of Spark lost its connection to Spark: one of its processes has ended, or was killed "
                f"({line})"
            )
        return line[:REASON_CHARS_MAX]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    informative = [line for line in lines if not line.startswith(_WRAPPERS)]
    if lines and not informative:
        return f"Spark's Java process did not answer a call ({lines[0]})"[:REASON_CHARS_MAX]
    return (informative or [type(error).__name__])[0][:REASON_CHARS_MAX]
