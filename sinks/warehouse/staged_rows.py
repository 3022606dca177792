"""The staged rows of a batch, for the process that merges them: their keys are in memory, their other columns pass
through it a row group at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc.config.warehouse_catalog import S3Config
from sinks.warehouse.naming import VERSION
from sinks.warehouse.object_store import file_system
from sinks.warehouse.staging import Staged
from sinks.warehouse.statements import DELETED

ROW: Final = "ws_row"  # the number of a row among the batch's
WHOLE_BYTES_MAX: Final = 8 * 1024 * 1024  # of rows that are read only once


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Some of a batch's rows."""

    count: int  # of the batch's rows
    keys: pa.Table  # of these rows: the columns of the key, VERSION, DELETED and ROW
    paths: tuple[str, ...]  # URIs of the batch's files
    tables: tuple[pa.Table, ...]  # the content of the first of these files
    s3: S3Config | None

    def filter(self, mask: pa.Array) -> "StagedRows":
        return replace(self, keys=self.keys.filter(mask))

    def whole(self, rows: pa.Array) -> Iterator[pa.Table]:
        """Yields the rows with these numbers, with all their columns."""
        mask = pc.is_in(pa.array(range(self.count), pa.int64()), value_set=rows)
        begun = 0
        for table in self._tables():
            if len(found := table.filter(mask.slice(begun, len(table)))):
                yield found
            begun += len(table)

    def _tables(self) -> Iterator[pa.Table]:
        yield from self.tables
        for uri in self.paths[len(self.tables) :]:
            system, path = file_system(uri, self.s3)
            with system.open_input_file(path) as source:
                file = pq.ParquetFile(source)
                for number in range(file.num_row_groups):
                    yield file.read_row_group(number)


def staged_rows(staged: Sequence[Staged], key: Sequence[str], s3: S3Config | None) -> StagedRows:
    """Returns all rows of these files."""
    is_whole = sum(part.byte_count for part in staged) <= WHOLE_BYTES_MAX
    columns = [*key, VERSION, DELETED]
    tables = [_read(part.path, None if is_whole else columns, s3) for part in staged]
    keys = pa.concat_tables([table.select(columns) for table in tables])
    keys = keys.append_column(ROW, pa.array(range(len(keys)), pa.int64()))
    return StagedRows(len(keys), keys, tuple(part.path for part in staged), tuple(tables) if is_whole else (), s3)


def _read(uri: str, columns: Sequence[str] | None, s3: S3Config | None) -> pa.Table:
    system, path = file_system(uri, s3)
    with system.open_input_file(path) as source:
        return pq.ParquetFile(source).read(columns)
