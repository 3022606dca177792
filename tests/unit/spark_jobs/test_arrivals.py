"""Pieces that arrive while the store takes one are joined; what does not fit waits outside."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_jobs import arrivals
from spark_jobs.arrivals import arriving_pieces
from spark_jobs.source.piece import EMPTY, Piece, to_row
from tests.support.waiting import eventually
from tests.unit.spark_jobs.records import PARTITION, piece, upsert

WAIT_S = 20.0


class Rows:
    """What Spark passes on, as it is released. Counts what was taken."""

    def __init__(self, *pieces: Piece) -> None:
        self._pieces = pieces
        self.released = threading.Semaphore(0)
        self.taken = 0
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for each in self._pieces:
            assert self.released.acquire(timeout=WAIT_S)
            self.taken += 1
            yield to_row(each)
        if self.error is not None:
            raise self.error

    def release(self, count: int) -> None:
        """Returns when so many more have been taken, and the one behind them is waited for."""
        wanted = self.taken + count
        self.released.release(count)
        eventually(lambda: self.taken == wanted, WAIT_S, "Spark's rows are taken")


def numbered(first: int, last: int) -> list[Piece]:
    return [piece(upsert(number, number, number + 1)) for number in range(first, last + 1)]


def offsets(found: Piece) -> list[int]:
    return [record.offset for record in found.records]


def test_pieces_that_arrive_while_the_store_takes_one_are_one_write() -> None:
    """Seen: a search cluster that took 30 ms for each of 50 pieces a second was behind by all that Spark's pipes
    hold."""
    rows = Rows(*numbered(0, 9))
    pieces = arriving_pieces(iter(rows))
    rows.released.release()
    assert offsets(next(pieces)) == [0]
    rows.release(8)  # the store is busy
    rows.released.release()
    rest = list(pieces)
    joined = [offset for found in rest for offset in offsets(found)]
    assert joined == list(range(1, 10))
    assert len([found for found in rest if found != EMPTY]) <= 3, "the last ones may come by themselves"
    assert rest[-1] == EMPTY


def test_when_nothing_else_has_arrived_an_empty_piece_follows() -> None:
    """The writer waits for the store then, and reports: it does not wait for records that may never come."""
    rows = Rows(*numbered(0, 1), EMPTY)
    pieces = arriving_pieces(iter(rows))
    for number in (0, 1):
        rows.released.release()
        assert offsets(next(pieces)) == [number] and next(pieces) == EMPTY
    rows.released.release()
    assert list(pieces) == [], "an empty piece of the source only releases the one before it"


def test_an_error_of_spark_comes_behind_what_arrived_before_it() -> None:
    rows = Rows(*numbered(0, 1))
    rows.error = RuntimeError("the connection is gone")
    rows.released.release(2)
    pieces = arriving_pieces(iter(rows))
    found: list[int] = []
    with pytest.raises(RuntimeError, match="the connection is gone"):
        for each in pieces:
            found += offsets(each)
    assert found == [0, 1]


def test_rows_that_do_not_fit_are_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is away for an hour: nothing is read ahead without end."""
    monkeypatch.setattr(arrivals, "WAITING_BYTES_MAX", 3 * to_row(piece(upsert(0, 1, 1))).nbytes)
    rows = Rows(*numbered(0, 99))
    pieces = arriving_pieces(iter(rows))
    rows.released.release()
    assert next(pieces).positions == {PARTITION: 1}
    rows.released.release(99)
    eventually(lambda: rows.taken >= 4, WAIT_S, "as many as fit are taken")
    assert rows.taken <= 5, "and one that waits for its place"
    assert sum(len(found.records) for found in pieces) == 99


def test_a_writer_that_fails_takes_no_more() -> None:
    rows = Rows(*numbered(0, 9))
    pieces = arriving_pieces(iter(rows))
    rows.released.release()
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    rows.release(1)  # the one for which the thread was waiting
    rows.released.release(8)
    assert rows.taken == 2
