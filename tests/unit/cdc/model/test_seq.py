"""The counter of row records."""

from cdc.model.seq import SeqCounter


def test_numbers_follow_one_another_without_a_gap() -> None:
    seq = SeqCounter(41)
    assert (seq.next, seq.take(), seq.take(3), seq.next) == (42, 42, 45, 46)
    assert (seq.take(0), seq.last) == (45, 45), "no row, no number"
