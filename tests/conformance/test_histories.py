"""However a history is delivered, the store ends with the last version of every key."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from cdc.model.events import pack_version
from sinks.contract import Change, Sink
from sinks.reduction import reduce_changes
from tests.conformance.tables import CUSTOMERS, LABELS, ORDER_LINES
from tests.conformance.trial import TABLES, History, Trial, delivered

pytestmark = pytest.mark.whole

FIRST = pack_version(1, 0)


@pytest.mark.promise(2)
@pytest.mark.invariant(5)
@pytest.mark.invariant(6)
def test_shuffled_duplicated_and_replayed_in_any_grouping_ends_equal(sink_under_test: Trial) -> None:
    """Each batch goes to the sink, to a zombie beside it, or to a restarted one."""
    trial = sink_under_test
    zombie = trial.another()
    for seed in range(trial.store.history_count):
        random = Random(seed)
        history = History(random, [CUSTOMERS, ORDER_LINES, LABELS], first_id=seed * 1000, first_version=FIRST)
        for batch in delivered(random, history.changes(60)):
            trial.apply(*batch, sink=random.choice((trial.sink, trial.sink, zombie)))
        try:
            trial.check()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    restarted = trial.another()
    trial.check(restarted)


@pytest.mark.promise(2)
def test_split_at_any_point_and_repeated_from_there_ends_equal(sink_under_test: Trial) -> None:
    """A job that is killed after a part of its batch applies the whole batch again."""
    trial = sink_under_test
    history = History(Random(1), [ORDER_LINES], first_id=0, first_version=FIRST)
    changes = history.changes(12)
    for point in range(0, len(changes), 1 if trial.store.history_count > 5 else 6):
        trial.apply(*changes[:point])
        trial.apply(*changes)
        trial.check()


@pytest.mark.promise(2)
@pytest.mark.invariant(6)
def test_writers_at_the_same_time_end_equal(sink_under_test: Trial) -> None:
    """Zombies beside the sink, each delivering the whole history in an order of its own, really concurrently."""
    trial = sink_under_test
    random = Random(2)
    history = History(random, [CUSTOMERS, ORDER_LINES], first_id=0, first_version=FIRST)
    changes = history.changes(80)
    trial.prepare(CUSTOMERS)
    trial.prepare(ORDER_LINES)

    def writer(seed: int) -> Callable[[], None]:
        batches = delivered(Random(seed), changes)
        sink = trial.another()
        for table in (CUSTOMERS, ORDER_LINES):
            sink.prepare(table.schema)
        return lambda: _apply_each(sink, batches)

    writers = [writer(seed) for seed in range(trial.store.writer_count)]
    with ThreadPoolExecutor(len(writers)) as pool:
        for running in [pool.submit(run) for run in writers]:
            running.result()
    trial.model.apply_all(changes)
    trial.check()


@pytest.mark.promise(2)
def test_a_sweep_between_deliveries_and_replays_ends_equal(sink_under_test: Trial) -> None:
    """Rows below the floor go once; no replay of what was before the floor brings one back."""
    trial = sink_under_test
    tables = [CUSTOMERS, ORDER_LINES] if trial.store.history_count > 5 else [ORDER_LINES]
    for seed in range(max(1, trial.store.history_count // 4)):
        random = Random(1000 + seed)
        history = History(random, tables, first_id=seed * 1000, first_version=FIRST)
        before = history.changes(40)
        floor = history.version + 1
        after = History(random, tables, first_id=seed * 1000, first_version=floor).changes(20)
        for batch in delivered(random, before):
            trial.apply(*batch)
        # What was published after the floor may be applied before the sweep or after it.
        early, late = after[:10], after[10:]
        for batch in delivered(random, early):
            trial.apply(*batch)
        for table in TABLES.values():
            if table.id in trial.model.held:
                trial.sweep(table, floor)
        for batch in delivered(random, before + late):
            trial.apply(*batch)
        trial.check()


def _apply_each(sink: Sink, batches: list[list[Change]]) -> None:
    for batch in batches:
        sink.apply(reduce_changes(batch))
