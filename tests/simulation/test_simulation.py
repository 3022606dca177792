"""The whole of capture on fakes, thousands of times: every run ends equal, and every mutant is found out.

A failing seed is printed; `WATERSHED_SEED=123 pytest tests/simulation` runs that one alone.
"""

import os
from collections import Counter

import pytest

from cdc.model.errors import WatershedError
from tests.simulation.mutants import MUTANTS
from tests.simulation.run import Run
from tests.simulation.world import Rates

SEEDS = 2_000
SEEDS_FOR_A_MUTANT = 400
GIVEN_SEED = os.environ.get("WATERSHED_SEED")


def run(seed: int, **arguments: object) -> Run:
    simulated = Run(seed, **arguments)  # type: ignore[arg-type]
    try:
        simulated.report()
    except (AssertionError, WatershedError) as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return simulated


@pytest.mark.promise(1)
@pytest.mark.invariant(1)
@pytest.mark.invariant(2)
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
@pytest.mark.invariant(9)
@pytest.mark.invariant(12)
def test_whatever_happens_every_change_is_published_once_and_in_order() -> None:
    seen: Counter[str] = Counter()
    for seed in [int(GIVEN_SEED)] if GIVEN_SEED else range(SEEDS):
        simulated = run(seed)
        for transition in simulated.events:
            seen[transition] += 1
    if GIVEN_SEED is None:  # the runs do contain what they are for
        for event in (
            "crash",
            "take-over",
            "connection lost",
            "load interrupted",
            "half published",
            "stopped",
            "transactions told",
        ):
            assert seen[event] > SEEDS / 20, seen


def test_a_run_is_the_same_each_time() -> None:
    first, second = Run(7), Run(7)
    assert first.report() == second.report()
    assert first.world.steps == second.world.steps


def test_calm_runs_end_too() -> None:
    calm = Rates(*[0.0] * len(Rates.__slots__))
    for seed in range(20):
        run(seed, rates=calm)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found_out(mutant: str) -> None:
    for seed in range(SEEDS_FOR_A_MUTANT):
        try:
            Run(seed, MUTANTS[mutant]).report()
        except (AssertionError, WatershedError):
            return
    pytest.fail(f"{SEEDS_FOR_A_MUTANT} runs of a capture that {mutant}, and nobody noticed")
