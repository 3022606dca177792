"""The state of a key from its events: values without loss, copies, errors, and the function's source."""

import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID
from zlib import crc32

import pytest

from cdc.config.views import FoldConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from watershed.views.fold import NO_STATE, Fold, FoldError, fold_of, written
from watershed.views.tracing import trace

LOG: Final = TableId("public", "log")
NAMED: Final = {LOG: ("account", "no", "amount")}
QUERY: Final = "SELECT account, no AS n, amount FROM log"


def folded(function: Callable[..., Any], *events: str, columns: tuple[str, ...] = ("a",)) -> tuple[str, str | None]:
    config = FoldConfig(function="shop:apply", order=("n",), columns=dict.fromkeys(columns, "text"))
    return Fold(config, function, "", LOG, ("account",), ("no",)).over(NO_STATE, [(text, False) for text in events])


def loaded(reference: str, query: str = QUERY) -> Fold:
    config = FoldConfig(function=reference, order=("n",), columns={"a": "text"})
    return fold_of("balances", trace("balances", query, ["account"], NAMED), query, config, NAMED)


def test_a_state_is_that_of_its_events_in_their_order() -> None:
    state, at = folded(lambda state, event: {"a": [*(state or {"a": []})["a"], event["n"]]}, '{"n": 1}', '{"n": 2.50}')
    assert (state, at) == ('{"a":[1,2.50]}', '{"no":2.50}'), "the order has the names of the log"
    assert folded(lambda _, __: None, '{"n": 1}') == ("null", '{"no":1}')
    assert folded(lambda _, __: None) == ("null", None)


def test_a_fold_from_any_snapshot_is_the_fold_from_the_first_event() -> None:
    chance = random.Random(7)
    values = [
        Decimal("1.10"),
        3,
        0.1,
        "ü\ud800",
        None,
        True,
        (1, 2),
        date(2026, 1, 2),
        {"z": 1, "b": [Decimal("1E+2")]},
    ]

    def apply(state: Any, event: Any) -> Any:
        state = state or {"a": None, "types": []}
        state["types"].append([type(value).__name__ for value in state.values()])
        return {f"{event['n']}": values[event["n"] % len(values)]} | state | {"a": list(state)}

    config = FoldConfig(function="shop:apply", order=("n",), columns={"a": "text"})
    fold = Fold(config, apply, "", LOG, ("account",), ("no",))
    events = [(json.dumps({"n": number}), False) for number in range(30)]
    whole, _ = fold.over(NO_STATE, events)
    for _ in range(10):
        middle = chance.randint(0, 30)
        assert fold.over(fold.over(NO_STATE, events[:middle])[0], events[middle:])[0] == whole


def test_what_the_function_changes_is_its_own() -> None:
    kept: list[Any] = []

    def apply(state: Any, event: Any) -> Any:
        if kept:
            kept[0]["a"] = "changed"
        state = state or {"a": 0}
        state["a"] += event.pop("n")
        kept[:] = [state]
        return state

    assert folded(apply, '{"n": 1}', '{"n": 2}', '{"n": 4}') == ('{"a":7}', '{"no":4}')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+400"), "1E+400"),
        (Decimal("-0"), "-0"),
        (10**30, "1" + "0" * 30),
        (0.1, "0.1"),
        (1e-7, "1e-07"),
        (True, "true"),
        ("ü\0", '"\\u00fc\\u0000"'),
        ((1, [None]), "[1,[null]]"),
        ({"b": 1, "a": {}}, '{"b":1,"a":{}}'),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), '"2026-01-02T03:00:00+00:00"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    ],
)
def test_values_are_written_without_loss(value: Any, text: str) -> None:
    assert written(value) == text
    json.loads(text)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda *_: 1 // 0, r"shop:apply fails at the event n = 7: ZeroDivisionError: "),
        (lambda _, event: event["x"], "KeyError: x"),
        (lambda *_: 5, "returned a value of type int; a state is a dict, or None"),
        (lambda *_: {"b": 1}, "the state lacks the columns a"),
        (lambda _, __: {"a": {1, 2}}, "can't hold a value of type set"),
        (lambda _, __: {"a": float("nan")}, "can't hold the number nan"),
        (lambda _, __: {"a": Decimal("sNaN")}, "can't hold the number sNaN"),
        (lambda _, __: {"a": {1: 2}}, "can't have the name 1"),
        (lambda _, __: {"a": 10**5000}, "ValueError"),
    ],
)
def test_a_function_that_fails_is_named_with_its_event(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(FoldError, match=reason) as caught:
        folded(function, '{"n": 7}')
    assert "\n" not in str(caught.value)


def test_errors_of_any_text_become_one_line() -> None:
    def fails(state: Any, event: Any) -> Any:
        raise RuntimeError("a\0b\ud800" + "x" * 1000 + "\nmore")

    with pytest.raises(FoldError) as caught:
        folded(fails, '{"n": 7}')
    message = str(caught.value)
    assert "RuntimeError: ab\\ud800x" in message
    assert "\n" not in message
    assert len(message) < 400


def test_an_event_that_can_not_be_read_is_an_error_of_its_key() -> None:
    with pytest.raises(FoldError, match="an event can't be read"):
        folded(lambda _, __: None, f'{{"n": {"1" * 5000}}}')


def test_the_source_of_the_function_is_part_of_the_folds_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fold_base.py").write_text("def apply(state, event): return state\n")
    (tmp_path / "fold_one.py").write_text("from fold_base import apply\n")
    (tmp_path / "fold_two.py").write_text("from fold_base import apply\n")
    (tmp_path / "fold_three.py").write_text("from fold_base import apply  # changed\n")
    one, two, three, base = (loaded(f"fold_{name}:apply") for name in ("one", "two", "three", "base"))
    assert one.digest == two.digest
    assert len({one.digest, three.digest, base.digest}) == 3
    assert len(one.digest) == 2 * len(base.digest), "the file of the name, and that of the function"
    assert one.identity != two.identity
    (tmp_path / "fold_one.py").write_text("def apply(state, event): return None\n")
    assert loaded("fold_one:apply").digest == one.digest, "the code that this process runs is the former one"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SyntaxWarning('first\\nsecond')", "can't be imported: SyntaxWarning: first\n"),
        ("def apply(", "can't be imported: SyntaxError"),
        ("import nowhere_at_all", "can't be imported: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("apply = 5", r"fold_bad_\d+\.py\) has no function apply"),
        ("def apply(state): ...", "can't be called with a state and an event"),
        ("def apply(state, event, more): ...", "can't be called with a state and an event"),
    ],
)
def test_a_function_that_can_not_be_called_is_refused(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"fold_bad_{crc32(source.encode())}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(source + "\n")
    with pytest.raises(ConfigError, match=f"view balances, fold: .*{reason}"):
        loaded(f"{name}:apply")


def test_a_function_that_is_not_written_in_python_may_be_named() -> None:
    assert loaded("operator:concat").log == LOG


@pytest.mark.parametrize("columns", ["account, no AS n, amount, no AS Amount", "*, no AS n, 1 AS amount"])
def test_two_columns_of_one_name_are_refused(columns: str) -> None:
    """One of their values would be missing in the event."""
    with pytest.raises(ConfigError, match="two columns of its query are named amount"):
        loaded("operator:concat", f"SELECT {columns} FROM log")
    assert loaded("operator:concat", "SELECT *, no AS n FROM log").order == ("no",)
