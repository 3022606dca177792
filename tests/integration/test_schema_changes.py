"""Tables that are altered under capture: in the end every row is there as it is, or the table is stopped by name."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, LiteralString

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS, OTHER
from tests.support import forked
from tests.support.captured import Captured
from tests.support.schema_cases import CASES, TYPES, make, run
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

NEIGHBOUR: Final = "public.neighbour"


@pytest.fixture
def altered(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """A database with a table for each case."""
    tables = [case.table for case in CASES]
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        connection.execute(TYPES)
        connection.execute("CREATE TABLE neighbour (id int PRIMARY KEY, a text)")
        make(connection, CASES)
    dsn = make_conninfo(postgres.superuser_dsn, dbname=str(conninfo_to_dict(fresh_database)["dbname"]))
    made = Captured(fresh_database, dsn, kafka.bootstrap_servers, unique, [*tables, NEIGHBOUR], tmp_path)
    try:
        yield made
    finally:
        made.end()
        made.delete_topics()


@pytest.mark.promise(1)
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "asleep"])
def test_whatever_is_altered_every_row_is_there_or_the_table_is_stopped(altered: Captured, is_running: bool) -> None:
    capture = altered.start()
    altered.await_caught_up()
    requests = {table: record["request"] for table, record in altered.snapshots().items()}
    if not is_running:
        assert capture.terminate() == 0
    with altered.connect() as connection:
        for case in CASES:
            run(connection, case, case.change)
        for number, case in enumerate(CASES):
            run(connection, case, case.then)
            connection.execute("INSERT INTO neighbour VALUES (%s, 'here')", (number,))
    if not is_running:
        capture = altered.start()
    followed = [NEIGHBOUR, *(case.table for case in CASES if case.stops is None)]
    eventually(lambda: not altered.unfinished() and not altered.unlike(followed), 90.0,
               lambda: f"{altered.unlike(followed)}\n{capture.said()}")  # fmt: skip
    found = altered.states()
    stopped = {table: record["message"] for table, record in found.items() if record["status"] == "stopped"}
    assert stopped.keys() == {case.table for case in CASES if case.stops is not None}
    for case in CASES:
        if case.stops is not None:
            assert re.search(case.stops, stopped[case.table])
            assert found[case.table]["next"]
        elif case.reads_again is not None and is_running:
            again = altered.snapshots()[case.table]["request"] != requests[case.table]
            assert again is case.reads_again, case.name
    assert "Traceback" not in capture.said()
    _take_up_again(altered)


def _take_up_again(captured: Captured) -> None:
    """What stopped goes on when it is repaired, by itself."""
    repairs: dict[str, LiteralString] = {
        "dropped": "CREATE TABLE dropped (id int PRIMARY KEY, b text); INSERT INTO dropped VALUES (1, 'again')",
        "key_lost": "ALTER TABLE key_lost ADD PRIMARY KEY (id)",
        "identity_nothing": "ALTER TABLE identity_nothing REPLICA IDENTITY DEFAULT;"
        " DELETE FROM identity_nothing WHERE id < 5",
        "renamed": "ALTER TABLE renamed_gone RENAME TO renamed",
        "key_renamed": "ALTER TABLE key_renamed RENAME number TO id",
        "key_retyped": "ALTER TABLE key_retyped ALTER id TYPE int USING id::int",
    }
    _take_up(captured, {f"public.{name}": statements for name, statements in repairs.items()})


def _take_up(captured: Captured, repairs: dict[str, LiteralString]) -> None:
    with captured.connect() as connection:
        for statements in repairs.values():
            connection.execute(statements)
    tables = list(repairs)
    eventually(lambda: not captured.unfinished() and not captured.unlike(tables), 90.0,
               lambda: f"{captured.unlike(tables)}\n{captured._said()}")  # fmt: skip
    assert all(captured.states()[table]["status"] == "captured" for table in tables)


def test_a_table_that_stops_within_a_large_transaction_leaves_the_others_whole(items: Captured) -> None:
    """What stands before the change may be published, before anybody could know."""
    items.settings = {"source": {"tables": [ITEMS, OTHER]}, "capture": {"transaction_rows_max": 5_000}}
    items.tables = [ITEMS, OTHER]
    capture = items.start()
    items.await_caught_up()
    items.query("DROP SCHEMA judge CASCADE")  # its triggers name the column
    with items.connect() as connection, connection.transaction():
        for begin in (1, 10_001):
            connection.execute(
                "INSERT INTO items SELECT n, 'x' FROM generate_series(%s::int, %s) AS n", (begin, begin + 9_999)
            )
            connection.execute(
                "INSERT INTO other SELECT n FROM generate_series(%s::int, %s) AS n", (begin, begin + 9_999)
            )
        connection.execute("ALTER TABLE items RENAME id TO number")
        connection.execute("INSERT INTO items VALUES (0, 'y')")
        connection.execute("INSERT INTO other SELECT n FROM generate_series(20001, 30000) AS n")
    items.await_caught_up()
    eventually(lambda: not items.unlike([OTHER]), describe=lambda: f"{items.unlike([OTHER])}\n{capture.said()}")
    assert items.states()[ITEMS]["status"] == "stopped"
    assert "key column id was dropped or renamed" in capture.said()  # state may tell by now why it can't join
    _take_up(items, {ITEMS: "ALTER TABLE items RENAME number TO id"})
    assert [change.op for change in items.changes() if change.table == OTHER] == ["c"] * 30_000


def test_a_row_within_a_large_transaction_that_can_not_be_published_stops_its_table_once(items: Captured) -> None:
    """Though the session that comes is sent it again, for the rest of the transaction."""
    items.settings = {"source": {"tables": [ITEMS, OTHER]}, "capture": {"transaction_rows_max": 5_000}}
    items.tables = [ITEMS, OTHER]
    capture = items.start()
    items.await_caught_up()
    with items.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO items SELECT n, 'x' FROM generate_series(1, 20000) AS n")
        connection.execute("INSERT INTO items VALUES (0, repeat('x', 20000000))")
        connection.execute("INSERT INTO other SELECT n FROM generate_series(1, 20000) AS n")
    items.await_caught_up()
    eventually(lambda: not items.unlike([OTHER]), describe=lambda: f"{items.unlike([OTHER])}\n{capture.said()}")
    stopped = items.states()[ITEMS]
    assert (stopped["status"], stopped["is_held"]) == ("stopped", True)
    assert capture.said().count("table stopped") == 1
    items.query("UPDATE items SET name = 'short' WHERE id = 0")
    assert items.ask("start_table", tables=[ITEMS]).is_accepted
    eventually(lambda: items.states()[ITEMS]["status"] == "captured" and not items.unlike([ITEMS, OTHER]))


def test_a_table_joins_again_when_the_types_of_its_key_were_created_again(items: Captured) -> None:
    """While capture runs, and while it does not. It could never join, and was told to get its key back."""
    with items.connect() as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('calm', 'glad')")
        connection.execute("CREATE DOMAIN code AS numeric(6, 2)")
        connection.execute("CREATE TABLE moods (m mood, c code, note text, PRIMARY KEY (m, c))")
    items.query("INSERT INTO moods VALUES ('calm', 1, 'a'), ('glad', 2.5, 'b'), ('calm', 3, 'gone')")
    moods = "public.moods"
    items.settings = {"source": {"tables": [ITEMS, moods]}}
    items.tables = [ITEMS, moods]
    for is_running in (True, False):
        capture = items.start()
        items.await_caught_up()
        eventually(lambda: not items.unfinished() and not items.unlike([ITEMS, moods]))
        if not is_running:
            assert capture.terminate() == 0
        with items.connect() as connection, connection.transaction():
            connection.execute("ALTER TABLE moods ALTER m TYPE text, ALTER c TYPE numeric(6, 2)")
            connection.execute("DROP TYPE mood; DROP DOMAIN code")
            connection.execute("CREATE TYPE mood AS ENUM ('glad', 'wild', 'calm')")
            connection.execute("CREATE DOMAIN code AS numeric(6, 2)")
            connection.execute("ALTER TABLE moods ALTER m TYPE mood USING m::mood, ALTER c TYPE code")
            connection.execute("DELETE FROM moods WHERE note = 'gone'")
        if not is_running:
            items.start()
        _take_up(items, {moods: "INSERT INTO moods VALUES ('wild', 4, 'c') ON CONFLICT DO NOTHING"})
        assert "restore its key" not in items._said()
        if is_running:
            assert capture.terminate() == 0
            items.query("INSERT INTO moods VALUES ('calm', 3, 'gone')")


def test_an_operator_stops_a_table_and_starts_it(items: Captured) -> None:
    """Beside it a table whose row can't be published stops by itself."""
    items.settings = {"source": {"tables": [ITEMS, OTHER]}}
    items.tables = [ITEMS, OTHER]
    capture = items.start()
    items.await_caught_up()
    refused = items.ask("stop_table", tables=["public.nowhere"]).message
    assert refused.startswith("table public.nowhere is not captured")
    assert items.ask("start_table", tables=[OTHER]).message == f"table {OTHER} is not stopped"
    config = str(items.config())
    assert forked.run(["table", "stop", OTHER, "--config", config], deadline_s=90.0).stdout == f"stopped: {OTHER}\n"
    capture.await_said("changes of a table are no longer published")
    items.query("INSERT INTO other VALUES (1)")
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.await_caught_up()
    assert {change.table for change in items.changes()} == {ITEMS}
    assert items.states()[OTHER]["message"] == "an operator stopped it"
    assert capture.terminate() == 0
    items.start()
    items.await_caught_up()
    reported = json.loads(forked.run(["table", "list", "--json", "--config", config], deadline_s=90.0).stdout)["tables"]
    assert [(one["table"], one["status"], one["starts_by_itself"]) for one in reported] == [
        (ITEMS, "captured", False),
        (OTHER, "stopped", False),
    ]
    assert (
        forked.run(["table", "start", OTHER, "--config", config], deadline_s=90.0).stdout
        == f"captured again: {OTHER}\n"
    )
    eventually(lambda: items.states()[OTHER]["status"] == "captured" and not items.unlike([ITEMS, OTHER]))


def test_a_table_that_is_added_later_to_the_publication_of_somebody_else_waits(items: Captured) -> None:
    """If the role may, the table joins: see test_joining."""
    items.query("CREATE PUBLICATION watershed FOR TABLE items WITH (publish_via_partition_root = true)")
    capture = items.start()
    items.await_caught_up()
    assert capture.terminate() == 0
    items.settings = {"source": {"tables": [ITEMS, OTHER]}}
    items.start()
    eventually(lambda: OTHER in items.states(), describe="the table is stopped")
    stopped = items.states()[OTHER]
    assert (stopped["status"], stopped["is_held"]) == ("stopped", False)
    assert "publication watershed does not contain table public.other" in stopped["message"]
    assert 'ALTER PUBLICATION "watershed" ADD TABLE ONLY "public"."other"' in stopped["next"]
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.await_caught_up()
    assert not items.unlike([ITEMS])
