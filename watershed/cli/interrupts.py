"""Interruption of commands that wait: Ctrl-C and SIGTERM end them with a message and exit code 130."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from watershed.cli.exit_codes import INTERRUPTED
from watershed.cli.snapshot_screen import ProgressScreen


@contextmanager
def interrupted(screen: ProgressScreen, text: str) -> Iterator[None]:
    """Makes Ctrl-C print `text` and end the command."""
    try:
        yield
    except KeyboardInterrupt:
        screen.close()
        screen.say(text)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM end a command like Ctrl-C. The job that it has started ends, too."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
