"""LSNs in PostgreSQL's text form."""

import pytest

from cdc.model.lsn import Lsn, format_lsn, parse_lsn

PAIRS = [("0/0", 0), ("0/16B3748", 0x16B3748), ("16/B374D848", 0x16B374D848), ("FFFFFFFF/FFFFFFFF", (1 << 64) - 1)]


@pytest.mark.parametrize(("text", "lsn"), PAIRS)
def test_both_ways(text: str, lsn: int) -> None:
    assert parse_lsn(text) == Lsn(lsn)
    assert format_lsn(Lsn(lsn)) == text


def test_leading_zeros_and_small_letters_are_read() -> None:
    assert parse_lsn("0016/b374d848") == 0x16B374D848


@pytest.mark.parametrize(
    "text", ["", "/", "1", "1/", "/1", "G/0", "1/0/0", "-1/0", "0x1/0", "1/+1", "1_0/0", "1/ 1", "123456789/0", "١/0"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn(text)
