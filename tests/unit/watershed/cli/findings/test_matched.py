"""What `cdc check` says about patterns of tables."""

from typing import Any

import pytest

from cdc.config.config_file import Config
from cdc.model.errors import UnreachableError
from cdc.model.events import TableId
from cdc.model.table_state import SelectionRecord
from cdc.model.topics import Topics
from cdc.tables.matching import match
from watershed.cli.findings import capture


def configured(*tables: str, **source: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"dsn": "host=db", "tables": tables, **source},
            "kafka": {"bootstrap_servers": "k:9092"},
            "topics": {"prefix": "shop"},
        }
    )


def findings(
    monkeypatch: pytest.MonkeyPatch, config: Config, existing: list[str], had: list[str] | None = None
) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the tables, and level and message of each finding."""
    record = None if had is None else SelectionRecord(include=config.source.tables, exclude=(), tables=tuple(had))

    def selection(_: Any) -> SelectionRecord:
        if record is None:
            raise UnreachableError("no broker answers", "start one")
        return record

    monkeypatch.setattr(capture, "read_selection", selection)
    ids = list(map(TableId.parse, existing))
    monkeypatch.setattr(capture, "read_matches", lambda of, known: match(of.source, ids, known, Topics("shop")))
    now, found = capture._matched(config)
    return list(map(str, now.source.table_ids)), [(one.level, one.message) for one in found]


def test_a_list_has_nothing_to_match(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(monkeypatch, configured("public.a"), ["public.a", "public.b"]) == (["public.a"], [])


def test_matched_idle_and_ignored_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured("public.*", "x.*", new_tables="ignore")
    assert findings(monkeypatch, config, ["public.a", "public.new"], ["public.a"]) == (
        ["public.a"],
        [
            ("ok", "public.*, x.* match 1 tables"),
            ("warn", "x.* matches no table yet"),
            ("ok", "public.new began to match later, and are left out by source.new_tables"),
        ],
    )


def test_a_table_that_waits_for_an_operator_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured("public.*", new_tables="stop")
    _, found = findings(monkeypatch, config, ["public.a", "public.new"], ["public.a"])
    assert [level for level, message in found if "public.new" in message] == ["warn"]


def test_patterns_that_take_nothing_or_too_much_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    (level, message), *more = findings(monkeypatch, configured("public.*"), [])[1]
    assert (level, message, more) == ("fail", "source.tables: no table matches public.*", [])
    many = [f"public.t{number}" for number in range(10_000)]
    ((level, message),) = findings(monkeypatch, configured("public.*"), many)[1]
    assert (level, "match 10000 tables, more than source.tables_max (1000)" in message) == ("fail", True)
