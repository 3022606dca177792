"""A table's ranges: what may be read next, what is published, what a restart finds."""

from dataclasses import replace
from typing import Any

from cdc.control import RangeRecord
from cdc.snapshots.jobs import AHEAD_MAX, RETRY_S, Job, OpenChunk
from cdc.snapshots.reading import Chunk, ChunkRead, Key
from tests.unit.cdc.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import snapshot, wanted

SIZE = (100, 1 << 20)


def looked_at(*bounds: Key, **record: Any) -> Job:
    job = Job(wanted(**record), SCHEMA)
    job.look("shape", 1_000, 10, bounds, SIZE)
    return job


def open_chunk(after: Key | None, nonce: str = "n") -> OpenChunk:
    return OpenChunk(Chunk(nonce, SCHEMA, "shape", after, None, None, 10, 1_000), since=snapshot(5), asked_at=0.0)


def read(last: Key | None, *, is_end: bool = False) -> ChunkRead:
    lines = (b"x",) if last else ()
    return ChunkRead("n", snapshot(6), lines, last, is_end, 0.1)


def test_bounds_split_a_table_into_ranges_that_meet() -> None:
    job = looked_at(("10",), ("20",))
    assert [(part.after, part.up_to) for part in job.ranges] == [
        (None, ("10",)),
        (("10",), ("20",)),
        (("20",), None),
    ]


def test_ranges_that_were_recorded_stay_whatever_a_new_look_proposes() -> None:
    recorded = [RangeRecord(after=("5",), up_to=None), RangeRecord(after=None, up_to=("5",), is_done=True)]
    job = looked_at(("7",), ranges=[r.model_dump() for r in recorded])
    assert job.record().ranges == tuple(recorded)
    assert not job.is_read_out
    job.ranges[0].is_done = True
    assert job.is_read_out


def test_a_range_is_read_ahead_within_bounds_from_what_was_read_last() -> None:
    (part,) = looked_at().ranges
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
    (part,) = looked_at().ranges
    part.open.append(replace(open_chunk(None), read=read(("3",), is_end=True)))
    assert not part.wants(0.0)
    part.merged()
    assert (part.after, part.is_done, part.open) == (("3",), True, [])
    assert not part.wants(0.0)


def test_an_empty_last_chunk_keeps_the_cursor() -> None:
    (part,) = looked_at().ranges
    part.after = ("3",)
    part.open.append(replace(open_chunk(("3",)), read=read(None, is_end=True)))
    part.merged()
    assert (part.after, part.is_done) == (("3",), True)


def test_what_is_given_up_is_read_again_from_where_publishing_stands_a_moment_later() -> None:
    (part,) = looked_at().ranges
    part.after = ("3",)
    chunks = [replace(open_chunk(("3",)), read=read(("6",))), open_chunk(("6",))]
    part.open += chunks
    assert part.rewind(10.0) == chunks
    assert not part.wants(10.0)
    assert part.wants(10.0 + RETRY_S)
    assert part.next_after == ("3",)


def test_a_job_that_forgets_looks_again_and_keeps_what_is_published() -> None:
    job = looked_at(("10",))
    job.rows = 7
    job.ranges[0].after = ("4",)
    chunk = open_chunk(("4",))
    job.ranges[0].open.append(chunk)
    assert job.forget(10.0) == [chunk]
    assert (job.shape, job.begin, job.not_before) == (None, None, 10.0 + RETRY_S)
    record = job.record()
    assert (record.rows, record.ranges[0].after) == (7, ("4",))
    job.look("shape", 1_000, 10, (), SIZE)
    assert [(part.after, part.up_to) for part in job.ranges] == [(("4",), ("10",)), (("10",), None)]
