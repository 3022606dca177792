"""A table is altered in every way, from seeds: whenever all is quiet, the topic and every store have the source's rows,
read again or not.

A failing seed is printed; `WATERSHED_SEED=123 pytest tests/simulation/test_altered.py` runs that one alone.
"""

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from cdc.tables import schema_changes, schema_tracking
from cdc.tables.schema_changes import ColumnChanges
from cdc.tables.schema_tracking import SchemaTracker
from sinks.schema_history import SchemaHistory
from tests.simulation.altered import Run

SEEDS: Final = 150
SEEDS_FOR_A_MUTANT: Final = 400
GIVEN_SEED: Final = os.environ.get("WATERSHED_SEED")


def run(seed: int) -> Counter[str]:
    simulated = Run(seed)
    try:
        simulated.judge()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return simulated.events


@pytest.mark.promise(2)
@pytest.mark.invariant(5)
def test_rows_are_the_sources_whether_they_are_published_again_or_not() -> None:
    seen: Counter[str] = Counter()
    for seed in [int(GIVEN_SEED)] if GIVEN_SEED else range(SEEDS):
        seen += run(seed)
    if GIVEN_SEED is None:  # the runs do contain what they are for
        for event in ("null", "constant", "volatile", "drop", "rename", "retype", "vacuum", "read again"):
            assert seen[event] > SEEDS / 5, seen
        for event in ("not read again: added", "not read again: dropped"):
            assert seen[event] > SEEDS / 10, seen


_IN_NEWEST: Final = SchemaHistory.in_newest


def _without_constants(history: SchemaHistory, version: int, *arguments: Any) -> Any:
    row, unchanged = _IN_NEWEST(history, version, *arguments)
    return {name: None if name in history.filled(version) else value for name, value in row.items()}, unchanged


def _without_names(patch: pytest.MonkeyPatch) -> None:
    for module in (schema_changes, schema_tracking):
        patch.setattr(module, "is_unclear", lambda *_: False)


MUTANTS: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "takes every default for the announced one": lambda patch: patch.setattr(
        ColumnChanges, "why_unclear", lambda *_: None
    ),
    "looks at nothing but the polls": lambda patch: patch.setattr(
        schema_tracking, "announced", lambda facts, *_: facts
    ),
    "takes each column for the one of that name": _without_names,
    "forgets dropped columns": lambda patch: patch.setattr(SchemaTracker, "_note_dropped", lambda *_: []),
    "reads records without the constants": lambda patch: patch.setattr(SchemaHistory, "in_newest", _without_constants),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_precaution_is_needed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    for seed in range(SEEDS_FOR_A_MUTANT):
        try:
            run(seed)
        except AssertionError:
            return
    pytest.fail(f"{SEEDS_FOR_A_MUTANT} runs of a capture that {mutant}, and nobody noticed")
