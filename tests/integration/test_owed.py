"""What progress records say that tables owe, with the real daemon: while rows are read, when tables stop, behind gaps;
and requests that meet a snapshot that owes rows."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import pytest

from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.topics import delete_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

OTHER, THIRD = "public.other", "public.third"
TABLES: LiteralString = """
CREATE TABLE items (id int PRIMARY KEY, name text, a int NOT NULL);
CREATE TABLE other (id int PRIMARY KEY, name text);
CREATE TABLE third (id int PRIMARY KEY);
"""
ROWS = 1500
SLOW = {"chunk_rows_max": 20, "rows_per_s_max": 100}


@pytest.fixture
def both(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """Tables with rows; nothing captures them yet. Whole tables take some seconds to read."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [ITEMS, OTHER]) as captured:
        captured.query("INSERT INTO items SELECT n, 'name ' || n, n + 1000 FROM generate_series(1, %s) AS n", ROWS)
        captured.query("INSERT INTO other SELECT n, 'name ' || n FROM generate_series(1, 3) AS n")
        captured.settings = {"snapshot": SLOW}
        yield captured


def claims(captured: Captured) -> list[tuple[int, dict[str, str]]]:
    """LSN of each progress record, and what it says is owed."""
    values = [json.loads(r.value or b"") for r in captured.records("progress") if r.key == b"progress"]
    return [(value["lsn"], value["owed"]) for value in values]


def await_owed(captured: Captured, owed: dict[str, str]) -> None:
    eventually(
        lambda: claims(captured) and claims(captured)[-1][1] == owed,
        90.0,
        lambda: f"progress owes {owed}, but {claims(captured)[-1:]}; it said:\n{captured.running().said()}",
    )


def owed_of(captured: Captured, table: str) -> str | None:
    """What the last progress record says of the table."""
    return claims(captured)[-1][1].get(table) if captured.progress() else None


def snapshot(captured: Captured, *words: str) -> subprocess.CompletedProcess[str]:
    return run(["snapshot", *words, "--config", str(captured.folder / "watershed.yml")], deadline_s=120.0)


def keys_in_topic(captured: Captured, table: str) -> set[int]:
    return {change.key["id"] for change in captured.changes() if change.table == table and change.after is not None}


@pytest.mark.promise(4)
def test_a_table_is_owed_from_the_moment_on_at_which_it_is_stopped(both: Captured) -> None:
    """The position does not name its topic any more, so a waiter could not tell that something is missing."""
    both.start()
    await_owed(both, {})
    assert both.running().terminate() == 0
    delete_topic(both.bootstrap_servers, f"{both.name}.{ITEMS}")
    both.start_and_die("join.recorded")
    assert claims(both)[-1][1].keys() == {ITEMS}
    assert "is gone" in (owed_of(both, ITEMS) or "")


@pytest.mark.promise(4)
def test_a_part_does_not_replace_the_initial_snapshot(both: Captured) -> None:
    """`start --where` ended it: most rows were never published, with a green status."""
    both.start()
    eventually(lambda: owed_of(both, ITEMS) == "its initial snapshot is running", 90.0, "rows are being read")
    for part in (["--where", "id = 1300"], ["--after", "1300"]):
        refused = snapshot(both, "start", "--table", ITEMS, *part)
        assert refused.returncode == 1
        assert f"a part of {ITEMS} can't be read now: its initial snapshot is running" in refused.stderr
        assert "cdc snapshot cancel" in refused.stderr
    await_owed(both, {})
    assert keys_in_topic(both, ITEMS) == set(range(1, ROWS + 1))
    is_owed = [ITEMS in owed for _, owed in claims(both)]
    assert is_owed == sorted(is_owed, reverse=True) and is_owed[0], (
        "it is owed from the first record on, until it no longer is"
    )


