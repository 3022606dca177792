"""Tables that patterns take while capture runs: created, renamed, dropped, and a configuration that is read again."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.http_server import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

TABLES = "CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (1, 'old')"
ITEMS, FRESH, LATER, RENAMED = "public.items", "public.fresh", "public.later", "public.renamed"


@pytest.fixture
def matched(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """A schema under capture."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [ITEMS]) as made:
        made.tables = [ITEMS, FRESH]
        made.settings = {"source": {"tables": ["public.*"]}}
        yield made


def create(captured: Captured, statement: LiteralString) -> None:
    """By capture's role, which may add the table to the publication."""
    with captured.connect() as connection:
        connection.execute(statement)


def captured_tables(captured: Captured) -> set[str]:
    return {table for table, record in captured.states().items() if record["status"] == "captured"}


def await_tables(captured: Captured, *tables: str) -> None:
    eventually(
        lambda: captured_tables(captured) == set(tables),
        60.0,
        lambda: f"{tables} are captured, not {captured.states()}; it said:\n{captured.running().said()}",
    )


def test_tables_join_and_leave_while_capture_runs(matched: Captured) -> None:
    capture = matched.start()
    capture.await_said("streaming")
    with psycopg.connect(matched.dsn) as creating:
        creating.execute("CREATE TABLE fresh (id int PRIMARY KEY, name text)")
        creating.execute("INSERT INTO fresh SELECT n, 'with it' FROM generate_series(1, 50) AS n")
        creating.commit()
        creating.execute("CREATE TABLE no_key (name text)")
        creating.execute("CREATE VIEW shown AS SELECT * FROM fresh")
        creating.commit()
    matched.query("INSERT INTO fresh VALUES (51, 'behind it'); CREATE TABLE foreign_owned (id int PRIMARY KEY)")
    await_tables(matched, ITEMS, FRESH)
    eventually(lambda: "public.foreign_owned" in matched.states(), 60.0, "its owner is to add it")
    assert "ALTER PUBLICATION" in matched.states()["public.foreign_owned"]["next"]
    assert "no key" in matched.states()["public.no_key"]["message"]
    assert "public.shown" not in matched.states()
    matched.query("INSERT INTO fresh VALUES (52, 'streamed'); UPDATE fresh SET name = 'changed' WHERE id = 1")
    matched.await_caught_up()
    assert matched.unlike([ITEMS, FRESH]) == {}
    matched.query("DROP TABLE no_key, foreign_owned; ALTER TABLE items RENAME TO renamed")
    await_tables(matched, FRESH, RENAMED)
    assert matched.states().keys() == {FRESH, RENAMED}
    matched.await_caught_up()
    matched.tables = [FRESH, RENAMED]
    assert matched.unlike([FRESH, RENAMED]) == {}
    assert capture.exit_code is None
    assert "Traceback" not in capture.said()


def test_a_file_is_taken_up_without_a_restart_unless_it_has_a_mistake(matched: Captured) -> None:
    create(matched, "CREATE TABLE later (id int PRIMARY KEY, name text); INSERT INTO later VALUES (1, 'a'), (2, 'b')")
    matched.tables = [ITEMS, LATER]
    matched.query("CREATE PUBLICATION watershed FOR ALL TABLES WITH (publish_via_partition_root = true)")
    # Threads of the HTTP server must not get the signal.
    matched.settings = {"source": {"tables": [ITEMS]}, "http": {"port": free_port()}}
    capture = matched.start()
    capture.await_said("streaming")
    await_tables(matched, ITEMS)

    def asked(**source: object) -> tuple[bool, str]:
        matched.settings = {"source": source}
        matched.config()
        answer = matched.ask("reload")
        return answer.is_accepted, answer.message

    is_accepted, why = asked(tables=[ITEMS, "public.nowhere"])
    assert (is_accepted, "public.nowhere does not exist: the configuration in force stays" in why) == (False, True)
    is_accepted, why = asked(tables=[ITEMS], slot="another")
    assert (is_accepted, "source.slot can't change while capture runs" in why) == (False, True)
    is_accepted, why = asked(tables=[ITEMS], exclude_columns=["public.items.name"])
    assert (is_accepted, "was published before" in why) == (False, True)
    is_accepted, why = asked(tables=["nothing.*"])
    assert (is_accepted, "no table matches nothing.*" in why) == (False, True)
    assert asked(tables=[ITEMS]) == (True, "nothing has changed for capture")
    assert captured_tables(matched) == {ITEMS}
    assert asked(tables=[ITEMS, "public.l*"]) == (True, "public.later joins")
    await_tables(matched, ITEMS, LATER)
    matched.query("INSERT INTO later VALUES (3, 'c')")
    matched.await_caught_up()
    assert matched.unlike([ITEMS, LATER]) == {}
    matched.settings = {"source": {"tables": ["public.*"], "exclude_tables": [ITEMS], "new_tables": "stop"}}
    matched.config()
    capture.signal(signal.SIGHUP)
    await_tables(matched, LATER)
    create(matched, "CREATE TABLE new (id int PRIMARY KEY); INSERT INTO new VALUES (1), (2)")
    eventually(lambda: "public.new" in matched.states(), 60.0, "the new table is stopped")
    assert matched.states()["public.new"]["is_held"]
    assert matched.ask("start_table", tables=["public.new"]).is_accepted
    create(matched, "INSERT INTO new VALUES (3); DELETE FROM new WHERE id = 1")
    await_tables(matched, LATER, "public.new")
    create(matched, "INSERT INTO new VALUES (4)")
    matched.tables = [LATER, "public.new"]
    matched.await_caught_up()
    assert matched.unlike([LATER, "public.new"]) == {}
    assert capture.said().count("source checked") == 1, "one process"
