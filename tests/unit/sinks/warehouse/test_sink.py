"""What the warehouse does when other writers come between, which real engines do only by chance."""

from pathlib import Path

import pytest

from cdc.errors import SinkError
from cdc.events import Column, TableId, TableSchema
from sinks.contract import Change, Outcome
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import ATTEMPT_COUNT_MAX, WarehouseSink
from tests.unit.sinks.warehouse.scripted import ScriptedEngine

TABLE = TableId("public", "a")
SCHEMA = TableSchema(
    TABLE,
    1,
    16385,
    (Column("id", 20, -1, "bigint", False, "b", 20), Column("at", 1082, -1, "date", True, "b", 1082)),
    ("id",),
    "shop.public.a",
)
ROWS = ("shop", "public", "a_with_deleted")
WRITTEN, STALE = Outcome.WRITTEN, Outcome.STALE


def change(number: int, version: int, at: str | None = "2024-01-31") -> Change:
    return Change(TABLE, {"id": number}, version, {"id": number, "at": at}, 1)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def sink(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> WarehouseSink:
    """Prepared, with an empty table."""
    place = CatalogPlace(Path("/nowhere/catalog.db"), "file:///nowhere", "shop")
    made = WarehouseSink(engine, WarehouseReader(place), "shop", now=lambda: 0.0, pause=lambda _: None)
    engine.namespace = {"watershed.generation": "1"}
    engine.tables[ROWS] = {
        "watershed.table": "public.a",
        "watershed.key": '["id"]',
        "watershed.columns": '[["id", "bigint"], ["at", "date"]]',
        "watershed.generation": "1",
    }
    engine.columns[ROWS] = {"id": "bigint", "at": "date", "ws_version": "bigint", "ws_deleted": "boolean"}
    made.prepare(SCHEMA)
    engine.statements.clear()
    return made


def outcomes(sink: WarehouseSink, *changes: Change) -> list[Outcome]:
    return [result.outcome for result in sink.apply(changes)]


def test_an_empty_table_is_merged_into_without_a_look(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    assert outcomes(sink, change(1, 10), change(2, 11)) == [WRITTEN, WRITTEN]
    assert len(engine.statements) == len(engine.begun("MERGE")) == 1


def test_a_batch_without_news_makes_no_snapshot(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    sink.apply([change(1, 10)])
    assert outcomes(sink, change(1, 10), change(1, 9)) == [STALE, STALE]
    assert len(engine.snapshots) == 1


def test_only_what_is_newer_is_merged(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    sink.apply([change(1, 10), change(2, 10)])
    assert outcomes(sink, change(1, 9), change(2, 20), change(3, 5)) == [STALE, WRITTEN, WRITTEN]
    assert engine.versions == {1: [10], 2: [20], 3: [5]}


def test_a_conflict_is_planned_again(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    sink.apply([change(1, 10)])
    engine.conflicts = 2
    assert outcomes(sink, change(1, 20)) == [WRITTEN]
    assert len(engine.begun("SELECT")) == 3


def test_what_the_winner_of_a_conflict_wrote_is_seen(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    sink.apply([change(1, 10)])
    engine.conflicts = 1
    engine.before_merge = lambda: engine.versions.update({1: [30]})
    assert outcomes(sink, change(1, 20)) == [STALE]


def test_endless_conflicts_are_an_error(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    engine.conflicts = ATTEMPT_COUNT_MAX + 1
    with pytest.raises(SinkError, match=r"a_with_deleted.*other writers") as error:
        sink.apply([change(1, 10)])
    assert "one job" in error.value.hint


def test_a_key_that_another_writer_doubled_in_between_is_mended(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    """The case in which the catalog's own check has a hole: both writers append the same new key."""
    engine.intrude(k9=1)
    engine.before_merge = lambda: engine.intrude(k1=10, k2=30)
    engine.versions[1] = []
    assert outcomes(sink, change(1, 20), change(2, 20), change(3, 20)) == [WRITTEN, STALE, WRITTEN]
    assert engine.versions == {9: [1], 1: [20], 2: [30], 3: [20]}
    assert len(engine.begun("MERGE")) == 2, "ours, and the removal of doubles"


def test_doubles_that_are_met_are_mended(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    """A writer that was killed between its commit and its look back left them."""
    engine.intrude(k1=10)
    engine.intrude(k1=12)
    assert outcomes(sink, change(1, 20)) == [WRITTEN]
    assert engine.versions == {1: [20]}


def test_a_sweep_is_planned_again_after_a_conflict(sink: WarehouseSink, engine: ScriptedEngine) -> None:
    sink.apply([change(1, 10)])
    engine.conflicts = 1
    assert sink.sweep(TABLE, 50) == 1
    assert len(engine.begun("UPDATE")) == 2


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
