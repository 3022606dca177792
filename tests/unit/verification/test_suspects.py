"""Suspects come back once, in pages."""

from verification.suspects import PAGE_KEYS, Suspects


def test_keys_come_back_once_in_pages() -> None:
    with Suspects() as suspects:
        for number in (*range(PAGE_KEYS + 3), 5, 6):
            suspects.add(b"%06d" % number)
        assert len(suspects) == PAGE_KEYS + 3
        pages = list(suspects.pages())
    assert [len(page) for page in pages] == [PAGE_KEYS, 3]
    assert [key for page in pages for key in page] == [b"%06d" % number for number in range(PAGE_KEYS + 3)]
