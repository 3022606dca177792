"""Batches that stage and merge: what is merged, what is reported, what is deleted."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cdc.config.stores import WarehouseConfig
from cdc.kafka.record_decoding import RecordReader
from cdc.model.events import Column, TableId, TableSchema, pack_version
from cdc.model.rejected_rows import dead_letter_key
from sinks.contract import Change
from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from sinks.warehouse.staging import Staged, Stager
from spark_jobs.applied import FoundTopic, Offsets
from spark_jobs.batches import BatchReport, MicroBatch, OnReport
from spark_jobs.piece_writer import PieceWriter
from spark_jobs.rejections import Rejections
from spark_jobs.source.piece import Piece
from spark_jobs.staging import WarehouseBatches, open_staging
from spark_jobs.task_report import SchemaCatalog, TaskReport
from tests.support.sources import ROOT
from tests.unit.spark_jobs import records

TABLE = TableId("public", "a")
SCHEMA = TableSchema(TABLE, 1, 16385, (Column("id", 20, -1, "bigint", False, "b", 20),), ("id",), "shop.public.a")
SCHEMA_HISTORIES = {SCHEMA.topic: SchemaHistory((SCHEMA,))}
NO_OFFSETS: Offsets = {}
BATCH = MicroBatch("the rows of a batch", 7)  # type: ignore[arg-type]


class FakeBatches:
    """Tasks that stage `rows` in each batch."""

    is_live = False

    def __init__(self, folder: Path, rows: int) -> None:
        self.frames: list[Any] = []
        self.learnt: Mapping[str, SchemaHistory] = {}
        self._folder = folder
        self._rows = rows

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        self.learnt = schema_histories

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        self.remembered = dict(open_dead_letters)

    def find_topics(self) -> dict[str, FoundTopic]:
        return {SCHEMA.topic: FoundTopic("id", (7,))}

    def run(self, micro_batch: Any, ends: Offsets, take: OnReport) -> BatchReport:
        del ends, take
        self.frames.append(micro_batch)
        stager = Stager(self._folder.as_uri(), [SCHEMA])
        stager.apply([Change(TABLE, {"id": at}, 10 + at, {"id": at}, 1) for at in range(self._rows)])
        return BatchReport(
            {SCHEMA.topic: {1: 9, 0: 4}, "shop.public.b": {0: 99}},
            {SCHEMA.topic: {1: 6}},
            records=self._rows,
            written=self._rows,
            staged=list(stager.finish()),
        )


class FakeSink:
    """Of what it takes, one row is stale."""

    def __init__(self, folder: Path, counted: int | None = None) -> None:
        self.counted = counted
        self.taken: list[Staged] = []
        self.failure: SinkError | None = None
        self._folder = folder

    def take(self, staged: Sequence[Staged], origins: Mapping[TableId, Mapping[str, str]]) -> int:
        self.origins = origins
        assert all(Path(part.path.removeprefix("file://")).exists() for part in staged)
        if self.failure is not None:
            raise self.failure
        self.taken += staged
        return sum(part.row_count for part in staged) - 1 if self.counted is None else self.counted


def merging(batches: FakeBatches, sink: Any) -> WarehouseBatches:
    tested = WarehouseBatches(batches, sink, "lake/2/5")
    tested.set_tables(SCHEMA_HISTORIES)
    return tested


def test_what_tasks_staged_is_merged_counted_and_deleted(tmp_path: Path) -> None:
    (tmp_path / "of another.parquet").touch()
    sink = FakeSink(tmp_path)
    batches = FakeBatches(tmp_path, 3)
    report = merging(batches, sink).run(BATCH, NO_OFFSETS, lambda _: True)
    assert (report.records, report.written, report.stale) == (3, 2, 1)
    assert [(part.table, part.row_count) for part in sink.taken] == [(TABLE, 3)]
    assert [path.name for path in tmp_path.iterdir()] == ["of another.parquet"]
    assert batches.frames == [BATCH]


def test_each_commit_says_where_its_rows_came_from(tmp_path: Path) -> None:
    """Of partition 0 the task began at the topic's beginning."""
    sink = FakeSink(tmp_path)
    tested = merging(FakeBatches(tmp_path, 3), sink)
    tested.incarnation_of = {SCHEMA.topic: "id"}.__getitem__
    tested.run(BATCH, NO_OFFSETS, lambda _: True)
    assert sink.origins == {
        TABLE: {
            "watershed.job": "lake/2/5",
            "watershed.query_batch": "7",
            "watershed.topic": SCHEMA.topic,
            "watershed.offsets": '{"0":[0,4],"1":[6,9]}',
            "watershed.incarnation": "id",
        }
    }


