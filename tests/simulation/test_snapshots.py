"""Chunks beside the stream on fakes, a thousand times: every store ends equal, and every mutant is found out.

A failing seed is printed; `WATERSHED_SEED=123 pytest tests/simulation/test_snapshots.py` runs that one alone.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.snapshots.mutants import MUTANTS
from tests.simulation.snapshots.run import Run

SEEDS = 500
SEEDS_FOR_A_MUTANT = 300
GIVEN_SEED = os.environ.get("WATERSHED_SEED")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of chunks would be logged."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


def run(seed: int) -> Run:
    simulated = Run(seed)
    try:
        simulated.report()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return simulated


def test_a_chunk_never_publishes_a_stale_row_and_stores_end_equal() -> None:
    seen: Counter[str] = Counter()
    for seed in [int(GIVEN_SEED)] if GIVEN_SEED else range(SEEDS):
        seen += run(seed).events
    if GIVEN_SEED is None:  # the runs do contain what they are for
        often = ("crash", "unseen", "keys forgotten", "half a transaction committed", "ids wrapped around", "done")
        for event in often:
            assert seen[event] > SEEDS / 3, seen
        for event in ("unseen TRUNCATE", "gap", "paused", "cancelled", "failed", "range"):
            assert seen[event] > SEEDS / 30, seen


# Each was wrong once: what happened in it, so that nobody has to find it again.
FOUND = {475: "TRUNCATE, swept, and the next record puts a row back: its version was the floor"}


@pytest.mark.parametrize("seed", FOUND, ids=FOUND.values())
def test_what_was_wrong_once_is_right(seed: int) -> None:
    run(seed)


def test_a_run_is_the_same_each_time() -> None:
    first, second = run(7), run(7)
    assert first.committed.records == second.committed.records


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found_out(mutant: str) -> None:
    for seed in range(SEEDS_FOR_A_MUTANT):
        try:
            Run(seed, MUTANTS[mutant]).report()
        except AssertionError:
            return
    pytest.fail(f"{SEEDS_FOR_A_MUTANT} runs of an engine that {mutant}, and nobody noticed")
