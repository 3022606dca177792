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

from spark_jobs.source.names import PIECE_DDL

if TYPE_CHECKING:  # the process that plans, which does not need it, would load it for a part of a second
    import pyarrow as pa

NEVER: Final = -1
NAME_OPTION: Final = "name"
WAIT_OPTION: Final = "wait_s"
_LOOK_S: Final = 0.002


class ProbeSource(DataSource):
    """Yields the smallest piece and, as a sink's source does when no records follow, two empty ones. Then it waits
    until Received has got the first, for `wait_s` at most, and yields how many milliseconds this took, or NEVER."""

    @classmethod
    def name(cls) -> str:
        return "watershed_probe"

    def schema(self) -> str:
        return PIECE_DDL

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
        from spark_jobs.source.piece import EMPTY, Piece, PiecePartition, PieceRecord, to_row

        del partition
        mark = _mark(self._name)
        begun = time.monotonic()
        for piece in (Piece([PiecePartition("", 0, 0, 1)], [PieceRecord(0, 0, b"", None, 0)]), EMPTY, EMPTY):
            yield to_row(piece)
        # Looks are counted, and not the time that passes while this process is stopped.
        for _ in range(int(self._wait_s / _LOOK_S)):
            if mark.exists():
                break
            time.sleep(_LOOK_S)
        took_ms = round((time.monotonic() - begun) * 1000) if mark.exists() else NEVER
        mark.unlink(missing_ok=True)
        yield _answer(took_ms)


class Received:
    """The function of `mapInArrow`. It runs beside the source, in another process of the same executor."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Passes on how long it took."""
        for number, batch in enumerate(batches):
            if not number:
                _mark(self._name).touch()
            answers = [
                took_ms
                for took_ms, content in zip(batch.column("bytes").to_pylist(), batch.column("content"), strict=True)
                if not len(content.as_py())
            ]
            for took_ms in answers:  # in the last row, with which settings may have joined the others
                _mark(self._name).unlink(missing_ok=True)
                yield _answer(took_ms)


def _mark(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"watershed-probe-{name}"


def _answer(took_ms: int) -> "pa.RecordBatch":
    """Returns a row like that of a piece, but without content."""
    import pyarrow as pa

    from spark_jobs.source.piece import SCHEMA, one_binary, one_integer

    return pa.RecordBatch.from_arrays([one_integer(0), one_integer(took_ms), one_binary(b"")], schema=SCHEMA)
