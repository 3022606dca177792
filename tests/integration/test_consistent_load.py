"""All rows at one point in time."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConnectionLost, SourceError
from cdc.model.events import TableId, TableSchema
from cdc.postgres.catalog import read_table
from cdc.postgres.exported_snapshot import SnapshotReader
from tests.conftest import PostgresServer
from tests.support.waiting import eventually

ROWS = 3_000
FLAT, PARTED = TableId("public", "flat"), TableId("public", "parted")


@pytest.fixture
def connection(fresh_database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(fresh_database, autocommit=True) as made:
        made.execute("CREATE TABLE flat (id int PRIMARY KEY, name text)")
        made.execute("CREATE TABLE heir () INHERITS (flat)")
        made.execute("INSERT INTO heir VALUES (-1, 'of a table that inherits')")
        made.execute("CREATE TABLE parted (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
        made.execute("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (1000)")
        made.execute("CREATE TABLE high (name text, gone int, id int NOT NULL)")
        made.execute("ALTER TABLE high DROP COLUMN gone")
        made.execute("ALTER TABLE parted ATTACH PARTITION high FOR VALUES FROM (1000) TO (100000)")
        for table in ("flat", "parted"):
            made.execute(
                sql.SQL("INSERT INTO {} SELECT n, 'tab\t' || n FROM generate_series(1, %s::int) AS n").format(
                    sql.Identifier(table)
                ),
                [ROWS],
            )
        yield made


def reader_at_now(dsn: str, exporter: psycopg.Connection) -> SnapshotReader:
    """`exporter` holds the snapshot."""
    exporter.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    row = exporter.execute("SELECT pg_export_snapshot()").fetchone()
    assert row
    source = SourceConfig(dsn=SecretStr(dsn), tables=("public.flat", "public.parted"))
    return SnapshotReader(source, row[0])


def schema_of(connection: psycopg.Connection, table: TableId) -> TableSchema:
    found = read_table(connection, table, None)
    return TableSchema(table, 1, found.oid, found.columns, found.key, "topic")


def test_every_row_comes_once_as_of_the_snapshot(fresh_database: str, connection: psycopg.Connection) -> None:
    with (
        psycopg.connect(fresh_database, autocommit=True) as exporter,
        closing(reader_at_now(fresh_database, exporter)) as reader,
    ):
        connection.execute("DELETE FROM flat WHERE id % 2 = 0")
        connection.execute("UPDATE parted SET name = 'later'")
        connection.execute("INSERT INTO flat VALUES (100000, 'later')")
        for table in (FLAT, PARTED):
            lines = list(reader.lines(schema_of(connection, table), row_filter=None))
            assert sorted(lines) == sorted(b"%d\ttab\\t%d" % (n, n) for n in range(1, ROWS + 1))


def test_a_row_filter_holds_in_every_part(fresh_database: str, connection: psycopg.Connection) -> None:
    with (
        psycopg.connect(fresh_database, autocommit=True) as exporter,
        closing(reader_at_now(fresh_database, exporter)) as reader,
    ):
        lines = reader.lines(schema_of(connection, PARTED), row_filter="(id > 5) OR (id = 1)")
        assert len(list(lines)) == ROWS - 4


def test_partitions_that_may_be_read_only_through_their_root(
    fresh_database: str, connection: psycopg.Connection, postgres: PostgresServer, unique: str
) -> None:
    with psycopg.connect(postgres.superuser_dsn, dbname=connection.info.dbname, autocommit=True) as superuser:
        superuser.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(unique)))
        superuser.execute(sql.SQL("GRANT SELECT ON flat, parted TO {}").format(sql.Identifier(unique)))
        try:
            limited = psycopg.conninfo.make_conninfo(fresh_database, user=unique)
            with (
                psycopg.connect(fresh_database, autocommit=True) as exporter,
                closing(reader_at_now(limited, exporter)) as reader,
            ):
                assert len(list(reader.lines(schema_of(connection, PARTED), row_filter=None))) == ROWS
        finally:
            superuser.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(unique)))


def test_what_postgresql_refuses_is_said(fresh_database: str, connection: psycopg.Connection) -> None:
    with (
        psycopg.connect(fresh_database, autocommit=True) as exporter,
        closing(reader_at_now(fresh_database, exporter)) as reader,
        pytest.raises(SourceError, match=r"rows of table public\.flat can't be read: .*zero"),
    ):
        list(reader.lines(schema_of(connection, FLAT), row_filter="id / 0 = 1"))


def test_a_server_that_goes_away_is_lost(fresh_database: str, connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO flat SELECT n, 'more than is on its way' FROM generate_series(10000, 1000000) AS n")
    with (
        psycopg.connect(fresh_database, autocommit=True) as exporter,
        closing(reader_at_now(fresh_database, exporter)) as reader,
    ):
        lines = reader.lines(schema_of(connection, FLAT), row_filter=None)
        assert next(lines)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'watershed load'"
        )
        with pytest.raises((ConnectionLost, SourceError)):
            list(lines)


def test_an_alter_that_waits_for_the_load_is_not_waited_for(
    fresh_database: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It queues behind the locks under which the slot is made, and our own would queue behind it: for ever."""
    monkeypatch.setattr("cdc.postgres.exported_snapshot.OWN_LOCK_WAIT_S", 1)
    with (
        psycopg.connect(fresh_database) as locks,
        psycopg.connect(fresh_database, autocommit=True) as exporter,
        psycopg.connect(fresh_database) as altering,
    ):
        locks.execute("LOCK TABLE flat, parted IN ACCESS SHARE MODE")
        altering.execute("SET lock_timeout = '30s'")
        altering.pgconn.send_query(b"ALTER TABLE flat ADD COLUMN more int")
        altering.pgconn.flush()
        waits = "SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
        eventually(lambda: connection.execute(waits).fetchone(), 10)
        with pytest.raises(ConnectionLost, match="are in a deadlock"):
            reader_at_now(fresh_database, exporter)
        altering.cancel()
        altering.close()
