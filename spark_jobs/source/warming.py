"""What Spark runs once when a job starts, as `spark_jobs.pipelining` asks: it starts the Python processes that a sink's
first batch needs, and shows whether a row reaches `mapInArrow` while the data source still runs.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:  # the process that plans, which does not need it, would load it for a part of a second
    import pyarrow as pa

DDL: Final = "took_ms bigint"
PIECE: Final = -1
NEVER: Final = -2
NAME_OPTION: Final = "name"
WAIT_OPTION: Final = "wait_s"
_LOOK_S: Final = 0.002


class ProbeSource(DataSource):
    """Yields a row and, as a sink's source after its last record, two more behind it. Then it waits until `received`
    has got the first, for `wait_s` at most, and yields how many milliseconds this took, or NEVER."""

    @classmethod
    def name(cls) -> str:
        return "watershed_probe"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _ProbeReader(self.options[NAME_OPTION], float(self.options[WAIT_OPTION]))


class _ProbeReader(DataSourceReader):
    def __init__(self, name: str, wait_s: float) -> None:
        self._name = name
        self._wait_s = wait_s

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        del partition
        mark = _mark(self._name)
        begun = time.monotonic()
        for _ in range(3):
            yield _row(PIECE)
        # Looks are counted, and not the time that passes while this process is stopped.
        for _ in range(int(self._wait_s / _LOOK_S)):
            if mark.exists():
                break
            time.sleep(_LOOK_S)
        took_ms = round((time.monotonic() - begun) * 1000) if mark.exists() else NEVER
        mark.unlink(missing_ok=True)
        yield _row(took_ms)


class Received:
    """The function of `mapInArrow`. It runs beside the source, in another process of the same executor."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Passes on how long it took."""
        for number, batch in enumerate(batches):
            if not number:
                _mark(self._name).touch()
            rows = batch.column("took_ms").to_pylist()
            if rows[-1] != PIECE:  # settings may have joined rows into one batch
                _mark(self._name).unlink(missing_ok=True)
                yield _row(rows[-1])


def _mark(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"watershed-probe-{name}"


def _row(took_ms: int) -> "pa.RecordBatch":
    import pyarrow as pa

    from spark_jobs.source.piece import one_integer

    return pa.RecordBatch.from_arrays([one_integer(took_ms)], names=["took_ms"])