@pytest.mark.promise(4)
def test_rows_stay_owed_over_cancel_part_and_restart_until_all_are_read(both: Captured) -> None:
    process = both.start()
    eventually(lambda: owed_of(both, ITEMS) == "its initial snapshot is running", 90.0, "rows are being read")
    cancelled = snapshot(both, "cancel", "--table", ITEMS)
    assert f"missing from {ITEMS}" in cancelled.stdout
    await_owed(both, {ITEMS: "its initial snapshot was cancelled"})
    assert snapshot(both, "start", "--table", ITEMS, "--after", "1495").returncode == 0
    await_owed(both, {ITEMS: "its initial snapshot was not completed"})
    process.kill()
    before = len(claims(both))
    both.start()
    eventually(lambda: len(claims(both)) > before, 90.0, "progress is published")
    assert claims(both)[-1][1] == {ITEMS: "its initial snapshot was not completed"}
    assert len(keys_in_topic(both, ITEMS)) < ROWS
    assert snapshot(both, "start", "--table", ITEMS).returncode == 0
    await_owed(both, {})
    assert keys_in_topic(both, ITEMS) == set(range(1, ROWS + 1))


@pytest.mark.promise(4)
def test_a_stopped_table_owes_its_changes_until_all_its_rows_are_read_again(both: Captured) -> None:
    both.settings = {}
    both.start()
    both.await_caught_up()
    await_owed(both, {})
    both.cdc("table", "stop", OTHER)
    await_owed(both, {OTHER: "it is stopped: an operator stopped it"})
    both.query("UPDATE other SET name = 'meanwhile' WHERE id = 1")
    both.cdc("table", "start", OTHER)
    await_owed(both, {})
    both.await_caught_up()
    assert both.unlike([ITEMS, OTHER]) == {}
    lsn = [lsn for lsn, owed in claims(both) if OTHER in owed]
    assert lsn, "it was said"


@pytest.mark.promise(4)
def test_a_heal_owes_every_table_and_stops_those_whose_key_changed_or_that_are_gone(both: Captured) -> None:
    both.tables = [ITEMS, OTHER, THIRD]
    both.settings = {}
    process = both.start()
    both.await_caught_up()
    process.terminate()
    both.drop_slot()
    both.query("ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (a)")
    both.query("DROP TABLE third; UPDATE other SET name = 'in the gap' WHERE id = 1; DELETE FROM other WHERE id = 2")
    before = len(claims(both))
    both.start().await_said("state GAP")
    healed = snapshot(both, "heal")
    assert f"{OTHER}: done, 2 rows compared, 2 published, deleted 1 rows" in healed.stdout
    assert healed.returncode == 1
    assert f"table {ITEMS} is stopped, the others are healed" in healed.stderr
    assert "its key is (a), but its records have (id)" in healed.stderr
    assert "source.key_columns" in healed.stderr
    why = f"it is stopped: table {ITEMS} can't be captured again: its key is (a), but its records have (id)"
    gone = f"it is stopped: table {THIRD} does not exist"
    await_owed(both, {ITEMS: why, THIRD: gone})
    assert all({ITEMS, THIRD} <= owed.keys() for _, owed in claims(both)[before:])
    assert OTHER in claims(both)[before][1], "its rows of the gap were owed first"
    assert both.unlike([OTHER]) == {}
    assert {change.epoch for change in both.changes() if change.table == ITEMS} == {1}
    both.query("ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items ADD PRIMARY KEY (id)")
    await_owed(both, {THIRD: gone})
    assert both.unlike([ITEMS, OTHER]) == {}


def test_a_table_that_an_operator_stopped_stays_stopped_when_a_gap_is_healed(both: Captured) -> None:
    both.settings = {}
    process = both.start()
    both.await_caught_up()
    both.cdc("table", "stop", OTHER)
    await_owed(both, {OTHER: "it is stopped: an operator stopped it"})
    process.terminate()
    both.drop_slot()
    both.start().await_said("state GAP")
    healed = snapshot(both, "heal")
    assert (healed.returncode, healed.stderr) == (0, "")
    await_owed(both, {OTHER: "it is stopped: an operator stopped it"})
    both.cdc("table", "start", OTHER)
    await_owed(both, {})
    assert both.unlike([ITEMS, OTHER]) == {}
