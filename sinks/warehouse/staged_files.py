"""The division of staged rows into row groups and files of bounded size. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

# Spark reads a whole row group into memory, however large its rows are.
ROW_GROUP_BYTES: Final = 8 * 1024 * 1024
# Files of large rows are merged one by one.
FILE_BYTES: Final = 32 * 1024 * 1024


def files_of(pieces: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    """Yields the row groups of each file."""
    yield from _together(map(pa.concat_tables, _together(_slices(pieces), ROW_GROUP_BYTES)), FILE_BYTES)


def _together(parts: Iterable[pa.Table], bytes_min: int) -> Iterator[list[pa.Table]]:
    """Yields the parts in lists that have `bytes_min` or more, except the last one."""
    waiting: list[pa.Table] = []
    size = 0  # counted as they come: a table's nbytes looks at each column
    for part in parts:
        waiting.append(part)
        size += part.nbytes
        if size >= bytes_min:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _slices(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the pieces' rows in parts of at most about ROW_GROUP_BYTES, unless a single row is larger."""
    for piece in pieces:
        rows = max(1, len(piece) * ROW_GROUP_BYTES // max(1, piece.nbytes))
        for at in range(0, len(piece), rows):
            yield piece.slice(at, rows)
