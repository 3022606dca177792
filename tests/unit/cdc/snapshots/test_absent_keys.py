"""Keys of the topic on their way through lookups: what is asked next, what is done again."""

from cdc.ports.chunk_reader import KeysRead, Lookup
from cdc.snapshots.absent_keys import SNAPSHOT_S, AbsentKeys
from cdc.snapshots.change_memory import Watch
from cdc.snapshots.ranges import AHEAD_MAX, RETRY_S, OpenRequest
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import snapshot

NOW = 100.0


def scanning(*pages: tuple[bytes, ...]) -> AbsentKeys:
    absent = AbsentKeys(None, None, None, scan="s", looked_up_at=NOW)
    for page in pages:
        absent.page = "p"
        absent.take_page(KeysRead("p", page, is_end=False))
    return absent


def look_up(absent: AbsentKeys) -> OpenRequest:
    keys = absent.pages.popleft() if absent.pages else ()
    chunk = OpenRequest(Lookup("n", SCHEMA, "shape", keys, None, None), since=snapshot(5), asked_at=NOW)
    absent.open.append(chunk)
    return chunk


def test_a_page_is_looked_up_before_the_next_one_is_asked_for() -> None:
    absent = scanning()
    assert absent.wants_page(NOW)
    absent.page = "p"
    assert not absent.wants_page(NOW)
    absent.take_page(KeysRead("p", (b"1",), is_end=False))
    assert not absent.wants_page(NOW)
    assert absent.wants(NOW)
    look_up(absent)
    assert absent.wants_page(NOW)
    assert not absent.wants(NOW)


def test_few_lookups_are_open_at_a_time() -> None:
    absent = scanning(*[(b"1",)] * (AHEAD_MAX + 1))
    for _ in range(AHEAD_MAX):
        assert absent.wants(NOW)
        look_up(absent)
    assert not absent.wants(NOW)
    absent.merged()
    assert absent.wants(NOW)


def test_it_is_done_when_all_that_was_scanned_is_merged() -> None:
    absent = scanning((b"1",))
    absent.take_page(KeysRead("p", (), is_end=True))
    assert not absent.wants_page(NOW)
    assert not absent.is_done
    look_up(absent)
    assert not absent.is_done
    absent.merged()
    assert absent.is_done


def test_what_is_given_up_is_looked_up_again_in_its_order_a_moment_later() -> None:
    absent = scanning((b"1",), (b"2",))
    look_up(absent)
    look_up(absent)
    absent.rewind(NOW)
    assert absent.open == []
    assert not absent.wants(NOW)
    assert absent.wants(NOW + RETRY_S)
    assert list(absent.pages) == [(b"1",), (b"2",)]


def test_during_a_long_scan_the_database_is_looked_at_now_and_then() -> None:
    """Or transactions would have to be remembered from its beginning on."""
    absent = scanning()
    absent.page = "p"
    assert not absent.wants(NOW + SNAPSHOT_S / 2)
    assert absent.wants(NOW + SNAPSHOT_S)
    look_up(absent)
    assert not absent.wants(NOW + SNAPSHOT_S)
    absent.rewind(NOW)
    assert not absent.pages, "there was nothing to look up"
    absent.take_page(KeysRead("p", (), is_end=True))
    assert not absent.wants(NOW + 10 * SNAPSHOT_S), "the scan has ended"


def test_a_key_that_an_event_touched_has_not_vanished() -> None:
    """After TRUNCATE none has: the sweep covers them. Tombstones behind the sweep are still to be written."""
    keys = (b"1", b"2", b"3")
    assert AbsentKeys(None, None, None).vanished(keys) == keys
    for below in (None, 77):
        absent = AbsentKeys(None, None, below, since=Watch("t", keys={b"2"}))
        assert absent.vanished(keys) == (b"1", b"3")
        absent.since = Watch("t", is_truncated=True, keys={b"3"})
        assert absent.vanished(keys) == (() if below is None else (b"1", b"2"))


def test_one_topic_at_a_time_is_scanned() -> None:
    first, second = AbsentKeys(None, None, None, scan="s"), AbsentKeys(None, None, None)
    both = [first, second]
    assert first.wants_page(NOW, both)
    assert not second.wants_page(NOW, both)
    first.is_scanned = True
    assert second.wants_page(NOW, both)
    assert not first.wants_page(NOW, both), "a topic is scanned once"


def test_a_scan_that_failed_begins_anew_a_moment_later() -> None:
    absent = scanning((b"1",))
    absent.take_page(KeysRead("p", (b"2",), is_end=True))
    absent.scan_failed(NOW)
    assert (absent.scan, list(absent.pages)) == (None, [])
    assert not absent.wants_page(NOW)
    assert absent.wants_page(NOW + RETRY_S)
