"""A database that moves by logical replication (blue/green) while applications write and sinks run: stop capture, let
it read the new server, `cdc source move`, and go on."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.kafka.state_reader import read_captured
from cdc.model.events import TableId
from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.faults.published import Published
from tests.integration.conftest import ITEMS, SMALL
from tests.support.captured import Captured, under_capture
from tests.support.sink_job import SinkJob
from tests.support.standby_servers import Writer
from tests.support.stores import stored_rows
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

STORES: Final = ("cache", "sql")
ROWS: Final = 20_000
WRITTEN: Final = range(997, 1_400)  # the keys that a Writer writes
FILL: LiteralString = "INSERT INTO items SELECT -n, 'name ' || n FROM generate_series(1, %s) AS n"
NOT_COPIED: LiteralString = "SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r'"
REPLAYED: LiteralString = "SELECT 1 FROM pg_stat_replication WHERE application_name = %s AND replay_lsn >= %s"


@pytest.fixture
def blue(
    postgres16: PostgresServer,
    kafka: KafkaBroker,
    redis: str,
    fresh_database16: str,
    fresh_database: str,
    unique: str,
    tmp_path: Path,
) -> Iterator[Captured]:
    """A table on PostgreSQL 16, captured; two stores are configured."""
    with under_capture(postgres16, kafka, fresh_database16, unique, tmp_path, SMALL, [ITEMS]) as made:
        made.settings = {
            "sinks": {"cache": {"url": redis}, "sql": {"type": "sql", "url": url_of(fresh_database)}},
            "spark": {"checkpoint_location": str(tmp_path / "checkpoints"), "options": INTERPRETED},
        }
        made.query(FILL, ROWS)
        made.start()
        made.await_caught_up()
        yield made


class Green:
    """The same table on PostgreSQL 18, by a subscription to `blue`."""

    def __init__(self, blue: Captured, server: PostgresServer, dsn: str) -> None:
        self.dsn = dsn
        self.superuser_dsn = make_conninfo(server.superuser_dsn, dbname=str(conninfo_to_dict(dsn)["dbname"]))
        self._blue = blue.superuser_dsn
        self._name = f"to_{blue.name}"

    def query(self, statement: LiteralString | sql.Composed, *, at: str = "") -> list[tuple[Any, ...]]:
        with psycopg.connect(at or self.superuser_dsn, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def subscribed(self) -> Iterator[None]:
        """All rows are copied, and changes follow. At the end there is no subscription."""
        name = sql.Identifier(self._name)
        self.query(sql.SQL("CREATE PUBLICATION {} FOR TABLE items, other").format(name), at=self._blue)
        create = "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {}"
        self.query(sql.SQL(create).format(name, sql.Literal(self._blue), name))
        try:
            eventually(lambda: not self.query(NOT_COPIED), 60.0, "all rows are copied")
            yield
        finally:
            with suppress(psycopg.errors.UndefinedObject):
                self.unsubscribe()

    def unsubscribe(self) -> None:
        self.query(sql.SQL("DROP SUBSCRIPTION {}").format(sql.Identifier(self._name)))

    def await_replayed(self) -> None:
        """Everything that was written to blue until now is here."""
        with psycopg.connect(self._blue, autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
            assert row is not None
            given = self._name, row[0]
            eventually(lambda: connection.execute(REPLAYED, given).fetchone(), 60.0, "the subscriber has caught up")

    def rows(self) -> dict[int, str]:
        return {int(number): str(name) for number, name in self.query("SELECT id, name FROM items")}


@pytest.fixture
def green(postgres: PostgresServer, blue: Captured) -> Iterator[Green]:
    with new_database(postgres) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(SMALL)
        made = Green(blue, postgres, dsn)
        with made.subscribed():
            yield made


def move(captured: Captured, green: Green) -> None:
    """Capture, which has ended, continues with the new server."""
    captured.dsn, captured.superuser_dsn = green.dsn, green.superuser_dsn
    captured.start().await_said("state GAP")
    assert f"{ITEMS}: done" in captured.cdc("source", "move")


def in_stores(captured: Captured, job: SinkJob) -> dict[str, dict[int, str]]:
    """What each store shows, when it has applied all that is committed now."""
    captured.await_caught_up()
    job.wait_applied(captured.progress(), *STORES)
    schema = read_captured(job.config).schemas[TableId.parse(ITEMS)]
    return {
        store: {int(row.row["id"]): str(row.row["name"]) for row in stored_rows(job.config, store, schema)}
        for store in STORES
    }


@pytest.mark.promise(1)
@pytest.mark.promise(4)
def test_sinks_run_on_while_the_database_moves_under_writes_and_nothing_is_lost(blue: Captured, green: Green) -> None:
    published = Published(blue)
    with SinkJob(blue.config(), *STORES, log_level="info") as job, Writer(blue.dsn, 100.0) as writer:
        job.wait_applied(blue.progress(), *STORES)
        generations = {store: job.record(store).generation for store in STORES}  # type: ignore[union-attr]
        blue.cdc("source", "move", "--check", "--to", green.dsn)
        assert blue.running().terminate() == 0
        move(blue, green)
        # Applications still write to blue: the subscription brings it, as changes of the new server.
        count = writer.count
        eventually(lambda: writer.count > count + 200, 60.0, "changes are written to the former server")
        with writer.paused():
            green.await_replayed()
            green.unsubscribe()
            with Writer(green.dsn, 100.0) as there:
                eventually(lambda: there.count > 200, 60.0, "changes are written to the new server")
            rows = green.rows()
            assert in_stores(blue, job) == dict.fromkeys(STORES, rows)
        assert {store: job.record(store).generation for store in STORES} == generations  # type: ignore[union-attr]
    published.await_rows(rows)
    published.close()
    assert blue.epoch() == 2
    again = {int(change.key["id"]) for change in blue.changes() if change.epoch == 2 and not change.is_streamed}
    assert again <= set(WRITTEN), "rows that nobody has written were published again"
    assert blue.unlike([ITEMS]) == {}


@pytest.mark.promise(4)
def test_what_is_written_to_the_new_server_while_capture_and_sinks_are_down_arrives(
    blue: Captured, green: Green
) -> None:
    with SinkJob(blue.config(), *STORES, log_level="info") as job:
        job.wait_applied(blue.progress(), *STORES)
    assert blue.running().terminate() == 0
    blue.query("UPDATE items SET name = 'not received' WHERE id = -100")  # by the subscription alone
    green.await_replayed()
    green.unsubscribe()
    green.query("UPDATE items SET name = 'while down' WHERE id BETWEEN -50 AND -1")
    green.query("DELETE FROM items WHERE id BETWEEN -60 AND -51")
    move(blue, green)
    with SinkJob(blue.config(), *STORES, log_level="info") as job:
        assert in_stores(blue, job) == dict.fromkeys(STORES, green.rows())
    again = sorted(int(change.key["id"]) for change in blue.changes() if change.epoch == 2)
    assert again == [-100, *range(-60, 0)], "these rows differ, and no other"
