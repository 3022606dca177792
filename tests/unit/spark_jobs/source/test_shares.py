"""How partitions are divided among tasks."""

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.source.reading import Partition
from spark_jobs.source.shares import TASK_RECORDS_MIN, lag, shares

OFFSETS = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 10_000), max_size=5).map(tuple), max_size=4)


@given(starts=OFFSETS, ends=OFFSETS, task_count=st.integers(1, 6))
def test_every_partition_is_read_by_exactly_one_task(
    starts: dict[str, tuple[int, ...]], ends: dict[str, tuple[int, ...]], task_count: int
) -> None:
    found = [
        partition for share in shares(starts, ends, task_count, is_bounded=False) for partition in share.start_offsets
    ]
    assert sorted(found) == sorted(Partition(t, n) for t, offsets in ends.items() for n in range(len(offsets)))


@given(starts=OFFSETS, ends=OFFSETS, task_count=st.integers(1, 6))
def test_with_ends_only_what_has_records_is_read(
    starts: dict[str, tuple[int, ...]], ends: dict[str, tuple[int, ...]], task_count: int
) -> None:
    for share in shares(starts, ends, task_count, is_bounded=True):
        assert share.end_offsets is not None and share.start_offsets.keys() == share.end_offsets.keys()
        assert all(share.start_offsets[partition] < end for partition, end in share.end_offsets.items())


def test_the_lag_counts_what_was_not_read() -> None:
    assert lag({"a": (5, 9), "b": (7,)}, {"a": (9, 9, 3), "c": (2,)}) == 4 + 3 + 2
    assert lag({"a": (9,)}, {"a": (5,)}) == 0, "a record that was read is not waited for"


def test_few_records_are_read_by_one_task() -> None:
    (share,) = shares({"a": (5, 5)}, {"a": (9, 5)}, 8, is_bounded=False)
    assert share.start_offsets == {Partition("a", 0): 5, Partition("a", 1): 5}
    assert share.end_offsets is None


def test_a_backlog_is_divided_evenly() -> None:
    size = 10 * TASK_RECORDS_MIN
    found = shares({}, {"a": (size, size), "b": (2 * size,), "c": (0, 0)}, 2, is_bounded=True)
    assert sorted(sorted(share.start_offsets) for share in found) == [
        [Partition("a", 0), Partition("a", 1)],
        [Partition("b", 0)],
    ]


def test_partitions_without_records_are_divided_too() -> None:
    """A live task follows them: what arrives later is not always on one task."""
    size = 2 * TASK_RECORDS_MIN
    found = shares({}, {"a": (size, 0, 0), "b": (size, 0, 0)}, 2, is_bounded=False)
    assert sorted(len(share.start_offsets) for share in found) == [3, 3]


def test_a_share_has_the_offsets_where_it_begins_and_ends() -> None:
    (share,) = shares({"a": (5, 9), "c": (1,)}, {"a": (9, 9, 3)}, 8, is_bounded=True)
    assert share.start_offsets == {Partition("a", 0): 5, Partition("a", 2): 0}
    assert share.end_offsets == {Partition("a", 0): 9, Partition("a", 2): 3}


def test_nothing_to_read_is_no_share() -> None:
    assert shares({}, {}, 4, is_bounded=False) == []
    assert shares({"a": (3,)}, {"a": (3,)}, 4, is_bounded=True) == []
    assert len(shares({"a": (2,)}, {"a": (3,)}, 4, is_bounded=True)) == 1, "a single record is read"
