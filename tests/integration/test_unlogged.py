"""Changes that are not in the log or not published, undone before capture looks at the catalog: under a publication
that does not name the table, its rows are read again."""

from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import pytest

from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

WIDE, NARROW = "public.wide", "public.narrow"
TABLES: LiteralString = (
    "CREATE TABLE wide (id int PRIMARY KEY, name text); CREATE TABLE narrow (id int PRIMARY KEY, n int);"
    "CREATE SCHEMA aside; GRANT ALL ON SCHEMA aside TO PUBLIC"
)
UNLOGGED: LiteralString = """
ALTER TABLE wide SET UNLOGGED; ALTER TABLE narrow SET UNLOGGED;
INSERT INTO wide SELECT n, 'bulk' FROM generate_series(1000, 1099) n; UPDATE wide SET name = 'bulk' WHERE id < 5;
DELETE FROM wide WHERE id = 10; INSERT INTO narrow VALUES (1000, 0); DELETE FROM narrow WHERE id = 1;
ALTER TABLE wide SET LOGGED; ALTER TABLE narrow SET LOGGED
"""
MOVED: LiteralString = """
ALTER TABLE wide SET SCHEMA aside; ALTER TABLE narrow SET SCHEMA aside;
UPDATE aside.wide SET name = 'aside' WHERE id < 5; DELETE FROM aside.narrow WHERE id = 1;
ALTER TABLE aside.wide SET SCHEMA public; ALTER TABLE aside.narrow SET SCHEMA public
"""


@pytest.fixture
def both(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """Tables with ten rows each, one of them without large values."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [WIDE, NARROW]) as made:
        made.query("DROP SCHEMA judge CASCADE")  # its triggers would follow the tables
        made.query("INSERT INTO wide SELECT n, 'old' FROM generate_series(1, 10) n")
        made.query("INSERT INTO narrow SELECT n, n FROM generate_series(1, 10) n")
        yield made


def publish(captured: Captured, what: LiteralString) -> None:
    captured.query("CREATE PUBLICATION watershed " + what + " WITH (publish_via_partition_root)")


def await_same(captured: Captured) -> None:
    tables = [WIDE, NARROW]
    eventually(
        lambda: not captured.unfinished() and not captured.unlike(tables),
        90.0,
        lambda: f"{captured.unlike(tables)}\n{captured.running().said()}",
    )


@pytest.mark.promise(4)
@pytest.mark.parametrize("published", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "asleep"])
def test_rows_that_changed_while_their_table_was_unlogged_are_read_again(
    both: Captured, published: LiteralString, is_running: bool
) -> None:
    publish(both, published)
    capture = both.start()
    both.await_caught_up()
    if not is_running:
        assert capture.terminate() == 0
    both.query("BEGIN; " + UNLOGGED + "; COMMIT")
    both.query("INSERT INTO wide VALUES (3000, 'after')")
    if not is_running:
        both.start()
    await_same(both)
    assert "may have been unlogged meanwhile" in both.running().said()


@pytest.mark.promise(4)
def test_rows_that_changed_while_their_table_was_in_another_schema_are_read_again(both: Captured) -> None:
    publish(both, "FOR TABLES IN SCHEMA public")
    both.start()
    both.await_caught_up()
    both.query("BEGIN; " + MOVED + "; COMMIT")
    await_same(both)
    assert "it may not have been published" in both.running().said()


def test_a_named_table_that_is_rewritten_and_one_that_is_truncated_are_not_read_again(both: Captured) -> None:
    publish(both, "FOR TABLE narrow, TABLES IN SCHEMA aside")
    both.query("ALTER PUBLICATION watershed SET TABLE narrow, TABLES IN SCHEMA public")
    both.start()
    both.await_caught_up()
    before = both.snapshots()
    both.query("TRUNCATE wide; INSERT INTO wide VALUES (1, 'new')")
    both.query("VACUUM FULL narrow")

    def is_noticed() -> bool:
        """The next poll has seen the new files."""
        files = dict(both.query("SELECT 'public.' || relname, relfilenode::int8 FROM pg_class"))
        return all(both.states()[table]["facts"]["storage"][0]["file"] == files[table] for table in (WIDE, NARROW))

    eventually(is_noticed, 60.0, "both are noticed")
    both.await_caught_up()
    assert {t: r["request"] for t, r in both.snapshots().items()} == {t: r["request"] for t, r in before.items()}
    assert both.unlike([WIDE, NARROW]) == {}
