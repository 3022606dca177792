"""Which thread gets a signal: the one that waits for it, or Python's main thread, and no other."""

from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIG_BLOCK, SIG_SETMASK, SIGHUP, SIGINT, SIGTERM, pthread_sigmask
from typing import Final

PROCESS_SIGNALS: Final = frozenset({SIGTERM, SIGINT, SIGHUP})


@contextmanager
def without_signals() -> Iterator[None]:
    """Threads that are started in this context, and those that they start, get no signal of the process: one with the
    default action would end it."""
    before = pthread_sigmask(SIG_BLOCK, PROCESS_SIGNALS)
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)
