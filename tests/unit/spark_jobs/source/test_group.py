"""What a sink's consumer group says beside an offset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.source.group import Reached, TaskCounts, group_name

NUMBERS = st.integers(0, 1 << 62)
COUNTS = st.builds(TaskCounts, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
REACHED = Reached("3-a1b2-17", 5, 40, 90, is_behind=True, counts=TaskCounts(50, 48, 1, 12))


@given(
    st.builds(
        Reached,
        execution=st.sampled_from(["3-a1b2-17", "12345-00ff00ff-1"]),
        task=NUMBERS,
        start_offset=NUMBERS,
        offset=NUMBERS,
        is_behind=st.booleans(),
        counts=COUNTS,
        is_over=st.booleans(),
    )
)
def test_what_was_reached_is_read_back(reached: Reached) -> None:
    assert Reached.of(reached.offset, reached.text()) == reached


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "checked by hand",
        REACHED.text().replace(" 40 ", " "),  # a field is missing
        REACHED.text().replace(" 40 ", " 40 40 "),
        REACHED.text().replace(" 40 ", " -1 "),
        REACHED.text().replace(" 40 ", " forty "),
    ],
)
def test_a_text_of_others_says_nothing(text: str | None) -> None:
    assert Reached.of(90, text) is None


def test_a_text_is_short_enough_for_the_brokers() -> None:
    """They refuse more than 4,096 bytes (offset.metadata.max.bytes)."""
    most = TaskCounts(*[1 << 62] * 4)
    assert len(Reached("9" * 40, 1 << 31, 1 << 62, 1 << 62, is_behind=True, counts=most).text()) < 400


def test_counts_are_those_since_an_earlier_report() -> None:
    assert TaskCounts(9, 5, 3, 70).since(TaskCounts(4, 3, 1, 30)) == TaskCounts(5, 2, 2, 40)


def test_each_generation_of_a_sink_has_its_own_group() -> None:
    assert group_name("shop", "search", 3) == "watershed-shop-search-3"
