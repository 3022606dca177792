"""Blocking calls, with somebody to keep informed meanwhile."""

import threading

import pytest

from cdc.kafka.daemon_thread import call_in_thread


def test_who_waits_is_called_until_the_answer_is_there() -> None:
    informed = threading.Event()
    assert call_in_thread(lambda: informed.wait(30), informed.set) is True


def test_what_is_raised_is_raised_here() -> None:
    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        call_in_thread(fail, lambda: None)


def test_what_the_waiting_raises_comes_through() -> None:
    end = threading.Event()

    def lost() -> None:
        end.set()
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        call_in_thread(lambda: end.wait(30), lost)
