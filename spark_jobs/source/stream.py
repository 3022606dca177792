"""Streaming queries: a table's changes, in micro-batches with exact offsets."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.source.batch import columns_of, read_changes
from spark_jobs.source.offsets import StreamOffset, limited, require_held
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pipeline import TableState, TableWatch, require_same
from spark_jobs.source.records import Sweep, TopicRange
from spark_jobs.source.rows import RowForm


class StreamReader(DataSourceStreamReader):
    """Plans a query's micro-batches, in a process of the driver that Spark keeps for it; `read` runs in tasks.

    Spark 4.1 asks for the latest offset without saying where the query is. It asks for the partitions of an empty range
    first when a query continues, which says it, and of each batch afterwards.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Does not read anything: Spark makes a reader for each batch, only to send it to the tasks."""
        self._options = options
        self._schema = schema
        self._watch: TableWatch | None = None
        self._initial: StreamOffset | None = None
        self._reached: StreamOffset | None = None  # the end of the last batch

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raises WatershedError."""
        return self._first(self._state()).encoded()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns the end of the next batch. Raises WatershedError."""
        state = self._state()
        reached = self._reached or self._first(state)
        self._check(reached, state)
        start_offsets = [reached.of(number) for number in range(len(state.end_offsets))]
        end = reached.with_offsets(limited(start_offsets, state.end_offsets, self._options.records_max))
        return end._replace(swept=max(end.swept, _due_floor(state, end))).encoded()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises WatershedError."""
        begun, ended = StreamOffset.decode(start), StreamOffset.decode(end)
        state = self._state()
        for offset in (begun, ended):
            self._check(offset, state)
        self._reached = ended
        swept: list[InputPartition] = []
        if ended.swept > begun.swept:
            as_of_lsn = state.sweep.as_of_lsn if state.sweep and state.sweep.floor == ended.swept else 0
            swept.append(Sweep(state.schema_history, ended.swept, as_of_lsn))
        return swept + [
            TopicRange(
                kafka=self._options.kafka,
                schema_history=state.schema_history,
                topic_id=state.topic_id,
                number=number,
                begin=state.start_offsets[number],
                start=begun.of(number),
                end=stop,
                after=begun.after,
            )
            for number, stop in enumerate(ended.offsets)
            if stop > begun.of(number)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TopicRange | Sweep)
        return read_changes(RowForm.of(partition.schema_history.newest, self._options), partition)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _state(self) -> TableState:
        if self._watch is None:
            self._watch = TableWatch(self._options)
        state = self._watch.state()
        RowForm.of(state.schema_history.newest, self._options).require(columns_of(self._schema))
        return state

    def _check(self, offset: StreamOffset, state: TableState) -> None:
        require_same(offset._asdict(), state)
        require_held(offset, state.start_offsets, state.end_offsets)

    def _first(self, state: TableState) -> StreamOffset:
        """Returns where a new query begins. A position is no offset: the topic is read from its beginning, and earlier
        changes are left out."""
        if self._initial is None:
            starting = self._options.starting
            offsets = state.end_offsets if starting == "latest" else state.start_offsets
            after = (state.progress.epoch, starting) if isinstance(starting, int) else (0, 0)
            swept = state.sweep.floor if state.sweep and starting == "latest" else 0
            self._initial = StreamOffset(
                state.topic, state.progress.history, state.incarnation, after, swept, tuple(offsets)
            )
        return self._initial


def _due_floor(state: TableState, end: StreamOffset) -> int:
    """Returns the floor of the table's sweep if everything as of it lies below these offsets; 0 if not."""
    sweep = state.sweep
    if sweep is None or (sweep.epoch, sweep.as_of_lsn) > state.position:
        return 0
    end_offsets = state.progress.end_offsets.get(state.topic, ())
    return sweep.floor if all(end.of(number) >= wanted for number, wanted in enumerate(end_offsets)) else 0
