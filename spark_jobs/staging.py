"""The warehouse's batches: tasks write rows as files, the driver merges the files into the tables."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

from cdc.config.stores import WarehouseConfig
from cdc.config.warehouse_catalog import S3Config
from cdc.model.control import ProgressRecord
from cdc.model.events import TableId, TableSchema
from cdc.model.lsn import Lsn, format_lsn
from sinks.contract import Change, Result
from sinks.record_columns import ColumnReader
from sinks.schema_history import SchemaHistory
from sinks.shaping.sink import apply_shaped
from sinks.shaping.table import TableShape, TableShapes
from sinks.warehouse.properties import CUT, INCARNATION, origin_of
from sinks.warehouse.staging import Staged, Stager, delete_staged
from spark_jobs.source.piece import PieceRecord
from spark_jobs.task_report import SchemaCatalog, SinkTaskConfig

if TYPE_CHECKING:  # imported late: each worker process reads this module, and does not need what takes seconds to load
    from sinks.warehouse.sink import WarehouseSink
    from spark_jobs.applied import FoundTopic, Offsets
    from spark_jobs.batches import Batches, BatchReport, MicroBatch, OnReport

log = structlog.get_logger(__name__)


class ShapedStager:
    """Stages a task's changes in the form of the sink's mapping."""

    def __init__(
        self,
        location: str,
        shapes: TableShapes,
        learned: Mapping[TableSchema, TableShape],
        section: WarehouseConfig,
    ) -> None:
        """`learned`: the newest schema of each table, before the mapping → its shape."""
        self._shapes = shapes
        schemas = [shape.schema for shape in learned.values()]
        self._stager = Stager(location, schemas, lambda table: section.shape(table).mode, section.s3)
        self._whole = {
            schema.table: schema
            for schema, shape in learned.items()
            if shape.is_identity and section.shape(schema.table).mode == "current"
        }
        self._readers: dict[TableId, ColumnReader | None] = {}  # made when the first records come

    def take(self, table: TableId, records: Sequence[PieceRecord]) -> Sequence[PieceRecord]:
        """Implements spark_jobs.piece_writer.RecordTaker."""
        reader = self._reader(table)
        rows = reader and reader.read([(record.key, record.value) for record in records])
        if not rows or not self._stager.take(table, rows):
            return records
        if len(rows.numbers) == len(records):
            return ()
        taken = set(rows.numbers)
        return [record for number, record in enumerate(records) if number not in taken]

    def _reader(self, table: TableId) -> ColumnReader | None:
        """Returns None for a table of which each row must be read by itself."""
        if table not in self._readers:
            self._readers[table] = None
            if (schema := self._whole.get(table)) is not None:
                with suppress(ValueError):  # a name of a column
                    self._readers[table] = ColumnReader(schema)
        return self._readers[table]

    def reduced(self, changes: Sequence[Change]) -> list[Change]:
        return self._stager.reduced(changes)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        return apply_shaped(self._shapes, self._stager.apply, changes)

    def finish(self) -> tuple[Staged, ...]:
        return self._stager.finish()

    def close(self) -> None:
        self._stager.close()


def open_staging(task_config: SinkTaskConfig, catalog: SchemaCatalog) -> ShapedStager:
    """Opens the target of a task. There is nothing to connect to: files are written when the task has read its
    records.
    """
    _do_without_pandas()
    shapes = TableShapes(task_config.sink, task_config.section)
    learned = {history.newest: shapes.learn(history) for history in catalog.schema_histories.values()}
    assert isinstance(task_config.section, WarehouseConfig)
    return ShapedStager(task_config.staging, shapes, learned, task_config.section)


class _NoPandas:
    """A finder of modules that finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        del path, target
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def _do_without_pandas() -> None:
    """Lets Arrow convert lists without importing pandas, which it does once to see whether they are pandas' own: 0.4 s
    of processor time in each of a sink's worker processes, which never have any."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(_NoPandas)


class WarehouseBatches:
    """Batches whose tasks stage rows, which the driver then merges into the warehouse's tables."""

    is_live = False

    def __init__(self, batches: "Batches", sink: "WarehouseSink", writer: str, s3: S3Config | None = None) -> None:
        """`writer`: says in each commit who wrote it, see `properties.JOB`. `s3`: how staged files are reached."""
        self._batches = batches
        self._writer = writer
        self._topics: dict[TableId, str] = {}
        self._sink = sink
        self._s3 = s3
        # Of a sink that is written up to cuts: the one to which the running batch goes, and whether a batch with this
        # report reaches it.
        self.cut_of: Callable[[BatchReport], tuple[ProgressRecord, bool] | None] = lambda _: None
        # Of a topic. Also of a sink without tags: with offsets of a topic that was created again nobody could tell,
        # once tags are wanted, whether a table is beyond a position.
        self.incarnation_of: Callable[[str], str] = lambda _: ""

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        self._topics = {history.newest.table: topic for topic, history in schema_histories.items()}
        self._batches.set_tables(schema_histories)

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        self._batches.set_open_dead_letters(open_dead_letters)

    def find_topics(self) -> "Mapping[str, FoundTopic]":
        return self._batches.find_topics()

    def run(self, micro_batch: "MicroBatch", end_offsets: "Offsets", on_report: "OnReport") -> "BatchReport":
        begun = time.monotonic()
        report = self._batches.run(micro_batch, end_offsets, on_report)
        if report.staged:
            staged = time.monotonic()
            try:
                report.written = self._sink.take(report.staged, self._origins(report, micro_batch.batch_id))
            finally:
                delete_staged((part.path for part in report.staged), self._s3)
            # A change is counted once: counters of a sink must not go back, whatever the store counts.
            report.stale = max(0, report.records - report.written)
            log.debug(
                "merged",
                tables=len({part.table for part in report.staged}),
                rows=sum(part.row_count for part in report.staged),
                staging_s=round(staged - begun, 2),
                merging_s=round(time.monotonic() - staged, 2),
            )
        return report

    def _origins(self, report: "BatchReport", batch_id: int) -> dict[TableId, dict[str, str]]:
        """Returns for each staged table where its rows came from: the offsets of its topic's partitions."""
        origins, cut = {}, self.cut_of(report)
        for table in {part.table for part in report.staged}:
            topic = self._topics[table]
            start_offsets = report.start_offsets.get(topic, {})
            ranges = {
                partition: (start_offsets.get(partition, 0), end)
                for partition, end in report.end_offsets.get(topic, {}).items()
            }
            incarnation = {INCARNATION: self.incarnation_of(topic)}
            origins[table] = origin_of(self._writer, batch_id, topic, ranges) | incarnation | _cut_of(topic, cut)
        return origins


def _cut_of(topic: str, cut: tuple[ProgressRecord, bool] | None) -> dict[str, str]:
    if cut is None:
        return {}
    record, is_reached = cut
    reached = {CUT: f"{record.epoch} {format_lsn(Lsn(record.lsn))}"} if is_reached else {}
    return {INCARNATION: record.incarnations.get(topic, ""), **reached}
