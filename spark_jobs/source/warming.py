"""What Spark runs once when a job starts, as `spark_jobs.pipelining` asks: it starts the Python processes that a sink's
first batch needs, and shows whether rows reach `mapInArrow` while the data source still runs.
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
# More than Spark's buffers of rows hold back.
_PIECE_BYTES: Final = 100_000


class ProbeSource(DataSource):
    """Yields a piece and, as a sink's source does when no records follow, an empty one. Then it waits until Received
    has got the piece, for `wait_s` at most, and yields how many milliseconds this took, or NEVER. It does so for the
    smallest piece, then for a large one: the slower of the two counts."""

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
        slowest_ms = 0
        for value in (b"", bytes(_PIECE_BYTES)):
            begun = time.monotonic()
            for piece in (Piece([PiecePartition("", 0, 0, 1)], [PieceRecord(0, 0, value, None, 0)]), EMPTY):
                yield to_row(piece)
            has_arrived = self._arrives()
            slowest_ms = max(slowest_ms, round((time.monotonic() - begun) * 1000))
            if not has_arrived:
                slowest_ms = NEVER
                break
        yield _answer(slowest_ms)

    def _arrives(self) -> bool:
        """Waits until the mark is there, and removes it."""
        mark = _mark(self._name)
        # Looks are counted, and not the time that passes while this process is stopped.
        for _ in range(int(self._wait_s / _LOOK_S)):
            if mark.exists():
                break
            time.sleep(_LOOK_S)
        has_arrived = mark.exists()
        mark.unlink(missing_ok=True)
        return has_arrived


class Received:
    """The function of `mapInArrow`. It runs beside the source, in another process of the same executor."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Passes on how long it took."""
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("records", "bytes", "content"))
            for records, took_ms, content in zip(*columns, strict=True):
                if not content:  # the last row
                    _mark(self._name).unlink(missing_ok=True)
                    yield _answer(took_ms)
                elif records:
                    _mark(self._name).touch()


def _mark(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"watershed-probe-{name}"


def _answer(took_ms: int) -> "pa.RecordBatch":
    """Returns a row like that of a piece, but without content."""
    import pyarrow as pa

    from spark_jobs.source.piece import SCHEMA, one_binary, one_integer

    return pa.RecordBatch.from_arrays([one_integer(0), one_integer(took_ms), one_binary(b"")], schema=SCHEMA)
