"""Histories and change logs hold every change once, in whatever order and how often it comes.

Keys live in order; batches are cut anywhere, mixed among keys, delivered again and by a second writer."""

import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from cdc.config.store_shapes import WarehouseMode, WarehouseOptions
from cdc.model.events import Column, TableId, TableSchema
from sinks.contract import Change, Json, SourceOperation
from sinks.errors import RefusedError
from sinks.warehouse import statements
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.maintenance import Maintenance
from sinks.warehouse.merging import PreparedTable
from sinks.warehouse.naming import table_location
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.staging import Stager, TableForm
from sinks.warehouse.statements import CATALOG
from spark_jobs.engine import SparkEngine

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CURRENT, HISTORY, LOG = (TableId("public", name) for name in ("kept", "histories", "logs"))
COLUMNS: Final = (
    Column("id", 20, -1, "bigint", False, "b", 20),
    Column("name", 25, -1, "text", True, "b", 25),
    Column("price", 1700, (12 << 16 | 2) + 4, "numeric(12,2)", True, "b", 1700),
    Column("note", 25, -1, "text", True, "b", 25),  # the large one
)
OPTIONS: Final = WarehouseOptions.model_validate(
    {
        "shapes": {
            str(CURRENT): {"partition_by": ["bucket(3, id)"], "sort_by": ["name desc"]},
            str(HISTORY): {"mode": "history", "partition_by": ["day(valid_from)"], "sort_by": ["id"]},
            str(LOG): {"mode": "changelog", "partition_by": ["day(committed_at)", "truncate(10, id)"]},
        }
    }
)
BEGIN: Final = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
NOTHING: Final[dict[str, Json]] = {column.name: None for column in COLUMNS}


def at(version: int) -> datetime:
    return BEGIN + timedelta(seconds=version)


@dataclass
class Warehouse:
    """The tables of three modes, and two writers of them."""

    spark: "SparkSession"
    folder: Path

    def __post_init__(self) -> None:
        self.place = CatalogPlace(self.folder / "catalog.db", (self.folder / "tables").as_uri(), "shop")

    def open(self, options: WarehouseOptions = OPTIONS, *schemas: TableSchema) -> WarehouseSink:
        """`schemas`: versions of one table instead of the three."""
        engines = [SparkEngine(self.spark, self.place) for _ in range(2)]
        staging = (self.folder / "staged").as_uri()
        reader = WarehouseReader(self.place)
        sink = WarehouseSink(engines[0], engines[1:], reader, staging, options=options)
        sink.begin_generation(1)
        if schemas:
            sink.prepare(schemas[-1], schemas[:-1])
            return sink
        for table in (CURRENT, HISTORY, LOG):
            sink.prepare(TableSchema(table, 1, 1, COLUMNS, ("id",), f"shop.{table}"))
        return sink

    def read(self, table: TableId) -> list[dict[str, Any]]:
        """As any reader sees it."""
        catalog = SqlCatalog(CATALOG, **self.place.python_properties)
        rows: list[dict[str, Any]] = (
            catalog.load_table(table_location("shop", table).rows).scan().to_arrow().to_pylist()
        )
        catalog.close()
        return sorted(rows, key=lambda row: (row["ws_version"], row["id"] or 0))


@pytest.fixture
def warehouse(spark: "SparkSession") -> Iterator[Warehouse]:
    with tempfile.TemporaryDirectory(prefix="watershed-modes-") as folder:
        yield Warehouse(spark, Path(folder))


def lives(random: Random, table: TableId, count: int) -> list[Change]:
    """Changes in the order of their versions. A row that a snapshot reads is as its key's row is, or not."""
    held: dict[int, dict[str, Json]] = {}
    changes = []
    for version in range(1, count + 1):
        key = random.randrange(8)
        row = held.get(key)
        drawn: dict[str, Json] = {
            "id": key,
            "name": random.choice([None, "a", "b"]),
            "price": random.choice([None, "1.50", "-0.25"]),
            "note": random.choice([None, "long", "longer"]),
        }
        match random.choice("cuuldrr") if row is not None else random.choice("ccrd"):
            case "d":
                held.pop(key, None)
                changes.append(change(table, key, version, "d", None))
            case "l" if row is not None:
                held[key] = drawn | {"note": row["note"]}
                lacking = {name: value for name, value in drawn.items() if name != "note"}
                changes.append(change(table, key, version, "u", lacking, frozenset({"note"})))
            case "r":
                held[key] = drawn if row is None or random.random() < 0.5 else row
                changes.append(change(table, key, version, "r", held[key]))
            case operation:
                held[key] = drawn
                changes.append(change(table, key, version, "u" if row else operation, drawn))
    return changes


