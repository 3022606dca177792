"""Everything mixed on fakes, from seeds: topics hold what the source committed, events are the writers' ledger,
nobody's value is in a topic of others, and a backlog costs what its transactions cost.

A failing seed is printed; `WATERSHED_SEED=123 pytest tests/simulation/test_mixed.py` runs that one alone. More of them:
`python -m tests.simulation.mixed --minutes 60`.
"""

import os
from collections import Counter

import pytest

from cdc.model.errors import WatershedError
from tests.mixed.operations import HEAVY, Mixture, Part, Put, Touch, Transaction
from tests.simulation.mixed.mutants import MUTANTS
from tests.simulation.mixed.run import Run
from tests.simulation.mixed.source import SIZES
from tests.simulation.snapshots.source import KEYS

pytestmark = pytest.mark.filterwarnings("ignore::cdc.outbox.event_stream.OutboxWarning")

SEEDS = 60
SEEDS_FOR_A_MUTANT = 30
SEEDS_FOR_WORK = 5
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
@pytest.mark.invariant(1)
@pytest.mark.invariant(3)
@pytest.mark.invariant(7)
def test_whatever_is_mixed_every_topic_holds_its_own_changes_and_nothing_else() -> None:
    seen: Counter[str] = Counter()
    for seed in [int(GIVEN_SEED)] if GIVEN_SEED else range(SEEDS):
        seen += run(seed).events
    if GIVEN_SEED is None:  # the runs do contain what they are for
        often = ("crash", "connection lost", "half published", "dead rows", "dead events", "filled", "unfilled")
        for event in (*often, "empty events", "null events", "moved", "TRUNCATE", "read", "debezium", "followed"):
            assert seen[event] > SEEDS / 10, seen
        for event in ("owed nothing", "signal: range", "signal: cancel", "signal: pause"):
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
            assert any(word in str(error) for word in ("LEAK", "STALL", "CLAIM")), error
            return
    pytest.fail(f"{SEEDS_FOR_A_MUTANT} runs of a capture that {mutant}, and nobody noticed")


def work_per_message(backlog: int) -> float:
    """Of some runs: what a process does first, and what else a seed decides, is in it too."""
    runs = [Run(seed, backlog=backlog) for seed in range(SEEDS_FOR_WORK)]
    for simulated in runs:
        simulated.report()
    return sum(simulated.work for simulated in runs) / sum(simulated.frames for simulated in runs)


def test_a_transaction_of_a_longer_backlog_costs_no_more() -> None:
    """Calls of functions, not seconds."""
    assert work_per_message(2 * BACKLOG) < 1.2 * work_per_message(BACKLOG)


class BehindADeadLetter(Mixture):
    """A row that is published, then too large, then touched without its large value."""

    def transaction(self) -> Transaction:
        key, usual = self._chance.choice(self._keys), "x" * SIZES.usual
        too_large = "y" * SIZES.too_large
        puts = (Put(HEAVY, key, self._marker(HEAVY), f"{self._marker(HEAVY)} {large}") for large in (usual, too_large))
        return Transaction((Part((*puts, Touch(HEAVY, key, self._marker(HEAVY)))),))


def test_a_row_takes_no_value_from_before_its_dead_letter() -> None:
    """Found by these runs, and by the campaign on real servers."""
    for seed in range(10):
        simulated = Run(seed, backlog=0)
        simulated.source._mixture = BehindADeadLetter(simulated.world.chance, SIZES, KEYS)
        simulated.report()
