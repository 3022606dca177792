"""Suspects come back once, in pages, with what was read of them."""

import pytest

from sinks.contents import StoredEntry
from watershed.verify import suspects as module
from watershed.verify.source_rows import SourceRow
from watershed.verify.suspects import PAGE_KEYS, Suspect, Suspects


def test_keys_come_back_once_in_pages() -> None:
    with Suspects() as suspects:
        for number in (*range(PAGE_KEYS + 3), 5, 6):
            suspects.add(b"%06d" % number)
        assert len(suspects) == PAGE_KEYS + 3
        pages = list(suspects.pages())
    assert [len(page) for page in pages] == [PAGE_KEYS, 3]
    assert [key for page in pages for key in page] == [b"%06d" % number for number in range(PAGE_KEYS + 3)]


def test_what_was_read_of_them_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [b"a", b"b", b"c"]
    with Suspects() as suspects:
        for key in keys:
            suspects.add(key)
        assert [one for page in suspects.readings() for one in page] == [Suspect(k, None, False, None, 0) for k in keys]
        odd = SourceRow("7", ("\udcff", None, "ü"))  # bytes of a database that checks no encoding
        for xmin, again in (("7", 0), ("7", 1), ("7", 2), ("8", 0)):
            suspects.note_source(keys, {b"a": odd._replace(xmin=xmin), b"b": SourceRow("3", ("y",))})
            ((a, _, c),) = suspects.readings()
            assert (a.row, a.again) == (SourceRow(xmin, odd.texts), again)
            assert (c.row, c.again) == (None, 0)
        suspects.note_store(
            {b"a": StoredEntry(5, None), b"b": StoredEntry(2**62, {}, lookups=(("x", "absent"),)), b"c": None}
        )
        monkeypatch.setattr(module, "PAGE_BYTES", 3)
        pages = list(suspects.readings())
        assert [len(page) for page in pages] == [1, 1, 1], "rows that are large come in smaller pages"
        assert [(p[0].version, p[0].has_wrong_lookups) for p in pages] == [(5, False), (2**62, True), (None, False)]
        suspects.remove([b"b"])
        assert list(suspects.pages()) == [[b"a", b"c"]]
