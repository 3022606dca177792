"""Processes of the command `cdc`, and those that end with this one, however it ends."""

import ctypes
import signal
import sys
from collections.abc import Callable
from typing import Final

CDC: Final = (sys.executable, "-m", "watershed")  # the command, run by the interpreter of this process
_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> Callable[[], None] | None:
    """Returns what a child calls before it executes its program: it asks Linux to send SIGTERM when the thread that
    started the child ends."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask
