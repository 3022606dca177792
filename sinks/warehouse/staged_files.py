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
    groups: list[pa.Table] = []
    for group in _row_groups(pieces):
        groups.append(group)
        if sum(part.nbytes for part in groups) >= FILE_BYTES:
            yield groups
            groups = []
    if groups:
        yield groups


def _row_groups(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the pieces' rows in row groups of about ROW_GROUP_BYTES."""
    waiting: list[pa.Table] = []
    for piece in _slices(pieces):
        waiting.append(piece)
        if sum(part.nbytes for part in waiting) >= ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _slices(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the pieces' rows in parts of at most about ROW_GROUP_BYTES, unless a single row is larger."""
    for piece in pieces:
        rows = max(1, len(piece) * ROW_GROUP_BYTES // max(1, piece.nbytes))
        for at in range(0, len(piece), rows):
            yield piece.slice(at, rows)
