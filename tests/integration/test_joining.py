"""Tables that are added to source.tables later, and taken out of it: the others go on as if nothing had happened."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS, OTHER
from tests.support.captured import Captured, CaptureProcess, under_capture
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

ROWS = 200
DIED = -9
TABLES = "CREATE TABLE items (id int PRIMARY KEY, name text); CREATE TABLE other (id int PRIMARY KEY, name text);"


@pytest.fixture
def both(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """Two tables with rows, of which the first is captured; capture was stopped, and both have changed since."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [ITEMS, OTHER]) as made:
        for table in ("items", "other"):
            made.query(f"INSERT INTO {table} SELECT n, 'old' FROM generate_series(1, {ROWS}) AS n")
        made.settings = {"snapshot": {"chunk_rows_max": 40}}
        only(made, ITEMS)
        capture = made.start()
        made.await_caught_up()
        assert capture.terminate() == 0
        change(made)
        yield made


def only(captured: Captured, *tables: str) -> None:
    captured.settings = captured.settings | {"source": {"tables": list(tables)}}


def change(captured: Captured) -> None:
    with captured.connect() as connection, connection.transaction():
        connection.execute("UPDATE items SET name = name || '+' WHERE id % 10 = 0")
        connection.execute("UPDATE other SET name = name || '+' WHERE id % 10 = 0")
        connection.execute("DELETE FROM other WHERE id = (SELECT min(id) FROM other)")


def read(captured: Captured, table: str) -> int:
    """How many of its rows were published because they were there."""
    return sum(change.op == "r" and change.table == table for change in captured.changes())


def names(captured: Captured, table: str, key: int) -> Sequence[tuple[str, object]]:
    """What was published of that row: op and name."""
    return [(c.op, (c.after or {}).get("name")) for c in captured.changes() if (c.table, c.key) == (table, {"id": key})]


@pytest.mark.promise(1)
@pytest.mark.promise(3)
def test_a_table_joins_beside_the_stream_whenever_capture_is_killed(both: Captured) -> None:
    only(both, ITEMS, OTHER)
    with psycopg.connect(both.dsn) as running:
        running.execute("INSERT INTO other VALUES (1001, 'before it was published')")
        running.execute("UPDATE items SET name = 'running' WHERE id = 1")
        assert both.start(failpoint="join.published").await_end() == DIED
        capture = both.start(failpoint="join.recorded")
        capture.await_said("streaming")
        change(both)
        eventually(lambda: ("u", "old++") in names(both, ITEMS, 10), 90.0, "the other table is streamed meanwhile")
        assert both.snapshots().keys() == {ITEMS}
        running.execute("INSERT INTO other VALUES (1002, 'after')")
        running.commit()
    assert capture.await_end() == DIED
    assert both.snapshots()[OTHER]["status"] == "running"
    both.query("INSERT INTO other VALUES (1003, 'joined')")
    assert both.start(failpoint="chunk.marked:3").await_end() == DIED
    last = both.start()
    both.await_caught_up()
    for key, name in ((1001, "before it was published"), (1002, "after")):
        assert names(both, OTHER, key) == [("r", name)], "whether it was sent is not the same each time"
    assert names(both, OTHER, 1003)[0] == ("c", "joined")
    assert read(both, ITEMS) == ROWS, "it is not read again"
    assert both.judge().epoch == 1
    assert "GAP" not in last.said()


@pytest.fixture
def restart(both: Captured) -> Callable[..., CaptureProcess]:
    """Capture with other tables, when it streams and has caught up."""
    running: list[CaptureProcess] = []

    def start(*tables: str, mode: str = "initial") -> CaptureProcess:
        if running:
            assert running[-1].terminate() == 0
        both.settings = {"snapshot": {"chunk_rows_max": 40, "mode": mode}, "source": {"tables": list(tables)}}
        running.append(both.start())
        running[-1].await_said("streaming")
        both.await_caught_up()
        assert "GAP" not in running[-1].said()
        return running[-1]

    return start


