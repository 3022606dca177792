"""Tables that patterns take while capture runs: created, renamed, dropped, and a configuration that is read again."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.waiting import eventually

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
    matched.query("INSERT INTO fresh VALUES (51, 'behind it')")
    await_tables(matched, ITEMS, FRESH)
    assert "no key" in matched.states()["public.no_key"]["message"]
    assert "public.shown" not in matched.states()
    matched.query("INSERT INTO fresh VALUES (52, 'streamed'); UPDATE fresh SET name = 'changed' WHERE id = 1")
    matched.await_caught_up()
    assert matched.unlike([ITEMS, FRESH]) == {}
    matched.query("DROP TABLE no_key; ALTER TABLE items RENAME TO renamed")
    await_tables(matched, FRESH, RENAMED)
    assert matched.states().keys() == {FRESH, RENAMED}
    matched.await_caught_up()
    matched.tables = [FRESH, RENAMED]
    assert matched.unlike([FRESH, RENAMED]) == {}
    assert capture.exit_code is None
    assert "Traceback" not in capture.said()
