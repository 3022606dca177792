"""The reader of existing rows on real servers: what a chunk sees, what it refuses, and its marks."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.model.events import TableId
from cdc.ports.chunk_reader import ChunkRead, DescribeTable, ReadFailed, TableDescribed
from tests.conftest import PostgresServer, new_database
from tests.support.chunk_reading import Source, chunk, lines_of, nonce
from tests.support.waiting import eventually

THINGS = TableId("public", "things")
ROWS: LiteralString = (
    "CREATE TABLE things (id int PRIMARY KEY, v text);"
    " INSERT INTO things SELECT i, 'v' || i FROM generate_series(1, 20) i"
)


@pytest.fixture(params=["postgres", "postgres16"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    """A database with a published table of 20 rows."""
    server: PostgresServer = request.getfixturevalue(request.param)
    with new_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        made = Source(server, dsn, connection)
        made.execute(ROWS)
        made.publish("things")
        yield made


@contextmanager
def other_session(source: Source, dsn: str | None = None) -> Iterator[psycopg.Connection]:
    """With a transaction of its own, open."""
    with psycopg.connect(dsn or source.dsn) as connection:
        yield connection


def ids(*chunks: ChunkRead) -> list[int]:
    return [int(line.partition(b"\t")[0]) for line in lines_of(list(chunks))]


# ---- rows


def test_rows_that_come_and_go_between_chunks(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        first = reader.chunk(schema, begun, rows_max=5)
        source.execute("DELETE FROM things WHERE id IN (2, 5, 7); INSERT INTO things VALUES (0, 'new'), (21, 'new')")
        second = reader.chunk(schema, begun, rows_max=5, after=first.last)
        source.execute("DELETE FROM things WHERE id = 12")
        rest = reader.chunks(schema, begun, rows_max=5, after=second.last)
    assert ids(first) == [1, 2, 3, 4, 5]
    assert ids(second) == [6, 8, 9, 10, 11]
    assert ids(*rest) == [*range(13, 22)]
    assert [first.is_end, second.is_end, rest[-1].is_end] == [False, False, True]


def test_a_snapshot_tells_which_transactions_the_rows_do_not_show(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader, other_session(source) as other:
        begun = reader.begin(schema)
        other.execute("UPDATE things SET v = 'later' WHERE id = 1")
        (xid,) = other.execute("SELECT pg_current_xact_id()::text::int8").fetchone() or (0,)
        before = reader.chunk(schema, begun, rows_max=1)
        other.commit()
        after = reader.chunk(schema, begun, rows_max=1)
    assert (before.lines, before.snapshot.sees(xid)) == ((b"1\tv1",), False)
    assert (after.lines, after.snapshot.sees(xid)) == ((b"1\tlater",), True)


def test_an_empty_table_is_at_its_end(source: Source) -> None:
    source.execute("DELETE FROM things")
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        read = reader.chunk(schema, reader.begin(schema, ranges=4))
    assert (read.lines, read.last, read.is_end) == ((), None, True)


def test_a_condition_and_the_publications_row_filter_both_count(source: Source) -> None:
    source.execute("ALTER PUBLICATION watershed SET TABLE things WHERE (id % 2 = 0)")
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        assert ids(*reader.chunks(schema, begun, rows_max=3)) == [*range(2, 21, 2)]
        some = reader.chunks(schema, begun, rows_max=2, where="id < 5 OR v = 'v16' -- '")
        assert ids(*some) == [2, 4, 16]


def test_a_chunk_of_wide_rows_ends_at_its_bytes_and_has_one_row_at_least(source: Source) -> None:
    source.execute("UPDATE things SET v = repeat('x', 400); UPDATE things SET v = repeat('y', 5000) WHERE id = 7")
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        chunks = reader.chunks(schema, begun, rows_max=10, bytes_max=1024)
    assert [ids(read) for read in chunks[:5]] == [[1, 2], [3, 4], [5, 6], [7], [8, 9]]
    assert ids(*chunks) == [*range(1, 21)]
    assert [read.is_end for read in chunks] == [False] * (len(chunks) - 1) + [True]


def test_much_more_than_a_chunk_holds_is_not_received(source: Source) -> None:
    source.execute("UPDATE things SET v = repeat('x', 1000000)")
    schema = source.schema(THINGS)
    with source.reader(schema) as reader, source.slot() as slot:
        begun = reader.begin(schema)
        before = source.backends()
        asked = chunk(schema, begun.fingerprint, bytes_max=3_000_000)
        read = reader.ask(asked)
        assert isinstance(read, ChunkRead)
        assert (ids(read), read.is_end, read.last) == ([1, 2], False, ("2",))
        eventually(lambda: asked.nonce in source.watermarks(slot))
        assert source.backends() != before  # another connection: the rest was not waited for
        assert reader.answers(asked.nonce) == [read]


def test_a_large_table_is_split_into_ranges_of_about_the_same_size(source: Source) -> None:
    source.execute("INSERT INTO things SELECT i * 7, 'v' FROM generate_series(100, 20099) i; ANALYZE things")
    schema = source.schema(THINGS)
    with source.reader(schema, split_rows_min=10_000, workers=2) as reader:
        begun = reader.begin(schema, ranges=4)
        assert 18_000 < begun.rows_estimated < 22_000
        assert 20 < begun.row_bytes < 200
        edges = [None, *begun.bounds, None]
        assert len(edges) == 5
        parts = [
            ids(*reader.chunks(schema, begun, rows_max=5_000, after=low, up_to=high)) for low, high in pairwise(edges)
        ]
        assert reader.begin(schema, ranges=1).bounds == ()
    assert [row for part in parts for row in part] == [*range(1, 21), *(i * 7 for i in range(100, 20100))]
    assert all(3_000 < len(part) < 7_000 for part in parts)


def test_a_partitioned_table_is_estimated_and_split_as_a_whole(source: Source) -> None:
    source.execute(
        """CREATE TABLE parts (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
        CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2024-01-01') TO ('2024-07-01');
        CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM ('2024-07-01') TO ('2025-01-01');
        INSERT INTO parts SELECT i, '2024-01-01'::date + i % 366 FROM generate_series(1, 4000) i; ANALYZE parts;
        ALTER PUBLICATION watershed ADD TABLE parts"""
    )
    schema = source.schema(TableId("public", "parts"))
    with source.reader(schema, split_rows_min=1_000) as reader:
        begun = reader.begin(schema, ranges=3)
        edges = [None, *begun.bounds, None]
        parts = [ids(*reader.chunks(schema, begun, after=low, up_to=high)) for low, high in pairwise(edges)]
    assert begun.rows_estimated == 4000
    assert [row for part in parts for row in part] == [*range(1, 4001)]
    assert len(parts) == 3
    assert all(800 < len(part) < 2_000 for part in parts)


def test_chunks_of_several_ranges_are_read_at_once(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema, workers=3) as reader, other_session(source) as other:
        begun = reader.begin(schema)
        other.execute("LOCK TABLE things IN ACCESS EXCLUSIVE MODE")
        asked = [reader.send(chunk(schema, begun.fingerprint, after=(str(low),), rows_max=2)) for low in (0, 5, 10)]
        eventually(lambda: len(source.backends("Lock")) == 3)
        other.rollback()
        answers = [reader.wait(nonce) for nonce in asked]
    assert [ids(read) for read in answers if isinstance(read, ChunkRead)] == [[1, 2], [6, 7], [11, 12]]


# ---- tables that change


def test_a_chunk_that_waited_behind_truncate_knows_it(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader, other_session(source) as other:
        begun = reader.begin(schema)
        other.execute("TRUNCATE things")
        (xid,) = other.execute("SELECT pg_current_xact_id()::text::int8").fetchone() or (0,)
        asked = reader.send(chunk(schema, begun.fingerprint))
        eventually(lambda: source.backends("Lock"))
        other.commit()
        read = reader.wait(asked)
    assert isinstance(read, ChunkRead)
    assert (read.lines, read.is_end) == ((), True)
    assert read.snapshot.sees(xid), "an empty table whose emptiness the engine does not expect"


@pytest.mark.parametrize(
    ("alteration", "message"),
    [
        ("ALTER TABLE things ADD COLUMN more int", "column more was added"),
        ("ALTER TABLE things DROP COLUMN v", "column v was dropped"),
        ("ALTER TABLE things RENAME v TO w", "column w was added"),
        ("ALTER TABLE things ALTER v TYPE varchar(9)", "has type oid"),
        ("ALTER TABLE things DROP CONSTRAINT things_pkey, ADD PRIMARY KEY (id, v)", "its key is (id, v)"),
        ("ALTER TABLE things RENAME TO others", "no longer exists"),
    ],
)
def test_an_altered_table_is_read_no_further(source: Source, alteration: LiteralString, message: str) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        first = reader.chunk(schema, begun, rows_max=5)
        source.execute(alteration)
        chunk_failed = reader.fail(chunk(schema, begun.fingerprint, after=first.last))
        begin_failed = reader.fail(DescribeTable(nonce(), schema, 1))
    assert not chunk_failed.is_permanent, "who follows the catalog will tell the reader of another shape"
    assert not begin_failed.is_permanent
    assert "public.things" in begin_failed.error.message
    assert message in begin_failed.error.message
    assert begin_failed.error.hint


def test_a_table_that_was_created_anew_is_another_one(source: Source) -> None:
    with source.superuser() as superuser:
        superuser.execute("DROP PUBLICATION watershed; CREATE PUBLICATION watershed FOR ALL TABLES")
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        source.execute("DROP TABLE things; CREATE TABLE things (id int PRIMARY KEY, v text)")
        assert not reader.fail(chunk(schema, begun.fingerprint)).is_permanent
        failure = reader.fail(DescribeTable(nonce(), schema, 1))
    assert not failure.is_permanent
    assert "the table was recreated" in failure.error.message


def test_an_altered_publication_is_left_to_those_who_watch_it(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        source.execute("ALTER PUBLICATION watershed SET TABLE things (id)")
        failure = reader.fail(DescribeTable(nonce(), schema, 1))
    assert not failure.is_permanent
    assert "publication watershed was altered" in failure.error.message


def test_a_new_look_heals_what_does_not_matter(source: Source) -> None:
    source.execute("ALTER PUBLICATION watershed SET TABLE things (id)")
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        before = reader.begin(schema)
        source.execute("ALTER TABLE things ADD COLUMN unpublished int")
        assert not reader.fail(chunk(schema, before.fingerprint)).is_permanent
        after = reader.begin(schema)
        assert reader.chunk(schema, after, rows_max=2).lines == (b"1", b"2")


def test_truncate_and_vacuum_full_do_not_alter_a_table(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        source.execute("TRUNCATE things")
        source.execute("VACUUM FULL things")
        source.execute("REINDEX TABLE CONCURRENTLY things")
        source.execute("INSERT INTO things VALUES (5, 'x')")
        assert ids(reader.chunk(schema, begun)) == [5]


def test_a_table_that_stays_locked_is_asked_for_again(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader, other_session(source) as other:
        begun = reader.begin(schema)
        other.execute("LOCK TABLE things IN ACCESS EXCLUSIVE MODE")
        failure = reader.fail(chunk(schema, begun.fingerprint))
        other.rollback()
        assert not failure.is_permanent
        assert "public.things is locked" in failure.error.message
        assert ids(reader.chunk(schema, begun, rows_max=1)) == [1]


# ---- what is refused


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("nosuch = 1", 'column "nosuch" does not exist'),
        ("id >", "syntax error"),
        ("v", "boolean"),
        ("id = 'x'", "invalid input syntax for type integer"),
        ("v::int > 0", "22P02"),
        ("true) OR (true", "syntax error"),
        ("id > 0 LIMIT 1", "syntax error"),
        ("true; DROP TABLE things", "multiple commands"),
        ("true)) TO STDOUT; DROP TABLE things; COPY (SELECT 1 AS id WHERE (true", "syntax error"),
    ],
)
def test_a_condition_that_is_wrong_ends_the_snapshot(source: Source, where: str, message: str) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        failure = reader.fail(chunk(schema, begun.fingerprint, where=where))
        assert failure.is_permanent
        assert message in failure.error.message
        assert "v1" not in failure.error.message, "a row's value"
        assert len(ids(reader.chunk(schema, begun))) == 20


@contextmanager
def reader_role(source: Source) -> Iterator[tuple[str, str]]:
    """(DSN, name) of a role that may read the table, and nothing else."""
    name = f"r{nonce()[:12]}"
    with source.superuser() as superuser:
        role = sql.Identifier(name)
        superuser.execute(sql.SQL("CREATE ROLE {} LOGIN; GRANT SELECT ON things TO {}").format(role, role))
        try:
            yield make_conninfo(source.dsn, user=name), name
        finally:
            superuser.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(role, role))


def test_rights_that_are_missing_are_named(source: Source) -> None:
    schema = source.schema(THINGS)
    with reader_role(source) as (dsn, role), source.reader(schema, dsn=dsn) as reader:
        begun = reader.begin(schema)
        source.execute(sql.SQL("REVOKE SELECT ON things FROM {}").format(sql.Identifier(role)))
        for request in (DescribeTable(nonce(), schema, 1), chunk(schema, begun.fingerprint)):
            failure = reader.fail(request)
            assert failure.is_permanent
            assert "GRANT SELECT ON public.things" in failure.error.hint


def test_row_security_is_not_read_past(source: Source) -> None:
    schema = source.schema(THINGS)
    source.execute("ALTER TABLE things ENABLE ROW LEVEL SECURITY")
    with reader_role(source) as (dsn, _), source.reader(schema, dsn=dsn) as reader:
        failure = reader.fail(DescribeTable(nonce(), schema, 1))
    assert failure.is_permanent
    assert "row security" in failure.error.message


def test_a_role_that_may_write_no_marks_is_told_so(source: Source) -> None:
    schema = source.schema(THINGS)
    is_old = source.connection.info.server_version < 170_000
    function = "boolean, text, text" if is_old else "boolean, text, text, boolean"
    with source.superuser() as superuser:
        superuser.execute(f"REVOKE EXECUTE ON FUNCTION pg_logical_emit_message({function}) FROM PUBLIC".encode())
    with source.reader(schema) as reader:
        asked = reader.send(DescribeTable(nonce(), schema, 1))
        failure = eventually(lambda: [a for a in reader.answers(asked) if isinstance(a, ReadFailed)])[0]
    assert failure.is_permanent
    assert "GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(" in failure.error.hint


# ---- marks


def test_a_mark_is_in_the_log_after_its_answer(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader, source.slot() as slot:
        asked = DescribeTable(nonce(), schema, 1)
        begun = reader.ask(asked)
        assert isinstance(begun, TableDescribed)
        eventually(lambda: source.watermarks(slot) == [asked.nonce])
        read = chunk(schema, begun.fingerprint)
        reader.ask(read)
        eventually(lambda: source.watermarks(slot) == [read.nonce])
        eventually(lambda: reader.passed == ["chunk.read", "chunk.marked"])
        assert reader.fail(chunk(schema, "another shape")).is_permanent is False
        assert source.watermarks(slot) == []


def test_an_answer_is_there_before_its_mark_is_written(source: Source) -> None:
    schema = source.schema(THINGS)
    seen: list[tuple[list[str], list[str]]] = []

    def chunk_table(name: str) -> None:
        if name == "chunk.read":
            answered = [answer.nonce for answer in reader.reader.answers()]
            seen.append((answered, source.watermarks(slot)))

    with source.reader(schema, at=chunk_table) as reader, source.slot() as slot:
        begun = reader.begin(schema)
        eventually(lambda: len(source.watermarks(slot)) == 1)
        asked = reader.send(chunk(schema, begun.fingerprint))
        eventually(lambda: source.watermarks(slot) == [asked])
    assert seen == [([asked], [])]


def test_a_lost_connection_is_made_again(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader:
        begun = reader.begin(schema)
        reader.chunk(schema, begun)
        eventually(lambda: "chunk.marked" in reader.passed)
        before = source.backends()
        for pid in before:
            source.execute("SELECT pg_terminate_backend(%s)", pid)
        eventually(lambda: not set(source.backends()) & set(before))
        lost = reader.fail(chunk(schema, begun.fingerprint))
        assert not lost.is_permanent
        assert ids(reader.chunk(schema, begun, rows_max=1)) == [1]


def test_a_mark_that_was_not_written_fails_what_was_answered(source: Source) -> None:
    schema = source.schema(THINGS)

    def kill(name: str) -> None:
        if name == "chunk.read":
            for pid in source.backends("idle in transaction"):
                source.execute("SELECT pg_terminate_backend(%s, 5000)", pid)

    with source.reader(schema, at=kill) as reader, source.slot() as slot:
        begun = reader.begin(schema)
        eventually(lambda: len(source.watermarks(slot)) == 1)
        asked = chunk(schema, begun.fingerprint)
        assert isinstance(reader.ask(asked), ChunkRead)
        failure = eventually(lambda: reader.answers(asked.nonce)[1:])[0]
        assert isinstance(failure, ReadFailed)
        assert not failure.is_permanent
        assert source.watermarks(slot) == []
