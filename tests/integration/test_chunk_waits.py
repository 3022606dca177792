"""What the reader of existing rows waits for, what it does not, and that it ends when it is told."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import LiteralString

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from structlog.testing import capture_logs

from cdc.model.events import TableId
from cdc.ports.chunk_reader import BarrierPassed, ChunkRead, TransactionBarrier
from cdc.postgres.transaction_barrier import QUIET_S
from tests.conftest import PostgresServer, new_database
from tests.support.captured import frozen
from tests.support.chunk_reading import Source, chunk, nonce
from tests.support.waiting import eventually

THINGS = TableId("public", "things")
ROWS: LiteralString = (
    "CREATE TABLE things (id int PRIMARY KEY, v text); INSERT INTO things VALUES (1, 'old'), (2, 'old')"
)
XID: LiteralString = "SELECT pg_current_xact_id()::text::int8"
CLOSE_S_MAX = 2.0


@contextmanager
def source_of(server: PostgresServer) -> Iterator[Source]:
    with new_database(server) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        made = Source(server, dsn, connection)
        made.execute(ROWS)
        made.publish("things")
        yield made


@pytest.fixture(params=["postgres", "postgres16"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    with source_of(request.getfixturevalue(request.param)) as made:
        yield made


@pytest.fixture
def source18(postgres: PostgresServer) -> Iterator[Source]:
    with source_of(postgres) as made:
        yield made


def begin_writing(connection: psycopg.Connection) -> int:
    """An id for its transaction, which stays open."""
    (xid,) = connection.execute(XID).fetchone() or (0,)
    return int(xid)


@contextmanager
def nobody_confirms(source: Source) -> Iterator[None]:
    """Commits are in the log and stay invisible: they wait for a standby that does not exist. Sessions of this block
    that shall not wait set synchronous_commit."""
    source.execute("SET synchronous_commit = local")
    with source.superuser() as superuser:
        superuser.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        superuser.execute("SELECT pg_reload_conf()")
        try:
            eventually(lambda: source.execute("SHOW synchronous_standby_names") == [("nobody",)])
            yield
        finally:
            superuser.execute("ALTER SYSTEM RESET synchronous_standby_names")
            superuser.execute("SELECT pg_reload_conf()")
            eventually(lambda: source.execute("SHOW synchronous_standby_names") == [("",)])


# ---- marks and visibility


@pytest.mark.promise(1)
def test_a_commit_that_is_in_the_log_and_not_visible_is_listed_and_marks_do_not_hang(source: Source) -> None:
    schema = source.schema(THINGS)
    with (
        source.reader(schema) as reader,
        source.slot() as slot,
        psycopg.connect(source.dsn) as writer,
        ThreadPoolExecutor(1) as pool,
        nobody_confirms(source),
    ):
        begun = reader.begin(schema)
        writer.execute("UPDATE things SET v = 'new' WHERE id = 1")
        xid = begin_writing(writer)
        commit = pool.submit(writer.commit)
        stream: list[bytes] = []

        def is_decoded() -> bool:
            stream.extend(source.messages(slot))
            return any(message.startswith(b"U") and b"new" in message for message in stream)

        eventually(is_decoded)
        asked = chunk(schema, begun.fingerprint)
        read = reader.ask(asked)
        assert isinstance(read, ChunkRead)
        assert read.lines == (b"1\told", b"2\told"), "a row older than an event that was received"
        assert not read.snapshot.sees(xid)
        eventually(lambda: asked.nonce in source.watermarks(slot))
        assert not commit.done()
        barrier = reader.send(TransactionBarrier(nonce()))
        reader.ask(chunk(schema, begun.fingerprint))
        assert reader.answers(barrier) == [], "a fence that lets chunks read what is older than the log"
    with source.reader(schema) as reader:
        assert reader.barrier().snapshot.sees(xid)


# ---- the fence


def test_a_fence_waits_for_writers_of_this_database(source: Source) -> None:
    schema = source.schema(THINGS)
    with source.reader(schema) as reader, psycopg.connect(source.dsn) as first, psycopg.connect(source.dsn) as later:
        xid = begin_writing(first)
        asked = reader.send(TransactionBarrier(nonce()))
        source.await_fence_looks()
        begin_writing(later)
        assert reader.answers(asked) == []
        first.commit()
        answer = reader.wait(asked)
        assert isinstance(answer, BarrierPassed)
        assert answer.snapshot.sees(xid)


def test_a_fence_does_not_wait_for_what_can_not_have_written(source: Source) -> None:
    schema = source.schema(THINGS)
    with (
        source.reader(schema) as reader,
        new_database(source.server) as other_dsn,
        psycopg.connect(other_dsn) as elsewhere,
        psycopg.connect(source.dsn) as reading,
    ):
        begin_writing(elsewhere)
        with psycopg.connect(other_dsn) as preparing:
            begin_writing(preparing)
            preparing.execute("PREPARE TRANSACTION 'elsewhere'")
        reading.execute("SELECT count(*) FROM things")
        reader.barrier()
        with psycopg.connect(other_dsn, autocommit=True) as preparing:
            preparing.execute("ROLLBACK PREPARED 'elsewhere'")


def test_a_fence_waits_for_prepared_transactions_and_says_so(source18: Source) -> None:
    schema = source18.schema(THINGS)
    with psycopg.connect(source18.dsn) as preparing:
        xid = begin_writing(preparing)
        preparing.execute("PREPARE TRANSACTION 'here'")
    with source18.reader(schema) as reader, capture_logs() as logs:
        began = time.monotonic()
        asked = reader.send(TransactionBarrier(nonce()))
        message = eventually(lambda: [entry for entry in logs if "wait" in entry["event"]], 10.0, lambda: str(logs))[0]
        assert time.monotonic() - began >= QUIET_S
        assert (message["transactions"], message["oldest"]) == (1, "prepared transaction here")
        assert message["since"]
        assert reader.answers(asked) == []
        source18.execute("COMMIT PREPARED 'here'")
        answer = reader.wait(asked)
    assert isinstance(answer, BarrierPassed)
    assert answer.snapshot.sees(xid)
    assert len(logs) == 1


def test_a_server_that_can_not_be_reached_fails_what_was_asked(source18: Source) -> None:
    schema = source18.schema(THINGS)
    with source18.reader(schema, dsn=make_conninfo(source18.dsn, port="1")) as reader:
        for request in (TransactionBarrier(nonce()), chunk(schema, "shape")):
            assert not reader.fail(request).is_permanent


# ---- the end


@pytest.mark.parametrize("waits_for", ["a lock", "a query", "a fence", "nothing"])
def test_closing_cancels_what_runs(source18: Source, waits_for: str) -> None:
    schema = source18.schema(THINGS)
    with source18.reader(schema, workers=2) as reader, psycopg.connect(source18.dsn) as other:
        begun = reader.begin(schema)
        match waits_for:
            case "a lock":
                other.execute("LOCK TABLE things IN ACCESS EXCLUSIVE MODE")
                asked = [reader.send(chunk(schema, begun.fingerprint)), reader.send(chunk(schema, begun.fingerprint))]
                eventually(lambda: len(source18.backends("Lock")) == 2)
            case "a query":
                asked = [reader.send(chunk(schema, begun.fingerprint, where="pg_sleep(60) IS NULL"))]
                eventually(lambda: source18.backends("Timeout"))
            case "a fence":
                begin_writing(other)
                asked = [reader.send(TransactionBarrier(nonce()))]
                source18.await_fence_looks()
            case _:
                asked = []
        began = time.monotonic()
        reader.reader.close()
        assert time.monotonic() - began < CLOSE_S_MAX
        eventually(lambda: not source18.backends(), 5.0)
        assert [reader.answers(nonce) for nonce in asked] == [[] for _ in asked]
        reader.reader.close()


def test_closing_does_not_wait_for_a_server_that_hangs(source18: Source) -> None:
    schema = source18.schema(THINGS)
    with source18.reader(schema) as reader:
        begun = reader.begin(schema)
        reader.send(chunk(schema, begun.fingerprint, where="pg_sleep(60) IS NULL"))
        eventually(lambda: source18.backends("Timeout"))
        with frozen(source18.server.stack, "postgres"):
            began = time.monotonic()
            reader.reader.close()
            assert time.monotonic() - began < CLOSE_S_MAX
        for pid in source18.backends():
            source18.execute("SELECT pg_terminate_backend(%s)", pid)
