"""Which of a table's sinks are compared."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.store_mapping import StoredTables
from cdc.model.events import TableId
from cdc.postgres.chunk_table import TableAlteredError, TableUnlikeError
from sinks.errors import RefusedError, SinkError
from watershed.cli.snapshot_screen import Lines
from watershed.cli.verify import _ProgressPrinter
from watershed.verify import verifier
from watershed.verify.model import DriftKind, RowDifference, TableResult
from watershed.verify.verifier import Verifier

TABLE = TableId("public", "a")
DRIFT = RowDifference(b'{"id":1}', DriftKind.MISSING, (), None)


def test_a_table_that_one_store_keeps_in_another_way_is_compared_in_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = Verifier.__new__(Verifier)
    made._config = SimpleNamespace(source=None)
    made._selection = SimpleNamespace(sample=None)
    made._read = lambda _: nullcontext()
    made._side = lambda sink, *_: sink

    def compare(side: str, result: TableResult, rows: object, *, keep: bool) -> list[RowDifference]:
        del rows, keep
        if side == "log":
            raise RefusedError("it is a change log", "leave it out")
        result.add(DRIFT)
        return [DRIFT]

    made._compare = compare
    monkeypatch.setattr(verifier, "VerifiedTable", lambda *_: nullcontext())
    repaired: list[Any] = []
    schema_history: Any = SimpleNamespace(newest=SimpleNamespace(table=TABLE))
    results = made._table(schema_history, ["cache", "log", "search"], lambda _, found: repaired.extend(found))
    assert [(one.sink, one.drift, one.why_not) for one in results] == [
        ("cache", 1, ""),
        ("log", 0, "it is a change log"),
        ("search", 1, ""),
    ]
    assert [(side, differences) for side, _, differences in repaired] == [("cache", [DRIFT]), ("search", [DRIFT])]


class Table:
    """A table of the source, opened."""

    def __init__(self) -> None:
        self.is_altered = False

    def require_unaltered(self) -> None:
        if self.is_altered:
            raise TableAlteredError("table public.a was altered")


class Contents:
    """A store of one row that is right, with lookup keys; and the world around it."""

    def __init__(self) -> None:
        self.generations = iter([7, 7])
        self.orphans = ["by:x", "by:y"]
        self.fails: SinkError | None = None

    def rows(self, table: TableId) -> list[Any]:
        assert table == TABLE
        if self.fails is not None:
            raise self.fails
        return []

    def orphaned_lookups(self, table: TableId) -> list[str]:
        assert table == TABLE
        return self.orphans

    def ceiling(self) -> int:
        return 100

    def read_on(self) -> None:
        """Nothing was published."""

    def record(self, sink: str) -> Any:
        assert sink == "cache"
        return SimpleNamespace(generation=next(self.generations), excluded=["public.b"], mappings={"public.a": "old"})


def comparing(contents: Contents, *, is_strict: bool = False) -> tuple[Any, Any]:
    """A verifier of this store, and its side."""
    made: Any = Verifier.__new__(Verifier)
    made._config = SimpleNamespace(source=None, kafka=None)
    made._selection = SimpleNamespace(sample=None, is_strict=is_strict)
    made._pipeline, made._report_progress, made._unavailable, made._contents = (
        contents,
        lambda *_: None,
        {},
        {"cache": contents},
    )
    made._sections = {"cache": StoredTables()}
    made._dead_letters = lambda *_: {}
    schema = SimpleNamespace(table=TABLE)
    return made, SimpleNamespace(
        sink="cache",
        contents=contents,
        expected=SimpleNamespace(schema=schema),
        source=SimpleNamespace(schema=None),
        is_partial=True,
    )


ROWS: Any = SimpleNamespace(count=0)


def test_stray_lookup_keys_are_differences() -> None:
    made, side = comparing(Contents())
    result = TableResult("cache", TABLE)
    assert made._compare(side, result, ROWS, keep=True) == []
    assert (result.drift, result.counts[DriftKind.LOOKUP], result.orphans) == (2, 2, ["by:x", "by:y"])
    assert [one.as_json()["key"] for one in result.differences] == ["by:x", "by:y"]
    assert result.why_not == ""


def test_a_generation_that_took_over_meanwhile_is_said() -> None:
    contents = Contents()
    contents.generations = iter([7, 8])
    made, side = comparing(contents)
    result = TableResult("cache", TABLE)
    made._compare(side, result, ROWS, keep=False)
    assert "its new generation took over while the table was compared" in result.why_not


def test_a_store_that_holds_the_table_in_another_way_is_not_compared() -> None:
    contents = Contents()
    contents.generations = iter([7, 7, 7])
    made, _ = comparing(contents)
    assert "does not include public.b" in made._not_filled("cache", TableId("public", "b"))
    assert "a mapping that differs" in made._not_filled("cache", TABLE)
    assert made._not_filled("cache", TableId("public", "c")) == ""


def test_a_store_that_goes_away_leaves_the_other_stores_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "VerifiedTable", lambda *_: nullcontext(Table()))
    contents = Contents()
    contents.fails = SinkError("Redis does not answer", "start it")
    schema_history: Any = SimpleNamespace(newest=SimpleNamespace(table=TABLE))
    for is_strict in (False, True):
        made, side = comparing(contents, is_strict=is_strict)
        made._read, made._side = lambda _: nullcontext(ROWS), lambda *_, side=side: side
        contents.generations = iter([7, 7])
        if is_strict:
            with pytest.raises(SinkError, match="does not answer"):
                made._table(schema_history, ["cache"], None)
            continue
        (result,) = made._table(schema_history, ["cache"], None)
        assert (result.why_not, made._unavailable) == ("Redis does not answer", {"cache": "Redis does not answer"})
        assert made._contents == {}


def test_a_store_that_is_prepared_with_a_later_schema_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with an SQL store: of a column that was dropped meanwhile it said that the table was dropped."""
    altered = Table()
    altered.is_altered = True
    monkeypatch.setattr(verifier, "VerifiedTable", lambda *_: nullcontext(altered))
    contents = Contents()
    contents.fails = SinkError("the table was dropped", "nothing")
    made, side = comparing(contents, is_strict=True)
    made._read, made._side = lambda _: nullcontext(ROWS), lambda *_: side
    schema_history: Any = SimpleNamespace(newest=SimpleNamespace(table=TABLE))
    (result,) = made._table(schema_history, ["cache"], None)
    assert (result.why_not, list(made._contents)) == ("table public.a was altered", ["cache"])


