"""Large values read by key, on real servers: what counts, what is waited for, and what is not."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import LiteralString

import psycopg
import pytest

from cdc.config.settings import SourceConfig
from cdc.model.events import TableId, TableSchema
from cdc.ports.row_reader import FoundRows, RequestedRow, RowsRequest, Unreadable
from cdc.postgres.toast_reader import READ_S_MAX, PostgresRowReader
from tests.conftest import PostgresServer, new_database
from tests.support.chunk_reading import Source

PAGES = TableId("public", "pages")
MAKE: LiteralString = """
CREATE TABLE pages (part int, name text COLLATE "C", n int, body text, raw bytea, PRIMARY KEY (name, part));
ALTER TABLE pages ALTER body SET STORAGE EXTERNAL;
INSERT INTO pages SELECT n, 'page ' || n, 0, repeat(chr(64 + n), 5000), CASE n WHEN 2 THEN NULL ELSE '\\x00'::bytea END
  FROM generate_series(1, 9) AS n;
"""


@pytest.fixture
def source(postgres: PostgresServer) -> Iterator[Source]:
    with new_database(postgres) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        made = Source(postgres, dsn, connection)
        made.execute(MAKE)
        made.publish("pages")
        yield made


@contextmanager
def reading(source: Source) -> Iterator[tuple[PostgresRowReader, TableSchema]]:
    schema = source.schema(PAGES)
    config = SourceConfig(dsn=source.dsn, tables=(str(PAGES),))
    with closing(PostgresRowReader(config, source.publication(PAGES))) as reader:
        yield reader, schema


def wanted(schema: TableSchema, *numbers: int, xid: int = 0, columns: tuple[str, ...] = ("body", "raw")) -> RowsRequest:
    rows = tuple(RequestedRow((schema.topic, b"%d" % n), (f"page {n}", str(n)), xid, xid) for n in numbers)
    return RowsRequest(schema, columns, rows)


def nothing() -> None:
    """Nobody waits."""


def test_rows_are_read_by_their_keys_in_the_order_that_was_asked(source: Source) -> None:
    with reading(source) as (reader, schema):
        found = reader.read(wanted(schema, 9, 2, 77, 1), 1 << 20, nothing)
        assert isinstance(found, FoundRows)
        assert found.rows == ((b"I" * 5000, b"\\x00"), (b"B" * 5000, None), None, (b"A" * 5000, b"\\x00"))
        first = reader.read(wanted(schema, 9, 2, 1), 6_000, nothing)  # what does not fit is asked for again
        assert isinstance(first, FoundRows) and len(first.rows) == 1
        assert reader.read(wanted(schema, 1), 1, nothing) == reader.read(wanted(schema, 1), 1 << 20, nothing)


def test_the_snapshot_tells_what_is_not_visible_yet(source: Source) -> None:
    with reading(source) as (reader, schema), psycopg.connect(source.dsn) as writer:
        (xid,) = writer.execute("SELECT pg_current_xact_id()::text::int8").fetchone() or (0,)
        writer.execute("UPDATE pages SET body = 'new' WHERE part = 1")
        found = reader.read(wanted(schema, 1, xid=xid), 1 << 20, nothing)
        assert isinstance(found, FoundRows) and not found.snapshot.sees(xid)
        writer.commit()
        found = reader.read(wanted(schema, 1, xid=xid), 1 << 20, nothing)
        assert isinstance(found, FoundRows) and found.snapshot.sees(xid)
        assert found.rows == ((b"new", b"\\x00"),)


def test_what_is_read_is_flushed(source: Source) -> None:
    """The log's writer would take its time: visible is not durable."""
    flushed: LiteralString = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"
    with reading(source) as (reader, schema), source.superuser() as superuser:
        source.execute("SET synchronous_commit = off")
        superuser.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        superuser.execute("SELECT pg_reload_conf()")
        try:
            reader.read(wanted(schema, 1), 1 << 20, nothing)
            lazy = 0
            for number in range(5):
                source.execute("UPDATE pages SET body = %s WHERE part = 1", f"version {number}")
                [(lsn,)] = source.execute("SELECT pg_current_wal_insert_lsn()::text")
                lazy += source.execute(flushed, lsn) == [(False,)]
                found = reader.read(wanted(schema, 1, columns=("body",)), 1 << 20, nothing)
                assert isinstance(found, FoundRows) and found.rows == ((b"version %d" % number,),)
                assert source.execute(flushed, lsn) == [(True,)]
            assert lazy, "it was flushed anyway: this shows nothing"
        finally:
            superuser.execute("ALTER SYSTEM RESET wal_writer_delay")
            superuser.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE pages DROP COLUMN body",
        "ALTER TABLE pages ALTER body TYPE varchar",
        "DROP TABLE pages",
        "ALTER TABLE pages RENAME TO sheets",
        "ALTER TABLE pages RENAME body TO text",
    ],
)
def test_a_table_that_is_another_one_by_now_is_unreadable(source: Source, statement: LiteralString) -> None:
    with reading(source) as (reader, schema):
        assert isinstance(reader.read(wanted(schema, 1), 1 << 20, nothing), FoundRows)
        source.execute(statement)
        assert isinstance(reader.read(wanted(schema, 1), 1 << 20, nothing), Unreadable)


def test_rows_outside_the_publications_filter_are_not_there(source: Source) -> None:
    source.execute("ALTER TABLE pages REPLICA IDENTITY FULL")
    source.execute("ALTER PUBLICATION watershed SET TABLE pages WHERE (n < 5)")
    source.execute("UPDATE pages SET n = 7 WHERE part = 3")
    with reading(source) as (reader, schema):
        found = reader.read(wanted(schema, 3, 4), 1 << 20, nothing)
        assert isinstance(found, FoundRows) and [row is None for row in found.rows] == [True, False]


def test_a_locked_table_is_not_waited_for_and_is_read_when_it_is_free(source: Source) -> None:
    with reading(source) as (reader, schema), psycopg.connect(source.dsn) as locker:
        locker.execute("LOCK TABLE pages IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        assert reader.read(wanted(schema, 1), 1 << 20, nothing) is None
        assert time.monotonic() - began < 2.0
        locker.rollback()
        assert isinstance(reader.read(wanted(schema, 1), 1 << 20, nothing), FoundRows)


def test_a_server_that_hangs_is_waited_for_once_and_postgres_hears_from_us_meanwhile(source: Source) -> None:
    with reading(source) as (reader, schema):
        reader.read(wanted(schema, 1), 1 << 20, nothing)
        calls: list[float] = []
        (backend,) = source.backends()
        os.kill(backend, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert reader.read(wanted(schema, 1), 1 << 20, lambda: calls.append(time.monotonic())) is None
            assert reader.read(wanted(schema, 1), 1 << 20, nothing) is None
            assert time.monotonic() - began < READ_S_MAX + 3.0
        finally:
            os.kill(backend, signal.SIGCONT)
        assert len(calls) > 10
        answers = (reader.read(wanted(schema, 1), 1 << 20, nothing) for _ in range(20))
        assert any(isinstance(answer, FoundRows) for answer in answers)
