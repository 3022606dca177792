"""`cdc dlq`, without brokers: which rows are meant, and what is printed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cdc.model.errors import WatershedError
from cdc.model.events import TableSchema
from tests.conformance.tables import CUSTOMERS, LABELS, ORDER_LINES
from tests.unit.cdc.config.test_config_file import minimal
from tests.unit.cdc.model.test_rejected_rows import ROW
from watershed.cli import dlq
from watershed.client import dead_letters
from watershed.client.dead_letters import KEYS_MAX, DeadLetter, keys_condition

LETTERS = [
    DeadLetter("users", "shop.dead-letter.users", f"2/public.orders/{number}", row)
    for number, row in enumerate(
        ROW.model_copy(update={"table_schema": "public", "table_name": "orders", "key": key})
        for key in ({"id": 1}, {"id": "two"}, {"a": 1, "b": "é"})
    )
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    file = tmp_path / "watershed.yml"
    file.write_text(yaml.safe_dump(minimal() | {"sinks": {"users": {"type": "cache", "url": "redis://c"}}}))
    discarded: list[str] = []
    for module in (dlq, dead_letters):
        monkeypatch.setattr(module, "read_dead_letters", lambda _, sinks: [one for one in LETTERS if one.sink in sinks])
    monkeypatch.setattr(dlq, "discard_dead_letters", lambda _, letters: discarded.extend(one.key for one in letters))

    def run(*words: str) -> Any:
        result = CliRunner().invoke(dlq.app, [*words, "--config", str(file)])
        return result, discarded

    return run


def test_letters_are_listed_as_json(run: Any) -> None:
    result, _ = run("list", "--json")
    (first, *_) = json.loads(result.stdout)["dead_letters"]
    assert (first["sink"], first["generation"], first["table"], first["key"], first["reason"]) == (
        "users",
        2,
        "public.orders",
        {"id": 1},
        "column x: too odd",
    )


def test_a_row_is_named_by_its_key(run: Any) -> None:
    for text, number in (("1", 0), ("two", 1), ('[1, "é"]', 2)):
        result, _ = run("show", "users", "--table", "public.orders", "--key", text)
        assert json.loads(result.stdout)["key"] == LETTERS[number].row.key


def test_only_what_is_named_is_discarded(run: Any) -> None:
    result, discarded = run("discard", "users", "--table", "public.orders", "--key", "1", "--json")
    assert json.loads(result.stdout) == {"sink": "users", "discarded": 1}
    assert discarded == ["2/public.orders/0"]
    assert run("discard", "users")[0].exit_code == 2
    result, discarded = run("discard", "users", "--all")
    assert len(discarded) == 4


def test_what_is_not_there_is_said(run: Any) -> None:
    result, _ = run("show", "users", "--table", "public.orders", "--key", "9")
    assert isinstance(result.exception, WatershedError)
    result, _ = run("list", "nobody")
    assert isinstance(result.exception, WatershedError) and "no sink 'nobody'" in result.exception.message


def test_keys_are_quoted() -> None:
    assert (
        keys_condition(CUSTOMERS.schema, [{"id": 1}, {"id": -(2**63)}])
        == """("id") IN ((E'1'), (E'-9223372036854775808'))"""
    )
    lines = keys_condition(ORDER_LINES.schema, [{"order_id": 1, "line_no": 2}])
    assert lines == """("order_id", "line_no") IN ((E'1', E'2'))"""
    odd = replace(LABELS.schema, key=('a"b',))
    assert keys_condition(odd, [{'a"b': "it's \\ 'x"}]) == """("a""b") IN ((E'it\\'s \\\\ \\'x'))"""


def test_keys_that_have_no_text_of_their_own_are_refused_with_what_helps() -> None:
    for name in ("photo", "tags"):
        with pytest.raises(WatershedError, match=f"key column {name} has type") as caught:
            keys_condition(replace(_arrays(), key=(name,)), [{name: "x"}])
        assert caught.value.hint.startswith("cdc snapshot start --table public.customers")
    with pytest.raises(WatershedError, match="too many for one condition"):
        keys_condition(CUSTOMERS.schema, [{"id": number} for number in range(KEYS_MAX + 1)])


def _arrays() -> TableSchema:
    columns = [replace(c, element_oid=25) if c.name == "tags" else c for c in CUSTOMERS.schema.columns]
    return replace(CUSTOMERS.schema, columns=tuple(columns))
