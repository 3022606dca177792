"""The model of chunks: the rule that is built holds in every order of events, and each control is found wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.chunks import Model
from tests.models.search import Search, shortest, wander
from tests.models.sizes import ALL_KEYS, ALL_RANGES, CONTROLS, SMALL, Control
from tests.models.states import OURS, Rule, Size

SEEDS = 200


@pytest.mark.parametrize("size", SMALL, ids=str)
@pytest.mark.invariant(13)
@pytest.mark.invariant(14)
def test_what_is_built_holds_in_every_order_of_events(size: Size) -> None:
    model = Model(size)
    search = Search.of(model)
    search.run()
    if search.wrong is not None:
        pytest.fail(str(shortest(model)))
    assert search.ended > 10  # snapshots do come to an end


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_a_control_is_found_wrong(control: Control) -> None:
    found = shortest(Model(control.size, control.rule))
    assert found is not None
    if control.size.crashes:
        assert "the consumer dies" in str(found)


@pytest.mark.parametrize("rule", [OURS, *(control.rule for control in CONTROLS)], ids=str)
def test_steps_that_are_taken_at_once_hide_nothing(rule: Rule) -> None:
    size = Size(transactions=1, crashes=1, forgets=1, ops=("put", "move", "truncate"))
    at_once, one_by_one = Search.of(Model(size, rule)), Search.of(Model(size, rule, is_stepwise=True))
    at_once.run()
    one_by_one.run()
    assert (at_once.wrong is None) == (one_by_one.wrong is None) == (rule == OURS)


@pytest.mark.parametrize("size", [ALL_KEYS, ALL_RANGES], ids=["one range", "ranges"])
def test_more_keys_and_transactions_by_chance(size: Size) -> None:
    model = Model(size, is_stepwise=True)
    for seed in range(SEEDS):
        wrong, steps = wander(model, seed)
        assert wrong is None, "\n".join(("seed", str(seed), *steps, wrong))


@pytest.mark.parametrize("rule", [replace(OURS, floor="mark"), replace(OURS, floor="early")], ids=["mark", "early"])
def test_a_naive_floor_is_found_wrong_by_chance(rule: Rule) -> None:
    model = Model(ALL_KEYS, rule, is_stepwise=True)
    assert any(wander(model, seed)[0] is not None for seed in range(SEEDS))


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    model = Model(Size(transactions=1, crashes=1, ops=("put",)))
    whole, interrupted = Search.of(model), Search.of(model)
    whole.run()
    interrupted.run(lambda: False)
    assert not interrupted.is_over
    interrupted.save(tmp_path)
    again = Search.load(model, tmp_path)
    again.run()
    assert (again.seen.count, again.ended, again.wrong) == (whole.seen.count, whole.ended, None)
