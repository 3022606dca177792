"""A key range: what may be read next, and what is published."""

from dataclasses import replace

from cdc.ports.chunk_reader import Chunk, ChunkRead, Key
from cdc.snapshots.chunk_size import ChunkSize
from cdc.snapshots.ranges import AHEAD_MAX, RETRY_S, OpenChunk, Range
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import snapshot


def new_range() -> Range:
    return Range(None, None, is_done=False, size=ChunkSize(100, 1 << 20, 10))


def open_chunk(after: Key | None, nonce: str = "n") -> OpenChunk:
    return OpenChunk(Chunk(nonce, SCHEMA, "shape", after, None, None, 10, 1_000), since=snapshot(5), asked_at=0.0)


def read(last: Key | None, *, is_end: bool = False) -> ChunkRead:
    lines = (b"x",) if last else ()
    return ChunkRead("n", snapshot(6), lines, last, is_end, 0.1)


def test_a_range_is_read_ahead_within_bounds_from_what_was_read_last() -> None:
    part = new_range()
    assert part.wants(0.0)
    assert part.next_after is None
    part.open.append(open_chunk(None))
    assert not part.wants(0.0)  # its end is not known yet
    part.open[0].read = read(("3",))
    assert part.wants(0.0)
    assert part.next_after == ("3",)
    while len(part.open) < AHEAD_MAX:
        part.open.append(replace(open_chunk(("3",)), read=read(("6",))))
    assert not part.wants(0.0)


def test_the_last_chunk_is_followed_by_none_and_ends_the_range_when_it_is_published() -> None:
    part = new_range()
    part.open.append(replace(open_chunk(None), read=read(("3",), is_end=True)))
    assert not part.wants(0.0)
    part.merged()
    assert (part.after, part.is_done, part.open) == (("3",), True, [])
    assert not part.wants(0.0)


def test_an_empty_last_chunk_keeps_the_cursor() -> None:
    part = new_range()
    part.after = ("3",)
    part.open.append(replace(open_chunk(("3",)), read=read(None, is_end=True)))
    part.merged()
    assert (part.after, part.is_done) == (("3",), True)


def test_what_is_given_up_is_read_again_from_where_publishing_stands_a_moment_later() -> None:
    part = new_range()
    part.after = ("3",)
    chunks = [replace(open_chunk(("3",)), read=read(("6",))), open_chunk(("6",))]
    part.open += chunks
    assert part.rewind(10.0) == chunks
    assert not part.wants(10.0)
    assert part.wants(10.0 + RETRY_S)
    assert part.next_after == ("3",)