def test_a_table_that_was_altered_is_compared_by_the_schema_that_is_published_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier, "CHECK_S", 0.0)
    made, _ = comparing(Contents())
    old, new = (SimpleNamespace(newest=SimpleNamespace(table=TABLE, version=version)) for version in (1, 2))
    published = iter([old, old, new])
    monkeypatch.setattr(verifier, "read_schema_histories", lambda _: {TABLE: next(published)})

    def opened(_: object, schema: Any) -> str:
        if schema.version == 1:
            raise TableUnlikeError("table public.a was altered")
        return "open"

    monkeypatch.setattr(verifier, "VerifiedTable", opened)
    assert made._open_table(old) == (new, "open")
    monkeypatch.setattr(verifier, "SCHEMA_S_MAX", 0.0)
    monkeypatch.setattr(verifier, "read_schema_histories", lambda _: {TABLE: old})
    with pytest.raises(TableUnlikeError):
        made._open_table(old)


def test_a_store_without_the_newest_schema_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "CHECK_S", 0.0)
    contents: Any = Contents()
    answers = [False, False, False, True]
    contents.is_prepared = lambda _: answers.pop(0)
    contents.wait_until_applied = lambda _: answers.remove(False)
    made, _ = comparing(contents)
    made._await_prepared("cache", contents, TABLE)
    assert answers == []
    monkeypatch.setattr(verifier, "SCHEMA_S_MAX", 0.0)
    answers.extend([False] * 4)
    with pytest.raises(RefusedError, match=r"no table of public\.a with the columns of its newest schema"):
        made._await_prepared("cache", contents, TABLE)


def test_the_reading_of_the_source_is_shown_as_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen in a log: the last line of each table was "running, …, reading"."""
    made, _ = comparing(Contents())
    made._report_progress, made._selection = _ProgressPrinter(Lines()), SimpleNamespace(source_share=1.0)
    source = SimpleNamespace(
        schema=SimpleNamespace(table=TABLE, key=("id",)),
        types={"id": "int4"},
        rows_estimated=5,
        rows=lambda _: [("1",), ("2",), ("3",)],
    )
    with made._read(source) as rows:
        assert rows.count == 3
    assert capsys.readouterr().out.splitlines() == [
        "public.a: running, 0 of about 5 rows (0 %), reading",
        "public.a: done, 3 rows",
    ]
