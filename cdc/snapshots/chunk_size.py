"""The number of rows of the next chunk: as many as fit into the time and the bytes that a chunk may take. Pure."""

from typing import Final

ROWS_FIRST: Final = 1_000
TARGET_S: Final = 0.5  # short enough for a transaction that holds back vacuum
# Seconds from the read of a chunk to its merge. The stream is delayed by the chunks that wait; on a slow processor,
# rows are read faster than they are published.
WAIT_S: Final = 0.25
_GROWTH_MAX: Final = 2.0


class ChunkSize:
    """Adapts to the previous chunks of one range."""

    def __init__(self, rows_max: int, bytes_max: int, row_bytes: int) -> None:
        """`row_bytes`: approximate size of a row; 0: not known."""
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        first = min(ROWS_FIRST, bytes_max // row_bytes if row_bytes else ROWS_FIRST)
        self.rows = max(1, min(rows_max, first))

    def took(self, rows: int, size: int, read_s: float, wait_s: float) -> None:
        """A chunk of so many rows and bytes took `read_s` seconds to read, then `wait_s` until it was merged."""
        if rows == 0:
            return
        fit = min(TARGET_S / max(read_s, 1e-6), WAIT_S / max(wait_s, 1e-6), self._bytes_max / 2 / max(size, 1))
        self.rows = max(1, min(self._rows_max, int(rows * min(fit, _GROWTH_MAX))))
