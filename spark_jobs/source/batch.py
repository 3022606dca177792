"""Batch queries: a table's present rows, or its changes between two positions."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cdc.model.errors import ConfigError
from cdc.model.lsn import format_lsn
from spark_jobs.source.errors import IncompleteTableError
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pipeline import TableState, TableWatch
from spark_jobs.source.records import ChangeRows, Sweep, TopicRange, pieces
from spark_jobs.source.rows import RowForm
from spark_jobs.source.state import NEXT_COMPLETE, PresentRows

INTACT_MS: Final = 24 * 3_600_000  # capture's topics keep every record for so long (min.compaction.lag.ms)


class BatchReader(DataSourceReader):
    """Reads up to the offsets of the last progress record: everything committed up to its position is below them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Raises WatershedError."""
        options = self._options
        with closing(TableWatch(options)) as watch:
            state = watch.state() if options.wants_changes else watch.settled_state()
        RowForm.of(state.schema_history.newest, options).require(columns_of(self._schema))
        if state.owed and not options.may_be_incomplete:
            raise IncompleteTableError(
                f"rows of table {options.table} are not in its topic yet: {state.owed}", NEXT_COMPLETE
            )
        return list(plan(options, state, time.time_ns() // 1_000_000))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicRange | Sweep)
        form = RowForm.of(partition.schema_history.newest, self._options)
        if self._options.wants_changes:
            yield from read_changes(form, partition)
            return
        assert isinstance(partition, TopicRange)
        present = PresentRows(partition)
        for piece in pieces(partition):
            present.add(piece)
        for rows in present.rows():
            yield form.batch(rows)


def columns_of(schema: StructType) -> list[tuple[str, str]]:
    """Returns name and type of each column."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def read_changes(form: RowForm, part: TopicRange | Sweep) -> Iterator[pa.RecordBatch]:
    """Yields the changes of a range, or the row of a sweep."""
    if isinstance(part, Sweep):
        yield form.sweep(part.floor, part.as_of_lsn)
        return
    changes = ChangeRows(part)
    for piece in pieces(part):
        if rows := changes.of(piece):
            yield form.batch(rows)
    changes.finish()


def plan(options: SourceOptions, state: TableState, now_ms: int) -> Iterator[TopicRange | Sweep]:
    """Yields the ranges of a batch query. Raises ConfigError for positions of which there is nothing to read,
    IncompleteTableError for one that capture has not reached."""
    after, until = _window(options, state)
    end_offsets = state.progress.end_offsets.get(state.topic, ())
    sweep = state.sweep
    if until is not None and sweep and after < (sweep.epoch, sweep.as_of_lsn) <= until:
        yield Sweep(state.schema_history, sweep.floor, sweep.as_of_lsn)
    for number, start in enumerate(state.start_offsets):
        yield TopicRange(
            kafka=options.kafka,
            schema_history=state.schema_history,
            topic_id=state.topic_id,
            number=number,
            begin=start,
            start=start,
            end=end_offsets[number] if number < len(end_offsets) else 0,
            after=after,
            until=until,
            floor=state.sweep.floor if state.sweep else 0,
            intact_ms=0 if options.may_be_compacted else now_ms - INTACT_MS,
            may_be_incomplete=options.may_be_incomplete,
        )


def _window(options: SourceOptions, state: TableState) -> tuple[tuple[int, int], tuple[int, int] | None]:
    if not options.wants_changes:
        return (0, 0), None
    epoch, reached = state.position
    after, until = (0, 0), state.position
    if options.starting == "latest":
        after = state.position
    elif isinstance(options.starting, int):
        after = epoch, options.starting
    if options.ending == "earliest":
        raise ConfigError('format("watershed"): endingPosition can\'t be earliest', "choose an LSN, or latest")
    if isinstance(options.ending, int):
        until = epoch, options.ending
    for name, position in (("startingPosition", after), ("endingPosition", until)):
        if position > state.position:
            raise IncompleteTableError(
                f"capture has reached {format_lsn(reached)}, which is before {name} {format_lsn(position[1])}",
                "wait until it has (cdc wait --lsn), then run the query again; or correct the option",
            )
    if until < after:
        raise ConfigError(
            'format("watershed"): endingPosition is before startingPosition', "exchange them, or correct one of them"
        )
    return after, until
