"""Batches that stage and merge: what is merged, what is reported, what is deleted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.config.stores import WarehouseConfig
from cdc.model.events import Column, TableId, TableSchema
from sinks.contract import Change
from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from sinks.warehouse.staging import Staged, Stager
from spark_jobs.applied import FoundTopic, Offsets
from spark_jobs.batches import BatchReport, MicroBatch, OnReport
from spark_jobs.staging import WarehouseBatches, open_staging
from spark_jobs.task_report import SchemaCatalog
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
