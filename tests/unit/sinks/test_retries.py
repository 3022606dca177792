"""Calls are repeated a bounded number of times, with growing pauses."""

import pytest

from sinks.retries import Retries


class Answers:
    """Raises or returns what it is given, one after the other."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    def __call__(self) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def is_timeout(error: Exception) -> bool:
    return isinstance(error, TimeoutError)


def test_the_first_answer_ends_it_without_a_pause() -> None:
    pauses: list[float] = []
    assert Retries(sleep=pauses.append).call(Answers("answer"), is_timeout) == "answer"
    assert pauses == []


def test_pauses_double_up_to_their_limit() -> None:
    pauses: list[float] = []
    retries = Retries(attempt_count_max=6, delay_s_first=1, delay_s_max=5, sleep=pauses.append)
    assert retries.call(Answers(*[TimeoutError()] * 5, "answer"), is_timeout) == "answer"
    assert pauses == [1, 2, 4, 5, 5]


def test_the_last_failure_is_raised() -> None:
    pauses: list[float] = []
    work = Answers(TimeoutError("first"), TimeoutError("second"), "never asked")
    with pytest.raises(TimeoutError, match="second"):
        Retries(attempt_count_max=2, sleep=pauses.append).call(work, is_timeout)
    assert work.answers == ["never asked"]
    assert len(pauses) == 1


def test_an_error_that_is_not_transient_is_raised_at_once() -> None:
    pauses: list[float] = []
    with pytest.raises(ValueError, match="wrong"):
        Retries(sleep=pauses.append).call(Answers(ValueError("wrong"), "never asked"), is_timeout)
    assert pauses == []


def test_the_default_waits_about_twelve_seconds_in_all() -> None:
    pauses: list[float] = []
    assert list(Retries(sleep=pauses.append).attempts()) == list(range(1, 9))
    assert 8 < sum(pauses) < 15
