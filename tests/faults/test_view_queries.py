"""Random queries as views: the short form of view_query_campaign."""

import pytest

from tests.faults.view_query_campaign import outcomes_of

pytestmark = pytest.mark.whole


def test_a_query_that_is_accepted_is_kept(fresh_database: str) -> None:
    outcomes = list(outcomes_of(fresh_database, range(1000, 1018)))
    assert [outcome.failure for outcome in outcomes if outcome.failure] == []
    assert sum(1 for outcome in outcomes if not outcome.refusal) >= 6
    assert sum(outcome.rows for outcome in outcomes) > 300
