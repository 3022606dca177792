"""Samples and problems of the last half hour."""

import pytest

from tests.support.console_pipeline import ShownPipeline
from tests.support.status_facts import full_status
from tests.support.waiting import eventually
from watershed.status.model import Problem, Status
from watershed.status.trend import KEPT_S, PROBLEMS_MAX, Trend


def status(at_s: float, *problems: Problem, seq: int = 1) -> Status:
    full = full_status()
    capture = full.capture.model_copy(update={"seq": seq})
    return full.model_copy(update={"unix_seconds": at_s, "problems": problems, "capture": capture})


def problem(message: str, name: str = "search") -> Problem:
    return Problem(part="sink", name=name, severity="error", message=message, next="start it")


def test_a_sample_has_what_the_charts_show() -> None:
    trend = Trend()
    trend.observe(status(1000.0, seq=42))
    (sample,) = trend.recent().samples
    assert (sample.unix_seconds, sample.published, sample.epoch) == (1000.0, 42, 1)
    assert sample.retained_bytes == 1100
    assert (sample.sinks["search"].written, sample.sinks["search"].lag_records) == (7, 7)


def test_samples_are_kept_for_half_an_hour() -> None:
    trend = Trend()
    for at in (0.0, 5.0, KEPT_S, KEPT_S + 5.0):
        trend.observe(status(at))
    assert [sample.unix_seconds for sample in trend.recent().samples] == [5.0, KEPT_S, KEPT_S + 5.0]


def test_a_problem_lasts_from_its_first_to_its_last_observation() -> None:
    trend = Trend()
    trend.observe(status(10.0, problem("search makes no progress: nothing for 5 s")))
    trend.observe(
        status(15.0, problem("search makes no progress: nothing for 10 s"), problem("cache is away", "cache"))
    )
    new, old = trend.recent().problems
    assert (new.problem.name, new.first_unix_seconds, new.is_over) == ("cache", 15.0, False)
    assert (old.first_unix_seconds, old.last_unix_seconds, old.is_over) == (10.0, 15.0, False)
    assert old.problem.message.endswith("for 10 s"), "the newest message of the same problem"
    trend.observe(status(20.0))
    assert [(one.last_unix_seconds, one.is_over) for one in trend.recent().problems] == [(15.0, True), (15.0, True)]
    trend.observe(status(25.0, problem("search makes no progress: nothing for 5 s")))
    assert [one.first_unix_seconds for one in trend.recent().problems] == [25.0, 15.0, 10.0], "it began again"


@pytest.mark.parametrize("number", [PROBLEMS_MAX + 50])
def test_problems_that_are_over_are_a_bounded_number(number: int) -> None:
    trend = Trend()
    for n in range(number):
        trend.observe(status(float(n), problem("away", f"sink_{n}")))
    found = trend.recent().problems
    assert len(found) == PROBLEMS_MAX + 1
    assert found[0].problem.name == f"sink_{number - 1}"


def test_the_first_sample_is_there_as_soon_as_a_status_is_followed() -> None:
    trend = Trend()
    assert trend.recent().samples == ()
    trend.follow(ShownPipeline().status)
    eventually(lambda: len(trend.recent().samples) == 1, 10.0, "it has observed once")
