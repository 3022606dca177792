"""The trend of a process grows without requests."""

from cdc.http.observed import Observed
from tests.support.console_pipeline import ShownPipeline
from tests.support.waiting import eventually


def test_the_first_sample_is_there_as_soon_as_it_starts() -> None:
    observed = Observed(ShownPipeline().status)
    assert observed.recent().samples == ()
    observed.start()
    eventually(lambda: len(observed.recent().samples) == 1, 10.0, "it has observed once")


def test_an_observation_is_added() -> None:
    pipeline = ShownPipeline(end_s=5_000.0)
    statuses = iter([pipeline.at(5_000.0), pipeline.at(5_005.0)])
    observed = Observed(lambda: next(statuses))
    observed.observe()
    observed.observe()
    assert [one.unix_seconds for one in observed.recent().samples] == [5_000.0, 5_005.0]
