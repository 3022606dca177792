"""Rows that no record can hold: left out as configured and counted, or capture stops and says everything."""

import pytest

from tests.checker.history import fold
from tests.checker.positions import sweeps_of
from tests.checker.records import Change, Record, key_text, parse
from tests.checker.rules import deletes_have_tombstones, seq_without_gap_or_repetition, versions_rise_for_each_key
from tests.integration.conftest import ITEMS, OTHER
from tests.support.captured import Captured, CaptureProcess
from tests.support.topics import create_topic, set_topics
from tests.support.waiting import eventually

BYTES_MAX = 20_000
FORMAT = {"time.precision.mode": "nanoseconds"}  # in which some times have no place
TEXT = "repeat('x', %s)"  # compresses well, and is too large all the same


@pytest.fixture
def narrow(items: Captured) -> Captured:
    """The table's topic was made by somebody else, who wants small records. There is another table."""
    items.query("ALTER TABLE items ADD at timestamp")
    items.tables = [ITEMS, OTHER]
    topic = f"{items.name}.{ITEMS}"
    create_topic(items.bootstrap_servers, topic, partitions=4, max_message_bytes=str(BYTES_MAX))
    return items


def last_rows(changes: list[Change]) -> dict[int, int | None]:
    """Key → length of the name that the topic's last record of it has; None: deleted."""
    return {c.key["id"]: None if c.after is None else len(c.after["name"]) for c in changes if c.table == ITEMS}


def counted(captured: Captured) -> dict[str, int]:
    """As state has them, and progress says them."""
    (reported,) = [r for r in captured.records("state") if r.key.startswith(b"unpublished/")][-1:]
    record = parse(reported.value or b"")
    progress = parse([r for r in captured.records("progress") if r.key == b"progress"][-1].value or b"")
    assert progress["unpublished"] == {ITEMS: record["dead_letters"] + record["skipped"]}
    return {name: record[name] for name in ("dead_letters", "skipped")}


def letters(captured: Captured) -> list[tuple[Record, dict[str, bytes]]]:
    return [(record, dict(record.headers)) for record in captured.records("dead-letter")]


def test_rows_that_are_too_large_are_dead_letters_or_skipped_or_stop_their_table(narrow: Captured) -> None:
    execute = narrow.query
    execute(f"INSERT INTO items VALUES (1, 'a'), (2, {TEXT}), (3, 'c')", 100_000)
    narrow.settings = {"capture": {"on_unpublishable": "dead_letter"}, "format": FORMAT}
    capture = narrow.start()
    narrow.await_caught_up()
    execute("INSERT INTO items VALUES (4, 'd')")
    execute(f"UPDATE items SET name = {TEXT} WHERE id = 1", 30_000)
    execute(f"UPDATE items SET id = 30, name = {TEXT} WHERE id = 3", 30_000)
    execute("INSERT INTO items VALUES (8, 'private', '0044-03-15 BC')")
    execute("UPDATE items SET name = 'dd' WHERE id = 4")
    narrow.await_caught_up()
    assert counted(narrow) == {"dead_letters": 4, "skipped": 0}
    assert last_rows(narrow.changes()) == {1: 1, 3: 1, 4: 2}
    assert "larger than topic" in capture.said()
    assert capture.said().count("row change not published") == 1
    *found, (formless, headers) = letters(narrow)
    assert (formless.key, formless.value) == (b"", None)  # what has no form has neither
    assert b", column at: a value is not a timestamp of 64 bits since 1970" in headers["watershed.reason"]
    assert b"44" not in headers["watershed.reason"].partition(b", column")[2]
    assert [record.key for record, _ in found] == [b'{"id":2}', b'{"id":1}', b'{"id":30}']
    for _, headers in letters(narrow):
        assert headers["watershed.table"] == ITEMS.encode()
        assert headers["watershed.topic"] == f"{narrow.name}.{ITEMS}".encode()
    for record, headers in found:
        assert b"key column id" in headers["watershed.reason"]
        assert record.value is not None
        assert len(record.value) > 30_000  # the dead letters' topic takes more
    capture.kill()

    narrow.settings = {"capture": {"on_unpublishable": "skip"}, "format": FORMAT}
    capture = narrow.start()
    execute(f"INSERT INTO items VALUES (5, {TEXT})", 50_000)
    execute("UPDATE items SET name = 'again' WHERE id = 1")
    narrow.await_caught_up()
    assert counted(narrow) == {"dead_letters": 4, "skipped": 1}
    changes = narrow.changes()
    assert last_rows(changes) == {1: 5, 3: 1, 4: 2}
    records = [change.record for change in changes]
    assert [*seq_without_gap_or_repetition(changes), *versions_rise_for_each_key(records)] == []
    assert [*deletes_have_tombstones(records)] == []
    assert capture.terminate() == 0

    narrow.settings = {"format": FORMAT}
    stops_and_starts_again(narrow, narrow.start())


def stops_and_starts_again(narrow: Captured, capture: CaptureProcess) -> None:
    execute = narrow.query
    execute("INSERT INTO items VALUES (6, 'f')")
    execute(f"INSERT INTO items VALUES (7, {TEXT})", 50_000)
    capture.await_said("table stopped, the others continue")
    execute("INSERT INTO other VALUES (1)")
    narrow.await_caught_up()
    message = " ".join(capture.said().split())
    for words in (
        f"{ITEMS} (key column id) at ",
        "larger than topic",
        f"takes, {BYTES_MAX}",
        "capture.on_unpublishable",
    ):
        assert words in message
    assert "xxx" not in message
    changes = narrow.changes()
    assert [change.key for change in changes if change.table == OTHER] == [{"id": 1}]
    assert last_rows(changes)[6] == 1  # what stands before it was published

    # Both ways out: the topic takes more, and what has no form is corrected.
    set_topics(narrow.bootstrap_servers, [f"{narrow.name}.{ITEMS}"], max_message_bytes=str(10 * BYTES_MAX))
    execute("UPDATE items SET at = NULL WHERE id = 8")
    assert narrow.cdc("table", "start", ITEMS) == f"captured again: {ITEMS}\n"
    eventually(lambda: narrow.states()[ITEMS]["status"] == "captured", 60.0)
    narrow.await_caught_up()
    held = fold(narrow.changes(), sweeps_of(narrow.records("control")))[ITEMS]
    rows = execute("SELECT id, name FROM items")
    assert held == {key_text({"id": number}): {"id": number, "name": name, "at": None} for number, name in rows}
    assert len(rows) == 8 and max(len(name) for _, name in rows) == 100_000


def test_a_consistent_load_that_meets_such_a_row_ends_with_its_error(narrow: Captured) -> None:
    """There is no stream yet that could go on without the table. It began again for ever."""
    narrow.query(f"INSERT INTO items VALUES (1, 'a'), (2, {TEXT})", 100_000)
    narrow.settings = {"snapshot": {"method": "consistent"}, "source": {"tables": [ITEMS, OTHER]}}
    ended = narrow.run_once()
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "error: table public.items" in ended.stderr or "error: public.items" in ended.stderr
    narrow.query("UPDATE items SET name = 'short' WHERE id = 2")
    narrow.start()
    narrow.await_caught_up()
    assert narrow.unlike([ITEMS, OTHER]) == {}
