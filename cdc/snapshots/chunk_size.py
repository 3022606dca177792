"""How many rows the next chunk has: as many as fit the time and the bytes that a chunk may take. Pure."""

from typing import Final

ROWS_FIRST: Final = 1_000
TARGET_S: Final = 0.5  # short enough for a transaction that holds back vacuum
# From being read to being merged. Changes of the stream wait behind the chunks that wait; where the processor is short,
# rows are read faster than they are published.
WAIT_S: Final = 0.25
_GROWTH_MAX: Final = 2.0


class ChunkSize:
    """Follows what chunks of one range took."""

    def __init__(self, rows_max: int, bytes_max: int, row_bytes: int) -> None:
        """`row_bytes`: of one row, about; 0: not known."""
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        first = min(ROWS_FIRST, bytes_max // row_bytes if row_bytes else ROWS_FIRST)
        self.rows = max(1, min(rows_max, first))

    def took(self, rows: int, size: int, read_s: float, wait_s: float) -> None:
        """A chunk of so many rows and bytes: seconds until it was read, and from then until it was merged."""
        if rows == 0:
            return
        fit = min(TARGET_S / max(read_s, 1e-6), WAIT_S / max(wait_s, 1e-6), self._bytes_max / 2 / max(size, 1))
        self.rows = max(1, min(self._rows_max, int(rows * min(fit, _GROWTH_MAX))))
