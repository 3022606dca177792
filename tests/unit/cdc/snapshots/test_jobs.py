"""A table's ranges: what may be read next, what is published, what a restart finds."""

from typing import Any

from structlog.testing import capture_logs

from cdc.model.control import RangeRecord
from cdc.ports.chunk_reader import Chunk, Key, TableDescribed
from cdc.snapshots.jobs import SnapshotJob
from cdc.snapshots.ranges import RETRY_S, OpenRequest
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import snapshot, wanted

SIZE = (100, 1 << 20)


def begun(*bounds: Key, order: str = "order") -> TableDescribed:
    return TableDescribed("n", snapshot(5), "shape", 1_000, 10, bounds, order)


def looked_up_at(*bounds: Key, **record: Any) -> SnapshotJob:
    job = SnapshotJob(wanted(**record), SCHEMA)
    job.take_description(begun(*bounds), SIZE)
    return job


def open_chunk(after: Key | None, nonce: str = "n") -> OpenRequest:
    return OpenRequest(Chunk(nonce, SCHEMA, "shape", after, None, None, 10, 1_000), since=snapshot(5), asked_at=0.0)


def published(job: SnapshotJob, **record: Any) -> None:
    """Sets these fields of the first range's record."""
    job.ranges[0].record = job.ranges[0].record.model_copy(update=record)


def test_bounds_split_a_table_into_ranges_that_meet() -> None:
    job = looked_up_at(("10",), ("20",))
    assert [(part.record.after, part.record.up_to) for part in job.ranges] == [
        (None, ("10",)),
        (("10",), ("20",)),
        (("20",), None),
    ]
    assert job.record().rows_estimated == 1_000


def test_ranges_that_were_recorded_stay_whatever_a_new_look_proposes() -> None:
    recorded = [RangeRecord(after=("5",), up_to=None), RangeRecord(after=None, up_to=("5",), is_done=True)]
    job = looked_up_at(("7",), ranges=[r.model_dump() for r in recorded])
    assert job.record().ranges == tuple(recorded)
    assert not job.is_read_out
    published(job, is_done=True)
    assert job.is_read_out


def test_a_job_that_forgets_looks_again_and_keeps_what_is_published() -> None:
    job = looked_up_at(("10",))
    job.rows = 7
    published(job, after=("4",))
    job.ranges[0].open.append(open_chunk(("4",)))
    job.rewind(10.0)
    assert (job.fingerprint, job.ranges, job.not_before) == (None, [], 10.0 + RETRY_S)
    record = job.record()
    assert (record.rows, record.ranges[0].after) == (7, ("4",))
    job.take_description(begun(), SIZE)
    assert [(part.record.after, part.record.up_to) for part in job.ranges] == [(("4",), ("10",)), (("10",), None)]


# ---- an index of another order


def test_ranges_of_another_order_mean_nothing_and_all_is_read_from_the_beginning() -> None:
    recorded = [
        RangeRecord(after=("5",), up_to=("9",)).model_dump(),
        RangeRecord(after=("9",), up_to=None).model_dump(),
    ]
    job = SnapshotJob(wanted(ranges=recorded, key_order="before", rows=7, floor=3), SCHEMA)
    job.take_description(begun(("50",)), SIZE)
    assert [(part.record.after, part.record.up_to) for part in job.ranges] == [(None, ("50",)), (("50",), None)]
    assert (job.record().key_order, job.rows, job.floor) == ("order", 0, 3)


def test_the_range_that_was_asked_for_stays() -> None:
    asked = RangeRecord(after=("2",), up_to=("9",)).model_dump()
    part = RangeRecord(after=("5",), up_to=("9",)).model_dump()
    job = SnapshotJob(wanted(sweeps=False, ranges=[part], deletes_in=asked, key_order="before"), SCHEMA)
    job.take_description(begun(("50",)), SIZE)
    assert [(part.record.after, part.record.up_to) for part in job.ranges] == [(("2",), ("9",))]


def test_the_order_is_remembered_from_the_first_look_on() -> None:
    job = looked_up_at()
    job.rows = 7
    job.rewind(0.0)
    job.take_description(begun(), SIZE)
    assert job.rows == 7
    with capture_logs() as logs:
        job.take_description(begun(order="another"), SIZE)
    assert (job.rows, logs[0]["event"]) == (0, "the order of the key's index changed: all rows are read again")


# ---- rows that vanished


def test_what_vanished_is_looked_for_in_the_range_that_was_asked_for() -> None:
    asked = RangeRecord(after=("2",), up_to=("9",)).model_dump()
    job = looked_up_at(sweeps=False, ranges=[asked], deletes_in=asked)
    published(job, is_done=True)
    assert job.is_complete
    job.look_for_absent()
    assert job.absent is not None
    assert (job.absent.after, job.absent.up_to, job.absent.below) == (("2",), ("9",), None)
    assert not job.is_complete
    job.absent.is_scanned = True
    assert job.is_complete


def test_a_snapshot_that_sweeps_looks_for_nothing() -> None:
    job = looked_up_at()
    job.look_for_absent()
    assert job.absent is None


def test_tombstones_of_a_sweep_need_no_rows() -> None:
    job = SnapshotJob.of_tombstones(SCHEMA, 77)
    job.take_description(begun(("10",)), SIZE)
    assert job.ranges == []
    assert job.is_read_out
    job.look_for_absent()
    assert job.absent is not None
    assert job.absent.below == 77


def test_a_snapshot_that_owes_nothing_says_nothing() -> None:
    assert looked_up_at().owed == ""
