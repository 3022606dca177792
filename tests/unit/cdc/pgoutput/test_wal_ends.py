"""A position is believed when two keepalives in succession name it."""

from hypothesis import given
from hypothesis import strategies as st

from cdc.model.lsn import Lsn
from cdc.pgoutput.wal_ends import WalEnds


def test_a_position_is_reached_when_the_next_keepalive_names_it_too() -> None:
    ends = WalEnds()
    assert not ends.needs_another
    assert ends.add(Lsn(100)) == 0
    assert ends.needs_another
    assert ends.add(Lsn(100)) == 100
    assert not ends.needs_another
    assert ends.add(Lsn(250)) == 100
    assert ends.needs_another
    assert ends.add(Lsn(300)) == 250


def test_a_position_that_is_too_high_is_never_believed() -> None:
    ends = WalEnds()
    found = [ends.add(Lsn(end)) for end in (100, 100, 1 << 60, 110, 120)]
    assert found == [0, 100, 100, 110, 110]
    assert ends.reached == 110


@given(
    st.lists(st.integers(1, 1_000), min_size=2, max_size=30),
    st.integers(0, 29),
    st.integers(0, (1 << 64) - 1),
)
def test_one_damaged_keepalive_moves_nothing_past_what_the_server_has_reached(
    steps: list[int], place: int, damaged: int
) -> None:
    true = [sum(steps[: i + 1]) for i in range(len(steps))]
    message = list(true)
    message[place % len(message)] = damaged
    ends = WalEnds()
    for end, named in zip(true, message, strict=True):
        ends.add(Lsn(named))
        assert ends.reached <= end
