"""The pieces that arrive at a live task's writer. Those that arrive while the store takes a piece are joined.

The data source yields a piece as soon as it has read one: under 300 changes a second, one of six records every 20 ms. A
store that takes longer for it than that, such as a search cluster that has just started, would otherwise be behind by
all pieces for which the pipes between Spark's processes have room: seconds. Joined, they are one write, and the writes
become as large as the store needs them to be.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pyarrow as pa

from cdc.kafka.daemon_thread import start_thread
from spark_jobs.source.piece import EMPTY, ROW_BYTES_MAX, Piece, joined, to_pieces

WAITING_BYTES_MAX: Final = ROW_BYTES_MAX
"""Of rows that wait for the writer. What does not fit stays in Spark's pipes, and then in the topic."""


def arriving_pieces(rows: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    """Yields the pieces of a task's rows in their order, and an empty one when nothing else has arrived."""
    with closing(_Arrivals(rows)) as arrivals:
        while batches := arrivals.take():
            if pieces := [piece for piece in to_pieces(iter(batches)) if piece != EMPTY]:
                yield joined(pieces)
                if arrivals.is_empty:
                    yield EMPTY


class _Arrivals:
    """Reads rows in a thread of its own."""

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._changed = threading.Condition()  # of everything below
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._is_closed = False
        self._reading = start_thread(lambda: self._read(rows))

    @property
    def is_empty(self) -> bool:
        with self._changed:
            return not self._waiting

    def take(self) -> list[pa.RecordBatch]:
        """Returns all that has arrived, when something has; [] at the end. Raises what reading raised, when everything
        before it was taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            taken, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._changed.notify_all()
        if not taken:
            self._reading.result()
        return taken

    def close(self) -> None:
        """Lets the thread end when its next row arrives. A task that failed does not wait for that: Spark ends its
        process."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _read(self, rows: Iterator[pa.RecordBatch]) -> None:
        try:
            for row in rows:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting_bytes < WAITING_BYTES_MAX or self._is_closed)
                    if self._is_closed:
                        return
                    self._waiting.append(row)
                    self._waiting_bytes += row.nbytes
                    self._changed.notify_all()
        finally:
            self.close()
