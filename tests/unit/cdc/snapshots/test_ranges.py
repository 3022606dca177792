"""A key range: what may be read next, and what is published."""

from dataclasses import replace

from cdc.model.control import RangeRecord
from cdc.ports.chunk_reader import Chunk, ChunkRead, Key
from cdc.snapshots.ranges import AHEAD_MAX, RETRY_S, ROWS_FIRST, TARGET_S, WAIT_S, ChunkSize, OpenRequest, Range
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import snapshot


def new_range(after: Key | None = None) -> Range:
    return Range(RangeRecord(after=after, up_to=None), ChunkSize(100, 1 << 20, 10))


def open_chunk(after: Key | None, nonce: str = "n") -> OpenRequest:
    return OpenRequest(Chunk(nonce, SCHEMA, "shape", after, None, None, 10, 1_000), since=snapshot(5), asked_at=0.0)


def read(last: Key | None, *, is_end: bool = False) -> ChunkRead:
    lines = (b"x",) if last else ()
    return ChunkRead("n", snapshot(6), lines, last, is_end, 0.1)


def test_a_range_is_read_ahead_within_bounds_from_what_was_read_last() -> None:
    part = new_range()
    assert part.wants(0.0)
    assert part.next_after is None
    part.open.append(open_chunk(None))
    assert not part.wants(0.0)  # its end is not known yet
    part.open[0].answer = read(("3",))
    assert part.wants(0.0)
    assert part.next_after == ("3",)
    while len(part.open) < AHEAD_MAX:
        part.open.append(replace(open_chunk(("3",)), answer=read(("6",))))
    assert not part.wants(0.0)
    assert part.next_after == ("6",)


def test_the_last_chunk_is_followed_by_none_and_ends_the_range_when_it_is_published() -> None:
    part = new_range()
    part.open.append(replace(open_chunk(None), answer=read(("3",), is_end=True)))
    assert not part.wants(0.0)
    part.merged()
    assert (part.record.after, part.record.is_done, part.open) == (("3",), True, [])
    assert not part.wants(0.0)


def test_an_empty_last_chunk_keeps_the_cursor() -> None:
    part = new_range(("3",))
    part.open.append(replace(open_chunk(("3",)), answer=read(None, is_end=True)))
    part.merged()
    assert (part.record.after, part.record.is_done) == (("3",), True)


def test_what_is_given_up_is_read_again_from_where_publishing_stands_a_moment_later() -> None:
    part = new_range(("3",))
    chunks = [replace(open_chunk(("3",)), answer=read(("6",))), open_chunk(("6",))]
    part.open += chunks
    part.rewind(10.0)
    assert part.open == []
    assert not part.wants(10.0)
    assert part.wants(10.0 + RETRY_S)
    assert part.next_after == ("3",)


def test_the_first_chunk_fits_the_bytes_where_the_width_is_known() -> None:
    assert ChunkSize(10_000, 1 << 20, row_bytes=0).rows == ROWS_FIRST
    assert ChunkSize(10_000, 1 << 20, row_bytes=1 << 18).rows == 4
    assert ChunkSize(10_000, 1 << 20, row_bytes=1 << 30).rows == 1
    assert ChunkSize(50, 1 << 20, row_bytes=1).rows == 50


def test_quick_chunks_grow_twofold_up_to_the_limit() -> None:
    size = ChunkSize(3_000, 1 << 30, row_bytes=0)
    rows = []
    for _ in range(3):
        size.took(size.rows, size.rows * 10, 0.001, 0.0)
        rows.append(size.rows)
    assert rows == [2_000, 3_000, 3_000]
    instant = ChunkSize(3_000, 1 << 30, row_bytes=0)
    instant.took(1_000, 0, 0.0, 0.0)
    assert instant.rows == 2_000


def test_slow_chunks_shrink_to_the_time_and_wide_ones_to_the_bytes() -> None:
    slow = ChunkSize(10_000, 1 << 30, row_bytes=0)
    slow.took(1_000, 1_000, TARGET_S * 10, 0.0)
    assert slow.rows == 100
    wide = ChunkSize(10_000, 1_000_000, row_bytes=0)
    wide.took(1_000, 50_000_000, 0.1, 0.0)
    assert wide.rows == 10


def test_chunks_that_wait_for_their_merge_shrink() -> None:
    size = ChunkSize(10_000, 1 << 30, row_bytes=0)
    size.took(1_000, 1_000, 0.001, WAIT_S * 20)
    assert size.rows == 50


def test_an_empty_chunk_says_nothing_and_one_row_is_the_least() -> None:
    size = ChunkSize(10_000, 1_000, row_bytes=0)
    size.took(0, 0, 5.0, 0.0)
    assert size.rows == ROWS_FIRST
    size.took(1, 1 << 40, 5.0, 0.0)
    assert size.rows == 1
