"""Several tables merged at once, and other writers that come between, which real engines meet by chance only."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from cdc.model.events import Column, TableId, TableSchema
from sinks.contract import Change, Outcome
from sinks.errors import SinkError
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.merging import ATTEMPT_COUNT_MAX
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.staging import Stager
from tests.unit.sinks.warehouse.scripted import FILES, ScriptedEngine

TABLE = TableId("public", "a")
SCHEMA = TableSchema(
    TABLE,
    1,
    16385,
    (Column("id", 20, -1, "bigint", False, "b", 20), Column("at", 1082, -1, "date", True, "b", 1082)),
    ("id",),
    "shop.public.a",
)
ROWS = ("shop", "public", "a")
WRITTEN = Outcome.WRITTEN


def change(number: int, version: int, at: str | None = "2024-01-31") -> Change:
    return Change(TABLE, {"id": number}, version, {"id": number, "at": at}, 1)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def sink(engine: ScriptedEngine, tmp_path: Path) -> Iterator[WarehouseSink]:
    """Prepared, with an empty table."""
    place = CatalogPlace(Path("/nowhere/catalog.db"), "file:///nowhere", "shop")
    made = WarehouseSink(engine, [engine], WarehouseReader(place), (tmp_path / "staged").as_uri(), lambda _: None)
    engine.namespace = {"watershed.generation": "1"}
    engine.tables[ROWS] = {
        "watershed.table": "public.a",
        "watershed.key": '["id"]',
        "watershed.columns": '[["id", "bigint"], ["at", "date"]]',
        "watershed.generation": "1",
        "watershed.mode": "current",
        "watershed.layout": "[[], []]",
    }
    engine.columns[ROWS] = {"id": "bigint", "at": "date", "ws_version": "bigint"}
    made.prepare(SCHEMA)
    engine.statements.clear()
    yield made
    made.close()
    assert list((tmp_path / "staged").glob("*")) == [], "staged files are deleted when they are merged"


def take(sink: WarehouseSink, tmp_path: Path, *changes: Change) -> int:
    """As a job does: rows that were written."""
    stager = Stager((tmp_path / "tasks").as_uri(), [SCHEMA])
    assert {result.outcome for result in stager.apply(changes)} == {WRITTEN}
    return sink.take(stager.finish())


def test_a_batch_is_one_statement_for_a_table(sink: WarehouseSink, engine: ScriptedEngine, tmp_path: Path) -> None:
    assert take(sink, tmp_path, change(1, 10), change(2, 11)) == 2
    assert len(engine.statements) == len(engine.begun("MERGE")) == 1
    assert take(sink, tmp_path, change(1, 9), change(2, 20), change(3, 5)) == 2
    assert engine.versions == {1: [10], 2: [20], 3: [5]}


def test_a_merge_waits_for_the_compaction_of_its_table(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    merged = threading.Event()

    def merge() -> None:
        sink.apply([change(1, 10)])
        merged.set()

    with sink.without_merges(ROWS):
        thread = threading.Thread(target=merge)
        thread.start()
        assert not merged.wait(0.2)
        assert engine.begun("MERGE") == []
    thread.join(10)
    assert merged.is_set() and engine.versions == {1: [10]}


def test_a_table_is_due_for_compaction_by_what_its_commit_says(
    sink: WarehouseSink, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.apply([change(1, 10)])
    assert sink.take_due() == set()
    monkeypatch.setitem(FILES, "total-data-files", "100")
    sink.apply([change(1, 11)])
    assert sink.take_due() == {ROWS}
    assert sink.take_due() == set()


def test_several_tables_are_merged_at_once(tmp_path: Path) -> None:
    """Each statement waits until the other has begun."""
    both = threading.Barrier(2, timeout=10)
    engines = [ScriptedEngine(), ScriptedEngine()]

    def meet() -> None:
        both.wait()

    for engine in engines:
        engine.before_merge = meet
    reader = WarehouseReader(CatalogPlace(Path("/nowhere/catalog.db"), "file:///nowhere", "shop"))
    sink = WarehouseSink(engines[0], engines, reader, (tmp_path / "staged").as_uri())
    other = replace(SCHEMA, table=TableId("public", "b"))
    for schema in (SCHEMA, other):
        sink.attach(schema)
    sink.apply([change(1, 10), structs.replace(change(1, 11), table=other.table)])
    assert [engine.versions for engine in engines] in ([{1: [10]}, {1: [11]}], [{1: [11]}, {1: [10]}])
    sink.close()


def test_the_failure_of_one_table_leaves_the_others(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    other = replace(SCHEMA, table=TableId("public", "b"))
    sink.attach(other)
    engine.conflicts = ATTEMPT_COUNT_MAX
    with pytest.raises(SinkError):
        sink.apply([change(1, 10), structs.replace(change(2, 11), table=other.table)])
    assert engine.versions in ({1: [10]}, {2: [11]})


def test_a_sweep_is_planned_again_after_a_conflict(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    sink.apply([change(1, 10)])
    engine.conflicts = 1
    assert sink.sweep(TABLE, 50) == 1
    assert len(engine.begun("INSERT")) == 2, "deleted keys first: a stale change must not come between"
    assert len(engine.begun("MERGE")) == 3


def test_a_value_that_cant_be_held_is_refused_with_its_column(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    results = sink.apply([change(1, 10, at="infinity"), change(2, 11)])
    assert [result.outcome for result in results] == [Outcome.REJECTED, WRITTEN]
    assert "column at (date)" in results[0].reason
    assert engine.versions == {2: [11]}


@pytest.mark.parametrize("row", [{"id": 1}, {"id": 1, "other": None}, {"id": 1, "at": None, "other": 1}])
def test_a_row_of_other_columns_is_refused(sink: WarehouseSink, row: dict[str, object]) -> None:
    (result,) = sink.apply([Change(TABLE, {"id": 1}, 10, row, 1)])
    assert result.outcome is Outcome.REJECTED


def test_the_generation_needs_every_table(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    engine.namespace = {"watershed.generation": "3", "watershed.tables": '[["public", "a"]]'}
    assert sink.generation() is None
    engine.tables[ROWS]["watershed.generation"] = "3"
    assert sink.generation() == 3
    engine.drop(ROWS)
    assert sink.generation() is None
