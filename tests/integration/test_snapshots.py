"""Snapshots on real servers: rows older than what is published, tables that are emptied, gaps that are healed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from tests.checker.records import parse
from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS
from tests.support.captured import NAIVE, Captured, under_capture
from tests.support.forked import CDC
from tests.support.topics import recreate_topic
from tests.support.waiting import eventually
from tests.support.workload import LINES, TABLES, Workload, fill
from watershed.devstack.postgres import is_installed

ROWS = 10


@contextmanager
def commits_frozen(superuser_dsn: str) -> Iterator[None]:
    """Commits are written to the log, and wait there: nobody sees them. The standby they wait for does not exist."""
    with psycopg.connect(superuser_dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            shown = "SELECT current_setting('synchronous_standby_names') = 'nobody'"
            eventually(lambda: connection.execute(shown).fetchone() == (True,), 10)
            # Commits wait only once the checkpointer has read the setting, too, which it does before it checkpoints.
            connection.execute("CHECKPOINT")
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")


def ops_of(captured: Captured, key: int) -> list[tuple[str, object]]:
    """What was published for a key: op and name."""
    return [(c.op, (c.after or {}).get("name")) for c in captured.changes() if c.key == {"id": key}]


def snapshot_beside_a_frozen_commit(captured: Captured, module: str) -> None:
    """One row a chunk, slowly. Before the last row is read, a commit updates it that is decoded but not visible."""
    captured.settings = {"snapshot": {"chunk_rows_max": 1, "rows_per_s_max": 2, "workers": 1}}
    captured.query(f"INSERT INTO items SELECT n, 'old' FROM generate_series(1, {ROWS}) AS n")
    captured.start(module=module)
    eventually(lambda: ops_of(captured, 1), 90.0, "the first row is published")

    def update() -> None:
        with captured.connect() as connection:
            connection.execute(f"UPDATE items SET name = 'new' WHERE id = {ROWS}")

    writer = threading.Thread(target=update)
    with commits_frozen(captured.superuser_dsn):
        writer.start()
        eventually(lambda: ops_of(captured, ROWS), 10.0, "the update is published")
        assert captured.query(f"SELECT name FROM items WHERE id = {ROWS}") == [("old",)]
        eventually(lambda: not captured.unfinished(), 60.0, "every row is read")
        assert captured.query(f"SELECT name FROM items WHERE id = {ROWS}") == [("old",)]
    writer.join()
    captured.await_caught_up()


@pytest.fixture(params=["18", "16", *(version for version in ("15", "17") if is_installed(int(version)))])
def items_on(request: pytest.FixtureRequest) -> Captured:
    made: Captured = request.getfixturevalue(
        {"18": "items", "17": "items17", "16": "items16", "15": "items15"}[request.param]
    )
    return made


@pytest.mark.promise(2)
def test_a_row_that_is_read_after_a_newer_event_was_published_is_not_published(items_on: Captured) -> None:
    snapshot_beside_a_frozen_commit(items_on, CDC)
    assert ops_of(items_on, ROWS) == [("u", "new")]
    assert len(items_on.judge().changes) == ROWS


def test_the_published_rule_leaves_it_wrong_for_ever(items: Captured) -> None:
    """The control: what the test above is for does happen."""
    snapshot_beside_a_frozen_commit(items, NAIVE)
    assert ops_of(items, ROWS) == [("u", "new"), ("r", "old")]
    with pytest.raises(AssertionError, match="the source has another row at its mark"):
        items.judge()


# ---- TRUNCATE


@pytest.mark.promise(2)
def test_truncate_removes_what_was_published_and_nothing_that_follows(captured: Captured) -> None:
    with captured.connect() as connection:
        fill(connection, 200)
    captured.start()
    captured.await_caught_up()
    with captured.connect() as connection:
        connection.execute("INSERT INTO lines VALUES (1, 1, 1, 1, NULL)")
        with connection.transaction():
            connection.execute("INSERT INTO lines VALUES (2, 1, 1, 1, NULL)")
            connection.execute("TRUNCATE lines, accounts")
            connection.execute("INSERT INTO lines VALUES (1, 1, 1, 1, 'after')")
    captured.await_caught_up()
    report = captured.judge()  # folded with its sweeps the topics are the source
    assert {sweep.table for sweep in report.sweeps} == {LINES, "public.accounts"}
    assert captured.query("SELECT count(*) FROM lines") == [(1,)]


@pytest.mark.promise(2)
def test_truncate_while_chunks_are_read(captured: Captured) -> None:
    captured.settings = {"snapshot": {"chunk_rows_max": 20}}
    with captured.connect() as connection:
        fill(connection, 3_000)
    captured.start()
    with captured.connect() as connection:
        for number in range(3):
            eventually(lambda: captured.snapshots().get(LINES, {}).get("rows"), 90.0, "chunks are published")
            connection.execute("TRUNCATE lines")
            connection.execute("INSERT INTO lines SELECT n, 2, %s, 1, NULL FROM generate_series(1, 900) n", [number])
    captured.await_caught_up()
    complaints = [
        line for line in captured.complaints() if not line.startswith("chunk:")
    ]  # whose replay has no TRUNCATE
    assert complaints == []


# ---- snapshots that are asked for


@pytest.mark.promise(2)
def test_a_snapshot_beside_a_workload_is_true_and_ends_with_a_sweep(captured: Captured) -> None:
    with captured.connect() as connection:
        fill(connection, 1_000)
    captured.settings = {"snapshot": {"chunk_rows_max": 50}}
    captured.start()
    captured.await_caught_up()
    with Workload(captured.dsn, seed=1, clients=2, pause_s=0.005):
        answer = captured.ask("snapshot")
        assert set(answer.tables) == set(TABLES)
        eventually(lambda: not captured.unfinished(), 60.0, "the snapshot is done")
    captured.await_caught_up()
    report = captured.judge()
    assert {sweep.table for sweep in report.sweeps} == set(TABLES)
    assert report.epoch == 1
    assert report.ops["r"] > 2 * 1_000


PARTED: LiteralString = """
CREATE TABLE parted (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE high PARTITION OF parted FOR VALUES FROM (100) TO (200);
"""


@pytest.mark.promise(2)
def test_rows_that_vanished_without_an_event_are_gone_after_a_snapshot(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> None:
    """A TRUNCATE of one partition is not in a stream that names only the root. A range and a condition delete what they
    find absent, a snapshot of the whole table sweeps, and here tombstones follow its sweep."""

    def snapshot(**wish: Any) -> set[int]:
        """What is left in the topic of the rows that vanished."""
        before = captured.snapshots()["public.parted"]["request"]
        assert captured.ask("snapshot", tables=["public.parted"], **wish).is_accepted
        # A Kafka transaction is seen in one partition after the other: the answer's, then that of state.
        eventually(lambda: captured.snapshots()["public.parted"]["request"] != before or is_noticed())
        captured.await_caught_up()
        return {key for key in live_keys(captured) if key < 100}

    def is_noticed() -> bool:
        """Capture looks at the catalog every few seconds, and reads all rows again where it finds a truncated
        partition: then nobody has to ask."""
        return "a partition was truncated or rewritten" in captured.running().said()

    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, PARTED, ["public.parted"]) as captured:
        captured.settings = {"sweep": {"tombstones": True}}
        captured.query("INSERT INTO parted SELECT n, 'x' FROM generate_series(1, 199) AS n")
        captured.start()
        captured.await_caught_up()
        captured.query("TRUNCATE low")
        captured.query("INSERT INTO parted VALUES (5, 'after')")
        captured.await_caught_up()
        assert any("is not in the source" in complaint for complaint in captured.complaints())
        assert snapshot(after=["40"], up_to=["150"]) == set(range(1, 41)) or is_noticed()
        assert captured.snapshots()["public.parted"]["deleted"] == 59 or is_noticed()
        assert snapshot(where="name = 'after'", up_to=["20"]) == {5, *range(21, 41)} or is_noticed()
        assert snapshot(where="name = 'nobody has it'") == {5} or is_noticed()
        eventually(
            lambda: set(live_keys(captured)) == {5, *range(100, 200)}, 90.0, "or the tombstones behind its sweep"
        )
        captured.await_caught_up()
        assert unknown_to_the_journal(captured) == []
        captured.query("TRUNCATE low")
        snapshot()
        eventually(lambda: set(live_keys(captured)) == set(range(100, 200)), 90.0, "the tombstone behind the sweep")
        captured.await_caught_up()
        assert unknown_to_the_journal(captured) == []


def live_keys(captured: Captured) -> list[int]:
    """What a reader finds who knows nothing of sweeps."""
    last = {record.key: record.value for record in captured.records("public.parted")}
    return [parse(key)["id"] for key, value in last.items() if value is not None]


def unknown_to_the_journal(captured: Captured) -> list[str]:
    """Complaints but for those of rows that the journal still has: it does not know that they vanished."""
    return [line for line in captured.complaints() if not line.startswith("absent: ")]


def test_signals_that_can_not_be_obeyed_are_answered(items: Captured) -> None:
    items.start().await_said("streaming")
    assert items.ask("snapshot", tables=["public.nowhere"]).message == "table public.nowhere is not captured"
    assert not items.ask("heal").is_accepted
    assert not items.ask("resume").is_accepted


def test_a_paused_snapshot_waits_and_one_that_is_cancelled_ends(items: Captured) -> None:
    items.settings = {"snapshot": {"chunk_rows_max": 1, "rows_per_s_max": 2, "workers": 1}}
    items.query("INSERT INTO items SELECT n, 'old' FROM generate_series(1, 40) AS n")
    items.start()
    eventually(lambda: ops_of(items, 1), 90.0, "the first row is published")
    assert items.ask("pause").message == "paused"
    paused = items.snapshots()[ITEMS]
    items.query("UPDATE items SET name = 'new' WHERE id IN (1, 40)")
    items.await_caught_up()
    assert items.snapshots()[ITEMS] == paused
    items.end()
    items.settings = {}
    items.start()
    assert items.ask("resume").message == "running"
    items.await_caught_up()
    assert len({change.identity for change in items.judge().changes}) == 40
    assert items.ask("snapshot").is_accepted
    items.ask("cancel")
    assert items.snapshots()[ITEMS]["status"] in ("cancelled", "done")


def test_a_condition_that_postgresql_refuses_fails_the_snapshot_and_nothing_else(items: Captured) -> None:
    items.start()
    items.await_caught_up()
    assert items.ask("snapshot", tables=[ITEMS], where="nonsense >").is_accepted
    eventually(lambda: items.snapshots()[ITEMS]["status"] == "failed", 90.0, "it fails")
    assert "syntax error" in items.snapshots()[ITEMS]["message"]
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.await_caught_up()
    assert ops_of(items, 1) == [("c", "one")]


# ---- gaps


@pytest.mark.promise(4)
@pytest.mark.parametrize("method", ["chunked", "consistent"])
def test_a_gap_is_healed_under_a_new_epoch_with_nothing_lost_and_nothing_extra(captured: Captured, method: str) -> None:
    captured.settings = {"snapshot": {"method": method}}
    with captured.connect() as connection:
        fill(connection, 500)
    captured.start()
    captured.await_caught_up()
    captured.end()
    captured.drop_slot()
    captured.query("DELETE FROM accounts WHERE id % 3 = 0")
    captured.query("UPDATE lines SET qty = 7 WHERE order_id % 2 = 0")
    captured.query("INSERT INTO lines SELECT n, 9, n, 1, NULL FROM generate_series(1, 50) n")
    capture = captured.start()
    assert "can't be used any more" in capture.await_refusal()
    paused = captured.signal("pause")  # answered before it is healed, and without effect after it
    answer = captured.ask("heal")
    assert (answer.is_accepted, answer.message) == (True, "healing under a new epoch")
    assert captured.answer(paused).message.startswith(f"capture is in state GAP: slot {captured.name}")
    with Workload(captured.dsn, seed=2, transactions=30):
        capture.await_said("streaming")
    captured.await_caught_up()
    report = captured.judge()
    assert report.epoch == 2
    # Rows that are compared with the topic are deleted one by one.
    assert {sweep.table for sweep in report.sweeps} == (set(TABLES) if method == "consistent" else set())
    assert capture.terminate() == 0


@pytest.mark.promise(4)
def test_in_state_gap_what_else_is_asked_is_refused(items: Captured) -> None:
    items.start()
    items.await_caught_up()
    items.end()
    items.drop_slot()
    items.start().await_refusal()
    answer = items.ask("snapshot", tables=[ITEMS])
    assert (answer.is_accepted, answer.next) == (False, "cdc snapshot heal")
    assert "is in state GAP" in answer.message
    assert items.ask("heal").is_accepted
    items.await_caught_up()
    assert items.snapshots()[ITEMS]["request"] == "epoch 2"  # what was refused stays so
    assert items.judge().sweeps == []


@pytest.mark.promise(4)
def test_a_gap_heals_itself_where_that_is_configured(items: Captured) -> None:
    items.settings = {"snapshot": {"mode": "when_needed"}}
    items.query("INSERT INTO items VALUES (1, 'one'), (2, 'two')")
    items.start()
    items.await_caught_up()
    items.end()
    items.drop_slot()
    items.query("DELETE FROM items WHERE id = 1")
    items.start()
    eventually(
        lambda: items.snapshots()[ITEMS]["request"] == "epoch 2" and not items.unfinished(), 90.0, "all is read again"
    )
    items.judge()


def test_without_state_the_epoch_comes_from_what_the_other_topics_say(items: Captured) -> None:
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.start()
    items.await_caught_up()
    items.end()
    recreate_topic(items.bootstrap_servers, f"{items.name}.state", partitions=1)
    items.drop_slot()
    items.query("UPDATE items SET id = 2")
    items.start().await_refusal()
    assert items.ask("heal").is_accepted
    items.await_caught_up()
    assert items.judge().epoch == 2


# ---- modes


def test_never_reads_no_existing_row(items: Captured) -> None:
    items.settings = {"snapshot": {"mode": "never"}}
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.start().await_said("streaming")
    items.query("INSERT INTO items VALUES (2, 'two')")
    items.await_caught_up()
    assert [(change.op, change.key["id"]) for change in items.changes()] == [("c", 2)]


def test_always_reads_all_rows_at_each_start(items: Captured) -> None:
    items.settings = {"snapshot": {"mode": "always"}}
    items.query("INSERT INTO items VALUES (1, 'one')")
    for reads in (1, 2):
        capture = items.start()
        eventually(
            lambda wanted=reads: ops_of(items, 1) == [("r", "one")] * wanted,  # type: ignore[misc]
            60.0,
            capture.said,
        )
        items.await_caught_up()
        items.end()
    items.judge()
