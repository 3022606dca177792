"""Gaps that are healed by differences: only what differs from the topics is published, and deletes of what is gone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import pytest

from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS, OTHER
from tests.support.captured import Captured, under_capture
from tests.support.topics import delete_topic
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

ROWS = 3_000
TABLES: LiteralString = """
CREATE TABLE items (id int PRIMARY KEY, name text, note text, big text, price numeric(10, 2));
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
CREATE TABLE other (id text, part int, name text, PRIMARY KEY (id, part));
"""
FILL: LiteralString = """
INSERT INTO items
    SELECT n, 'name ' || n, 'note ' || n, repeat('b', CASE WHEN n <= 20 THEN 5000 ELSE 5 END), n / 7.0
    FROM generate_series(1, %s) AS n
"""
FILL_OTHER: LiteralString = "INSERT INTO other SELECT 'k ' || n, n, 'name' FROM generate_series(1, 20) AS n"


@pytest.fixture
def both(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """Tables with rows, changed in the stream and captured whole; capture has ended. Of `other` all rows were swept
    and some have come back."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [ITEMS, OTHER]) as made:
        made.settings = {"snapshot": {"chunk_rows_max": 500}}
        made.query(FILL, ROWS)
        made.query(FILL_OTHER)
        made.start()
        made.await_caught_up()
        made.query("UPDATE items SET name = 'updated ' || id WHERE id % 10 = 0")
        made.query("UPDATE items SET id = id + 100000 WHERE id = 77; DELETE FROM items WHERE id = 78")
        made.query("TRUNCATE other")
        made.query("INSERT INTO other VALUES ('k 1', 1, 'name'), ('k 2', 2, 'name')")
        made.await_caught_up()
        assert made.running().terminate() == 0
        yield made


def of_epoch(captured: Captured, epoch: int, table: str) -> list[dict[str, Any]]:
    """The keys of the table's records in this epoch, in their order."""
    return [dict(c.key) for c in captured.changes() if c.epoch == epoch and c.table == table]


def keys(captured: Captured, epoch: int = 2) -> list[int]:
    return sorted(key["id"] for key in of_epoch(captured, epoch, ITEMS))


def owed(captured: Captured) -> list[dict[str, str]]:
    """What each progress record of the newest epoch says is owed."""
    records = [json.loads(r.value or b"") for r in captured.records("progress") if r.key == b"progress"]
    return [record["owed"] for record in records if record["epoch"] == captured.epoch()]


@pytest.mark.promise(1)
@pytest.mark.promise(4)
def test_published_is_what_differs_after_every_kind_of_change_in_the_gap(both: Captured) -> None:
    both.drop_slot()
    both.query("INSERT INTO items VALUES (5001, 'new', 's', 'b', 1), (5002, NULL, NULL, NULL, NULL)")
    both.query("UPDATE items SET name = 'in the gap' WHERE id IN (1, 100, 2999)")  # 1 has a large value
    both.query("UPDATE items SET big = repeat('c', 5000) WHERE id = 2")
    both.query("UPDATE items SET price = price + 0.01 WHERE id = 3; UPDATE items SET note = 'x' WHERE id = 4")
    both.query("UPDATE items SET id = 6000 WHERE id = 5")
    both.query("DELETE FROM items WHERE id IN (6, 1000)")
    both.query("DELETE FROM items WHERE id = 7")
    both.query("INSERT INTO items SELECT 7, 'name 7', 'note 7', repeat('b', 5000), 7 / 7.0")  # back, as it was
    both.query("UPDATE items SET name = name")
    both.query("INSERT INTO other VALUES ('k 3', 3, 'name')")  # as it was before TRUNCATE
    both.query("DELETE FROM other WHERE part = 1")
    both.start().await_said("state GAP")
    done = both.cdc("snapshot", "heal")
    assert f"{ITEMS}: done, 2,999 rows compared, 12 published, deleted 3 rows that no longer exist" in done
    assert f"{OTHER}: done, 2 rows compared, 2 published, deleted 1 rows that no longer exist" in done
    both.await_caught_up()
    assert keys(both) == sorted([5001, 5002, 1, 100, 2999, 2, 3, 4, 5, 6000, 6, 1000])
    assert of_epoch(both, 2, OTHER) == [{"id": "k 3", "part": 3}, {"id": "k 1", "part": 1}]
    assert both.unlike([OTHER]) == {}
    assert owed(both)[0].keys() == {ITEMS, OTHER} and owed(both)[-1] == {}
    assert both.judge().epoch == 2


