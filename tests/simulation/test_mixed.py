"""Everything mixed on fakes, from seeds: topics hold what the source committed, events are the writers' ledger,
nobody's value is in a topic of others, and a backlog costs what its transactions cost.

A failing seed is printed; `WATERSHED_SEED=123 pytest tests/simulation/test_mixed.py` runs that one alone. More of them:
`python -m tests.simulation.mixed --minutes 60`.
"""

import os
from collections import Counter

import pytest

from cdc.errors import WatershedError
from tests.simulation.mixed.mutants import MUTANTS
from tests.simulation.mixed.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::cdc.outbox.stream.OutboxWarning")

SEEDS = 60
SEEDS_FOR_A_MUTANT = 30
BACKLOG = 300
GIVEN_SEED = os.environ.get("WATERSHED_SEED")


def run(seed: int) -> Run:
    simulated = Run(seed)
    try:
        simulated.report()
    except (AssertionError, WatershedError) as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return simulated


@pytest.mark.promise(1)
def test_whatever_is_mixed_every_topic_holds_its_own_changes_and_nothing_else() -> None:
    seen: Counter[str] = Counter()
    for seed in [int(GIVEN_SEED)] if GIVEN_SEED else range(SEEDS):
        seen += run(seed).events
    if GIVEN_SEED is None:  # the runs do contain what they are for
        often = ("crash", "connection lost", "half published", "dead rows", "dead events", "filled", "unfilled")
        for event in (*often, "empty events", "null events", "moved", "TRUNCATE", "read", "debezium", "followed"):
            assert seen[event] > SEEDS / 10, seen
        assert seen["backlog"] > SEEDS / 20, seen


def test_a_run_is_the_same_each_time() -> None:
    first, second = run(7), run(7)
    assert first.world.steps == second.world.steps
    assert first.events == second.events


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_defects_that_it_is_for_are_found_when_they_are_put_back(mutant: str) -> None:
    for seed in range(SEEDS_FOR_A_MUTANT):
        try:
            Run(seed, MUTANTS[mutant]).report()
        except AssertionError as error:
            assert "LEAK" in str(error) or "STALL" in str(error), error
            return
    pytest.fail(f"{SEEDS_FOR_A_MUTANT} runs of a capture that {mutant}, and nobody noticed")


@pytest.mark.parametrize("seed", range(3))
def test_a_transaction_of_a_longer_backlog_costs_no_more(seed: int) -> None:
    """Twice as many, at most an eighth more for each of them: what is done once is in it too."""
    shorter, longer = (Run(seed, backlog=count) for count in (BACKLOG, 2 * BACKLOG))
    for simulated in (shorter, longer):
        simulated.report()
    assert longer.work / longer.frames < 1.125 * shorter.work / shorter.frames