def change(
    table: TableId,
    key: int,
    version: int,
    operation: str,
    row: dict[str, Json] | None,
    unchanged: frozenset[str] = frozenset(),
) -> Change:
    origin = SourceOperation(operation, int(at(version).timestamp() * 1_000_000))
    return Change(table, {"id": key}, version, row, 1, unchanged, origin)


def expected_history(changes: Sequence[Change]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    newest: dict[int, dict[str, Any]] = {}
    for one in changes:
        key, assert_operation = one.key["id"], one.origin
        assert assert_operation is not None
        before = newest.get(key)
        row = None if one.row is None else NOTHING | {name: before[name] for name in one.unchanged if before} | one.row
        values = NOTHING | {"id": key} if row is None else row
        is_row = before is not None and before["operation"] != "d"
        if assert_operation.operation == "r" and is_row and before and all(before[n] == values[n] for n in values):
            before["ws_seen_version"] = one.version
            continue
        begun = at(one.version)
        ours: dict[str, Any] = {
            **values,
            "operation": assert_operation.operation,
            "valid_from": begun,
            "valid_to": begun if row is None else None,
            "is_current": row is not None,
            "ws_version": one.version,
            "ws_next_version": None,
            "ws_seen_version": one.version,
        }
        if before is not None and is_row:
            before |= {"valid_to": begun, "is_current": False, "ws_next_version": one.version}
        newest[key] = ours
        found.append(ours)
    return found


def expected_log(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [
        {
            **NOTHING,
            **one.key,
            **(one.row or {}),
            "operation": one.origin.operation if one.origin else None,
            "committed_at": at(one.version),
            "ws_version": one.version,
            "ws_unchanged": sorted(one.unchanged) or None,
        }
        for one in changes
    ]


def expected_rows(changes: Sequence[Change]) -> list[dict[str, Any]]:
    current = {one["id"]: one for one in expected_history(changes)}
    versions = {one.key["id"]: one.version for one in changes}
    rows = [
        {**{n: row[n] for n in NOTHING}, "ws_version": versions[key]}
        for key, row in current.items()
        if row["is_current"]
    ]
    return sorted(rows, key=lambda row: row["ws_version"])


def same(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"price": None if row["price"] is None else str(row["price"])} for row in rows]


def deliveries(random: Random, changes: Sequence[Change]) -> list[list[Change]]:
    """Batches whose keys are in order; some begin again before where the last one ended."""
    batches, begin = [], 0
    while begin < len(changes):
        end = begin + random.randrange(1, 40)
        back = random.randrange(0, 30) if random.random() < 0.5 else 0
        batches.append(list(changes[max(0, begin - back) : end]))
        begin = end
    return batches


def apply(sink: WarehouseSink, batch: Sequence[Change]) -> None:
    results = sink.apply(sink.reduced(batch))
    assert not [result for result in results if result.reason]


def test_every_mode_holds_what_the_changes_say_after_replays_and_cuts(warehouse: Warehouse) -> None:
    random = Random(23)
    tables = {table: lives(random, table, 90) for table in (CURRENT, HISTORY, LOG)}
    first, second = warehouse.open(), warehouse.open()
    for batches in zip(*(deliveries(Random(5), changes) for changes in tables.values()), strict=True):
        mixed = [one for batch in batches for one in batch]
        random.choice((first, second)).apply(first.reduced(mixed))
    for table, changes in tables.items():  # all of it once more, from the beginning
        apply(second, changes)
        assert len({one["ws_version"] for one in warehouse.read(table)}) == len(warehouse.read(table))
    assert same(warehouse.read(CURRENT)) == expected_rows(tables[CURRENT])
    assert same(warehouse.read(HISTORY)) == expected_history(tables[HISTORY])
    assert same(warehouse.read(LOG)) == expected_log(tables[LOG])
    for table in tables:
        live = {row.key["id"]: row.version for row in first.rows(table)}
        assert live.keys() == {row["id"] for row in expected_rows(tables[table])}
    done = Maintenance(SparkEngine(warehouse.spark, warehouse.place), lambda: 2e9, OPTIONS).maintain("shop")
    assert [one.table for one in done if not one.expired_snapshots] == []
    assert all(one.rewritten_files > one.added_files for one in done if "__deleted" not in one.table), done
    deleted = "SELECT count(*) FROM watershed.shop.public__deleted.kept"
    assert SparkEngine(warehouse.spark, warehouse.place).query(deleted).column(0)[0].as_py() == 0, "all are years old"
    assert same(warehouse.read(HISTORY)) == expected_history(tables[HISTORY])
    first.close()
    second.close()


def test_two_writers_of_the_same_changes_write_each_once(warehouse: Warehouse) -> None:
    tables = {table: lives(Random(7), table, 40) for table in (CURRENT, HISTORY, LOG)}
    sinks = [warehouse.open() for _ in range(2)]

    def write(sink: WarehouseSink, random: Random) -> None:
        for changes in tables.values():
            for begin in range(0, len(changes), 20):
                apply(sink, changes[max(0, begin - random.randrange(5)) : begin + 20])

    threads = [threading.Thread(target=write, args=(sink, Random(at))) for at, sink in enumerate(sinks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(warehouse.read(CURRENT)) == expected_rows(tables[CURRENT])
    assert same(warehouse.read(HISTORY)) == expected_history(tables[HISTORY])
    assert same(warehouse.read(LOG)) == expected_log(tables[LOG])
    for sink in sinks:
        sink.close()


def test_a_change_that_comes_late_takes_its_place(warehouse: Warehouse) -> None:
    """Changes of one key in any order, as a writer that was stopped may bring them."""
    row = NOTHING | {"id": 1}
    changes = [
        change(HISTORY, 1, 1, "c", row | {"name": "a"}),
        change(HISTORY, 1, 2, "u", row | {"name": "b"}),
        change(HISTORY, 1, 3, "d", None),
        change(HISTORY, 1, 4, "c", row | {"name": "c"}),
    ]
    sink = warehouse.open()
    for number in (3, 1, 2, 0):
        apply(sink, [changes[number]])
    assert same(warehouse.read(HISTORY)) == expected_history(changes)
    sink.close()


def test_a_sweep_ends_intervals_and_is_a_row_of_a_log(warehouse: Warehouse) -> None:
    """Not the interval of a row that the snapshot before it has found as it was."""
    row = NOTHING | {"id": 1, "name": "a"}
    rows = {key: row | {"id": key} for key in (1, 2, 4)}
    sink = warehouse.open()
    for table in (HISTORY, LOG):
        apply(sink, [change(table, key, key, "c", values) for key, values in rows.items()])
        apply(sink, [change(table, 3, 5, "d", None), change(table, 4, 7, "r", rows[4])])
        sink.sweep(table, 6)
        sink.sweep(table, 6)
        apply(sink, [change(table, 1, 1, "c", rows[1]), change(table, 2, 8, "c", rows[2])])
    history = warehouse.read(HISTORY)
    assert [(held["id"], held["operation"], held["ws_version"]) for held in history[3:]] == [
        (3, "d", 5),
        (1, "d", 6),
        (2, "d", 6),
        (2, "c", 8),
    ]
    assert {(held["id"], held["ws_version"]) for held in history if held["is_current"]} == {(4, 4), (2, 8)}
    first, deleted = history[0], history[4]
    assert first["valid_to"] == deleted["valid_from"] == deleted["valid_to"]
    log = [(held["id"], held["operation"], held["ws_version"]) for held in warehouse.read(LOG)]
    assert log[3:] == [(3, "d", 5), (None, "t", 6), (4, "r", 7), (2, "c", 8)]
    for table in (HISTORY, LOG):
        assert {held.key["id"]: held.version for held in sink.rows(table)} == {2: 8, 4: 7}
    sink.close()


def test_a_sweep_at_the_version_of_a_row_removes_the_rows_before_it(warehouse: Warehouse) -> None:
    """As the sweep of a snapshot, whose floor is the version of the first row that it publishes. Of two writers one
    finds the other's commit behind its own, and removes duplicates."""
    rows = {key: NOTHING | {"id": key, "name": "a"} for key in (1, 2, 3)}
    sinks = warehouse.open(), warehouse.open()
    for table in (CURRENT, HISTORY, LOG):
        apply(sinks[0], [change(table, key, key, "c", row) for key, row in rows.items()])
        apply(sinks[0], [change(table, 1, 6, "r", rows[1])])
        sinks[0].sweep(table, 6)
        sinks[1].sweep(table, 6)
        apply(sinks[1], [change(table, 1, 6, "r", rows[1]), change(table, 3, 7, "r", rows[3])])
        assert {held.key["id"]: held.version for held in sinks[0].rows(table)} == {1: 6, 3: 7}, table
    assert [(held["operation"], held["id"], held["ws_version"]) for held in warehouse.read(LOG)[3:]] == [
        ("t", None, 6),
        ("r", 1, 6),
        ("r", 3, 7),
    ]
    engine = SparkEngine(warehouse.spark, warehouse.place)
    modes: dict[TableId, WarehouseMode] = {HISTORY: "history", LOG: "changelog"}
    for table, mode in modes.items():
        made = TableSchema(table, 1, 1, COLUMNS, ("id",), f"shop.{table}")
        held, before = PreparedTable(table_location("shop", table), TableForm.of(made, mode)), warehouse.read(table)
        engine.run(statements.remove_duplicates(held.place.rows, held.identity, held.kind, of_source=False))
        assert warehouse.read(table) == before
    for sink in sinks:
        sink.close()


def test_a_row_that_a_condition_leaves_out_ends_only_what_was_there(warehouse: Warehouse) -> None:
    row = NOTHING | {"id": 1, "name": "a"}
    sink = warehouse.open()
    for table in (HISTORY, LOG):
        apply(sink, [change(table, 1, 1, "c", row), change(table, 2, 2, "n", None), change(table, 3, 3, "x", None)])
        apply(sink, [change(table, 1, 4, "x", None), change(table, 1, 5, "x", None)])
    assert [(held["id"], held["operation"]) for held in warehouse.read(HISTORY)] == [(1, "c"), (1, "d")]
    assert [held["ws_version"] for held in warehouse.read(LOG)] == [1, 3, 4, 5]
    sink.close()


def test_no_value_of_a_history_is_lost_with_its_column(warehouse: Warehouse) -> None:
    """Of the source's rows a column that is another from now on is empty until they come again."""
    options = WarehouseOptions.model_validate(
        {
            "shapes": {
                str(HISTORY): {"mode": "history", "partition_by": ["price", "name"]},
                str(CURRENT): {"partition_by": ["bucket(2, id)"], "sort_by": ["note"]},
            }
        }
    )
    without = WarehouseOptions.model_validate({"shapes": {str(HISTORY): {"mode": "history"}}})
    row = NOTHING | {"id": 1, "name": "a", "price": "1.50", "note": "n"}
    retyped = tuple(
        replace(column, type_oid=25, base_type_oid=25, type_name="text", type_modifier=-1)
        if column.name == "price"
        else column
        for column in COLUMNS[:3]
    )
    for table in (HISTORY, CURRENT):
        first = TableSchema(table, 1, 1, COLUMNS, ("id",), f"shop.{table}")
        for options_of, schemas in ((options, [first]), (without, [first, replace(first, version=2, columns=retyped)])):
            sink = warehouse.open(options_of, *schemas)
            values = {name: row[name] for name in (column.name for column in schemas[-1].columns)}
            apply(sink, [change(table, 1, schemas[-1].version, "u", values | {"name": str(len(schemas))})])
            sink.close()
    old, new = warehouse.read(HISTORY)
    assert (str(old["price__before_v2"]), old["price"], old["note"], old["name"]) == ("1.50", None, "n", "1")
    assert (new["price__before_v2"], new["price"], new["note"], new["name"]) == (None, "1.50", None, "2")
    assert warehouse.read(CURRENT) == [{"id": 1, "name": "2", "price": "1.50", "ws_version": 2}]


def test_a_column_by_which_files_are_partitioned_is_not_dropped_with_the_rows_unreadable(warehouse: Warehouse) -> None:
    """Neither where the configuration has given that partition up before."""
    partitioned = WarehouseOptions.model_validate({"shapes": {str(CURRENT): {"partition_by": ["note"]}}})
    first = TableSchema(CURRENT, 1, 1, COLUMNS, ("id",), f"shop.{CURRENT}")
    row = NOTHING | {"id": 1, "name": "a", "price": "1.50", "note": "n"}
    for options in (partitioned, WarehouseOptions()):
        sink = warehouse.open(options, first)
        apply(sink, [change(CURRENT, 1, 1, "u", row)])
        sink.close()
    with pytest.raises(RefusedError, match="partitioned by column note, which was dropped") as raised:
        warehouse.open(WarehouseOptions(), first, replace(first, version=2, columns=COLUMNS[:3]))
    assert "RENAME TO" in raised.value.hint
    assert [read["note"] for read in warehouse.read(CURRENT)] == ["n"]


@pytest.mark.parametrize("table", [CURRENT, HISTORY, LOG])
def test_written_changes_are_counted_once(warehouse: Warehouse, table: TableId) -> None:
    """Also those of a history, in which a change ends the row of the one before it; a change that is there is stale."""
    sink = warehouse.open()
    schema = TableSchema(table, 1, 1, COLUMNS, ("id",), f"shop.{table}")

    def written(*changes: Change) -> int:
        stager = Stager((warehouse.folder / "staged").as_uri(), [schema], lambda of: OPTIONS.shape(of).mode)
        stager.apply(stager.reduced(changes))
        return sink.take(stager.finish())

    row: dict[str, Json] = {**NOTHING, "id": 1}
    first = [change(table, 1, 1, "c", row), change(table, 2, 2, "c", {**NOTHING, "id": 2})]
    later = [change(table, 1, 3, "u", {**row, "name": "a"}), change(table, 2, 4, "d", None)]
    assert written(*first) == 2
    assert written(*later) == 2
    if table == CURRENT:
        return
    assert written(*first, *later) == 0
    assert written(change(table, 1, 5, "u", {**row, "name": "b"}), *later) == 1