@pytest.mark.promise(4)
def test_a_heal_goes_on_after_kills_while_the_source_changes_and_signals_come(both: Captured) -> None:
    both.drop_slot()
    both.query("UPDATE items SET name = 'in the gap' WHERE id % 500 = 1")
    both.query("DELETE FROM items WHERE id % 500 = 2")
    both.settings["snapshot"] = {"chunk_rows_max": 100, "rows_per_s_max": 300}
    both.start().await_said("state GAP")
    assert both.ask("heal").is_accepted
    eventually(lambda: both.snapshots()[ITEMS].get("compared", 0) > 300, 90.0, "rows are compared")
    both.end()
    both.start_and_die("chunk.marked:3")
    both.query("UPDATE items SET name = 'after the gap' WHERE id % 500 IN (1, 3)")
    both.query("DELETE FROM items WHERE id % 500 = 4; ALTER TABLE other ADD more int")
    both.start()
    assert both.ask("pause", tables=[ITEMS]).is_accepted
    paused = "the snapshot that heals the gap is paused"
    eventually(lambda: owed(both)[-1].get(ITEMS) == paused, 90.0, lambda: f"it is owed: {owed(both)[-1]}")
    both.query("INSERT INTO other VALUES ('k 9', 9, 'name', 9); UPDATE items SET name = 'paused' WHERE id = 2500")
    assert both.ask("resume", tables=[ITEMS]).is_accepted
    both.await_caught_up()
    assert both.snapshots()[ITEMS]["status"] == "done"
    is_owed = [ITEMS in some for some in owed(both)]
    assert is_owed == sorted(is_owed, reverse=True) and is_owed[0] and owed(both)[-1] == {}
    differing = {n for n in range(1, ROWS + 1) if n % 500 in (1, 2, 3, 4)} | {2500}
    assert set(keys(both)) == differing, "and nothing else was published"
    assert both.unlike([ITEMS, OTHER]) == {}


@pytest.mark.promise(4)
def test_where_a_topic_was_created_again_all_its_rows_are_published_and_the_others_compared(both: Captured) -> None:
    both.drop_slot()
    delete_topic(both.bootstrap_servers, f"{both.name}.{OTHER}")
    both.query("UPDATE items SET name = 'in the gap' WHERE id = 9")
    both.settings["source"] = {"on_gap": "heal"}
    both.start().await_said("healing automatically, as configured")
    eventually(lambda: both.snapshots()[ITEMS]["request"] == "epoch 2" and not both.unfinished(), 90.0, "it is healed")
    both.await_caught_up()
    assert (keys(both), len(of_epoch(both, 2, OTHER))) == ([9], 2)
    assert [both.snapshots()[table]["sweeps"] for table in (ITEMS, OTHER)] == [False, True]
    assert both.unlike([ITEMS, OTHER]) == {}


@pytest.mark.promise(4)
def test_all_rows_are_published_if_that_is_asked_for(both: Captured) -> None:
    both.drop_slot()
    both.query("DELETE FROM items WHERE id > 2000")
    both.start().await_said("state GAP")
    done = both.cdc("snapshot", "heal", "--all")
    assert f"{ITEMS}: done, 1,998 rows" in done
    both.await_caught_up()
    assert len(keys(both)) == 1_998
    floors = {sweep.table: sweep.floor for sweep in both.judge().sweeps}
    assert floors[ITEMS] == 2 << 48, "every version of the former epoch, and none of this one"