def test_a_store_that_counts_more_rows_than_changes_makes_no_counter_go_back(tmp_path: Path) -> None:
    sink = FakeSink(tmp_path, counted=5)
    report = merging(FakeBatches(tmp_path, 3), sink).run(BATCH, NO_OFFSETS, lambda _: True)
    assert (report.written, report.stale) == (5, 0)


def test_a_batch_without_rows_merges_nothing(tmp_path: Path) -> None:
    sink = FakeSink(tmp_path)
    report = merging(FakeBatches(tmp_path, 0), sink).run(BATCH, NO_OFFSETS, lambda _: True)
    assert (report.records, report.written, report.stale, sink.taken) == (0, 0, 0, [])


def test_staged_files_are_deleted_when_the_merge_fails_too(tmp_path: Path) -> None:
    sink = FakeSink(tmp_path)
    sink.failure = SinkError("warehouse: no space", "make room")
    with pytest.raises(SinkError, match="no space"):
        merging(FakeBatches(tmp_path, 3), sink).run(BATCH, NO_OFFSETS, lambda _: True)
    assert list(tmp_path.iterdir()) == []


def test_the_rest_is_that_of_the_batches(tmp_path: Path) -> None:
    batches = FakeBatches(tmp_path, 0)
    made = merging(batches, FakeSink(tmp_path))
    made.set_open_dead_letters({"public.a/1": 5})
    assert batches.remembered == {"public.a/1": 5}
    assert batches.learnt == SCHEMA_HISTORIES
    assert made.find_topics() == {SCHEMA.topic: FoundTopic("id", (7,))}


def test_a_task_stages_rows_of_the_newest_schemas(tmp_path: Path) -> None:
    section = WarehouseConfig.model_validate({"catalog_uri": "jdbc:sqlite:c.db", "location": "tables"})
    job = replace(records.job(), section=section, staging=tmp_path.as_uri())
    stager = open_staging(job, SchemaCatalog("one", SCHEMA_HISTORIES))
    stager.apply([Change(TABLE, {"id": 1}, 10, {"id": 1}, 1)])
    (part,) = stager.finish()
    assert part.path.startswith(tmp_path.as_uri() + "/") and part.keys == ((1,),)


# ---- rows that are taken at once

ROWS_SCHEMA = TableSchema(
    TABLE,
    1,
    16385,
    (Column("id", 20, -1, "bigint", False, "b", 20), Column("day", 1082, -1, "date", True, "b", 1082)),
    ("id",),
    SCHEMA.topic,
)


def _record(offset: int, number: int, seq: int, day: str | None = "2024-01-31", op: str = "c") -> records.Record:
    source = {"schema": "public", "table": "a", "epoch": 1, "seq": seq, "schema_version": 1}
    row = None if op == "d" else {"id": number, "day": day}
    return records.Record(offset, number, seq, json.dumps({"op": op, "after": row, "source": source}).encode())