def test_a_table_that_left_and_joins_again_loses_what_was_deleted_meanwhile(
    both: Captured, restart: Callable[..., CaptureProcess]
) -> None:
    restart(ITEMS, OTHER, mode="never")
    both.query("INSERT INTO other VALUES (1004, 'joined')")
    both.await_caught_up()
    assert names(both, OTHER, 1004) == [("c", "joined")]
    assert both.snapshots().keys() == {ITEMS}, "it is captured, not read"

    restart(ITEMS)
    both.query("ALTER PUBLICATION watershed DROP TABLE other")
    before = len(both.changes())
    change(both)
    both.query("DELETE FROM other WHERE id = 1004")
    both.await_caught_up()
    assert {c.table for c in both.changes()[before:]} == {ITEMS}

    restart(ITEMS, OTHER)
    assert (read(both, ITEMS), read(both, OTHER)) == (ROWS, ROWS - 2)
    assert {sweep.table for sweep in both.judge().sweeps} == {OTHER}

    restart(ITEMS)
    both.query("ALTER TABLE other DROP CONSTRAINT other_pkey, ADD PRIMARY KEY (name, id)")
    restart(ITEMS, OTHER)
    stopped = both.states()[OTHER]
    assert (stopped["status"], stopped["is_held"]) == ("stopped", False)
    assert "its key is (name, id), but its records have (id)" in stopped["message"]


def test_a_start_waits_for_no_lock_on_a_captured_table(both: Captured, restart: Callable[..., CaptureProcess]) -> None:
    both.query(
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id); ALTER TABLE parted OWNER TO watershed"
    )
    both.query("CREATE TABLE leaf PARTITION OF parted DEFAULT; ALTER TABLE leaf OWNER TO watershed")
    restart(ITEMS, OTHER, "public.parted").kill()
    with both.connect() as altering, altering.transaction():
        altering.execute("LOCK TABLE other, leaf IN ACCESS EXCLUSIVE MODE")
        last = both.start()
        both.query("UPDATE items SET name = 'beside' WHERE id = 1")
        eventually(lambda: ("u", "beside") in names(both, ITEMS, 1), 90.0, "the others are streamed meanwhile")
        altering.execute("DROP TABLE other")
    both.query("INSERT INTO items VALUES (1001, 'behind')")
    eventually(lambda: names(both, ITEMS, 1001) == [("c", "behind")], 90.0, "the others go on")
    eventually(lambda: both.states()[OTHER]["status"] == "stopped", 90.0, "it stops, by name")
    assert last.exit_code is None


def test_a_table_that_is_locked_joins_when_it_is_not_and_the_others_flow(both: Captured) -> None:
    only(both, ITEMS, OTHER)
    with both.connect() as altering, altering.transaction():
        altering.execute("LOCK TABLE other IN ACCESS EXCLUSIVE MODE")
        last = both.start()
        both.query("UPDATE items SET name = 'beside' WHERE id = 1")
        eventually(lambda: ("u", "beside") in names(both, ITEMS, 1), 90.0, "the other table is streamed meanwhile")
        assert OTHER not in both.states()
    eventually(lambda: both.snapshots().get(OTHER, {}).get("status") == "done", 90.0, "it joins")
    both.judge()
    assert last.said().count("tables are locked and are added when") == 1
    assert "session lost" not in last.said()


def test_a_table_that_is_dropped_while_it_waits_to_join_stops_alone(both: Captured) -> None:
    only(both, ITEMS, OTHER)
    with psycopg.connect(both.dsn) as running:
        running.execute("INSERT INTO items VALUES (1001, 'long')")
        capture = both.start()
        capture.await_said("tables are added as soon as transactions that began earlier have ended")
        both.query("DROP TABLE other")
    eventually(lambda: both.states().get(OTHER, {}).get("status") == "stopped", 90.0, "it stops")
    both.query("INSERT INTO items VALUES (1002, 'behind')")
    eventually(lambda: names(both, ITEMS, 1002) == [("c", "behind")], 90.0, "the other goes on")
    assert capture.said().count("a session with other tables begins") == 1
