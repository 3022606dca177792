"""How partitions are divided among tasks, and what their reports add up to."""

from hypothesis import given
from hypothesis import strategies as st

from cdc.model.events import TableId
from sinks.errors import RefusedError
from spark_jobs.reading import Partition
from spark_jobs.rounds import TASK_RECORDS_MIN, RoundReport, lag, shares
from spark_jobs.task_report import TaskFailure, TaskReport

OFFSETS = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 10_000), max_size=5).map(tuple), max_size=4)


@given(starts=OFFSETS, ends=OFFSETS, task_count=st.integers(1, 6))
def test_every_partition_is_read_by_exactly_one_task(
    starts: dict[str, tuple[int, ...]], ends: dict[str, tuple[int, ...]], task_count: int
) -> None:
    found = [partition for share in shares(starts, ends, task_count, with_ends=False) for partition in share.starts]
    assert sorted(found) == sorted(Partition(t, n) for t, offsets in ends.items() for n in range(len(offsets)))


@given(starts=OFFSETS, ends=OFFSETS, task_count=st.integers(1, 6))
def test_with_ends_only_what_has_records_is_read(
    starts: dict[str, tuple[int, ...]], ends: dict[str, tuple[int, ...]], task_count: int
) -> None:
    for share in shares(starts, ends, task_count, with_ends=True):
        assert share.ends is not None and share.starts.keys() == share.ends.keys()
        assert all(share.starts[partition] < end for partition, end in share.ends.items())


def test_the_lag_counts_what_was_not_read() -> None:
    assert lag({"a": (5, 9), "b": (7,)}, {"a": (9, 9, 3), "c": (2,)}) == 4 + 3 + 2
    assert lag({"a": (9,)}, {"a": (5,)}) == 0, "a record that was read is not waited for"


def test_few_records_are_read_by_one_task() -> None:
    (share,) = shares({"a": (5, 5)}, {"a": (9, 5)}, 8, with_ends=False)
    assert share.starts == {Partition("a", 0): 5, Partition("a", 1): 5}
    assert share.ends is None


def test_a_backlog_is_divided_evenly() -> None:
    size = 10 * TASK_RECORDS_MIN
    found = shares({}, {"a": (size, size), "b": (2 * size,), "c": (0, 0)}, 2, with_ends=True)
    assert sorted(sorted(share.starts) for share in found) == [
        [Partition("a", 0), Partition("a", 1)],
        [Partition("b", 0)],
    ]


def test_reports_add_up_and_the_first_failure_counts() -> None:
    a, b = TableId("public", "a"), TableId("public", "b")
    one = TaskReport({Partition("a", 1): 7}, records=5, written=3, stale=2, tables={a}, is_behind=True)
    two = TaskReport({Partition("a", 0): 9, Partition("b", 0): 1}, records=1, written=1, tables={b}, staged=("file",))
    two.failure = TaskFailure("RefusedError", "said", "next")
    merged = RoundReport.of([one, two])
    assert merged.offsets == {"a": {1: 7, 0: 9}, "b": {0: 1}}
    assert (merged.records, merged.written, merged.stale, merged.is_behind) == (6, 4, 2, True)
    assert (merged.tables, merged.staged) == ({a, b}, ["file"])
    assert isinstance(merged.failure, RefusedError) and merged.failure.hint == "next"