class _Task:
    """Stages pieces, as a task does. `is_whole`: what can be taken at once is."""

    def __init__(self, folder: Path, *, is_whole: bool, open_letters: Mapping[str, int] | None = None) -> None:
        folder.mkdir()
        location = {"catalog_uri": "jdbc:sqlite:c.db", "location": "tables", "on_rejected": "dead_letter"}
        section = WarehouseConfig.model_validate(location)
        job = replace(records.job(), section=section, staging=folder.as_uri())
        catalog = SchemaCatalog("one", {SCHEMA.topic: SchemaHistory((ROWS_SCHEMA,))})
        self.target = open_staging(job, catalog)
        self.applied: list[int] = []
        self.report = TaskReport()
        self._executor = ThreadPoolExecutor(1)
        rejections = Rejections(section, 1, open_letters or {}, now_us=lambda: 5)
        written_to: Any = self.target if is_whole else _WithoutTake(self.target)
        self.writer = PieceWriter(written_to, catalog, self.report, rejections, self._executor, RecordReader(None))
        apply = self.target.apply
        self.target.apply = lambda changes: self.applied.append(len(changes)) or apply(changes)  # type: ignore

    def staged(self, *pieces: Piece) -> list[tuple[int, int, str, bool]]:
        with self._executor:
            for read in pieces:
                self.writer.write(read)
            self.writer.finish()
        found = [pq.read_table(part.path.removeprefix("file://")) for part in self.target.finish()]
        rows = [tuple(row.values()) for table in found for row in table.to_pylist()]
        return sorted((number, version, str(day), gone) for number, day, version, gone in rows)


class _WithoutTake:
    def __init__(self, target: Any) -> None:
        self.reduced, self.finish, self.close = target.reduced, target.finish, target.close
        self.apply = lambda changes: target.apply(changes)


LETTER = dead_letter_key(1, TABLE, "2")
PIECES: dict[str, tuple[list[records.Record], list[int]]] = {  # → the sizes of what is applied row by row
    "rows only": ([_record(n, n, n) for n in range(5)], []),
    "a key several times": ([_record(n, n % 2, 9 - n) for n in range(5)], []),
    "deletes and tombstones": (
        [_record(0, 1, 1), _record(1, 1, 2, op="d"), records.tombstone(2, 1, 2), _record(3, 1, 3), _record(4, 2, 4)],
        [1, 1],
    ),
    "a row that is refused": ([_record(0, 1, 1), _record(1, 2, 2, day="infinity"), _record(2, 3, 3)], [3]),
    "a row that is refused and another of its key": ([_record(0, 2, 1, day="infinity"), _record(1, 2, 2)], [1]),
}


@pytest.mark.parametrize("open_letters", [{}, {LETTER: pack_version(1, 0)}], ids=["none open", "one open"])
@pytest.mark.parametrize("name", PIECES)
def test_rows_that_are_taken_at_once_are_those_that_are_taken_one_by_one(
    tmp_path: Path, name: str, open_letters: Mapping[str, int]
) -> None:
    raw, applied = PIECES[name]
    both = [_Task(tmp_path / str(is_whole), is_whole=is_whole, open_letters=open_letters) for is_whole in (True, False)]
    pieces = [records.piece(*raw[:2], is_full=True), records.piece(*raw[2:])] if len(raw) > 4 else [records.piece(*raw)]
    at_once, singly = (task.staged(*pieces) for task in both)
    assert at_once == singly and at_once
    here, there = (task.report for task in both)
    assert (here.records, here.end_offsets, here.dead_letters) == (there.records, there.end_offsets, there.dead_letters)
    if not open_letters:
        assert [size for size in both[0].applied if size] == applied


def test_a_mapped_table_is_taken_row_by_row(tmp_path: Path) -> None:
    task = _Task(tmp_path / "folder", is_whole=True)
    section = {
        "catalog_uri": "jdbc:sqlite:c.db",
        "location": "tables",
        "mapping": {"public.a": {"rename": {"day": "d"}}},
    }
    job = replace(
        records.job(), section=WarehouseConfig.model_validate(section), staging=(tmp_path / "folder").as_uri()
    )
    target = open_staging(job, SchemaCatalog("one", {SCHEMA.topic: SchemaHistory((ROWS_SCHEMA,))}))
    read = records.piece(_record(0, 1, 1)).records
    assert list(task.target.take(TABLE, read)) == []
    assert list(target.take(TABLE, read)) == read


def test_staging_needs_no_pandas(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tests.unit.spark_jobs import records, test_staging as tests\n"
        "assert 'pandas' not in sys.modules\n"
        f"task = tests._Task(tests.Path({str(tmp_path / 'folder')!r}), is_whole=True)\n"
        "task.target.take(tests.TABLE, records.piece(tests._record(0, 1, 1)).records)\n"
        "assert len(task.target.finish()) == 1 and 'pandas' not in sys.modules\n"
        "import pandas\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
