"""Errors of databases name the server and the next step, and neither passwords nor values."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Boolean, Connection, literal, select, text

from sinks.errors import FullError, SinkError
from sinks.retries import Retries
from sinks.sql.server import RefusedValue, SqlServer
from tests.conformance.stores import url_of

ONCE = Retries(attempt_count_max=1)


def refused(url: str, statement: str = "SELECT 1") -> str:
    server = SqlServer(url, ONCE)
    try:
        with pytest.raises(SinkError) as caught:
            server.transaction(lambda connection: connection.execute(text(statement)))
    finally:
        server.close()
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.hint
    return caught.value.message


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no address secret", "not the address of a database"),
        ("mysql://me:secret@host/db", "can't write databases of mysql"),
        ("sqlite://", "names no file"),
    ],
)
def test_an_address_that_can_t_be_used(url: str, message: str) -> None:
    with pytest.raises(SinkError, match=message) as caught:
        SqlServer(url, ONCE)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_away_or_refuses(fresh_database: str) -> None:
    url = url_of(fresh_database)
    assert "127.0.0.1:1/db does not answer" in refused("postgresql://me:secret@127.0.0.1:1/db")
    assert 'refuses the connection: database "no_such_database" does not exist' in refused(
        url.rpartition("/")[0] + "/no_such_database"
    )
    assert "is read-only" in refused(url, "SET TRANSACTION READ ONLY; CREATE TABLE t (i int)")
    assert 'refuses a statement: type "secre" does not exist' in refused(url, "SELECT NULL::secre")
    assert "denies this user" in refused(url, "SELECT * FROM pg_authid")


def test_a_database_without_room_is_full(fresh_database: str, tmp_path: Path) -> None:
    """What PostgreSQL says of a full disk is raised here; SQLite's file has a limit that it reaches."""
    raised = "DO $$ BEGIN RAISE 'No space left on device' USING ERRCODE = 'disk_full'; END $$"
    postgres = SqlServer(url_of(fresh_database), ONCE)
    sqlite = SqlServer(f"sqlite:///{tmp_path}/store.db", ONCE)

    def grow(connection: Connection) -> None:
        connection.execute(text("PRAGMA max_page_count = 3"))
        for number in range(20):
            connection.execute(text(f"CREATE TABLE t{number} (a int)"))

    try:
        with pytest.raises(FullError, match="has a full disk"):
            postgres.transaction(lambda connection: connection.execute(text(raised)))
        with pytest.raises(FullError, match="has a full disk"):
            sqlite.transaction(grow)
    finally:
        postgres.close()
        sqlite.close()


def test_what_sqlite_says_of_a_statement_is_not_called_away(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    assert refused(url, 'CREATE TABLE t (name text, "Name" text)').endswith(
        "store.db refuses a statement: duplicate column name: Name"
    )
    assert "refuses a statement: near" in refused(url, "SELECT FROM secrets")
    assert "store.db can't be opened, read or written: unable to open database file" in refused(
        f"sqlite:///{tmp_path}/no/store.db"
    )
    (tmp_path / "other.db").write_bytes(b"no database " * 100)
    assert "can't be read: file is not a database" in refused(f"sqlite:///{tmp_path}/other.db")


def test_a_file_that_another_program_writes_is_locked(tmp_path: Path) -> None:
    server = SqlServer(f"sqlite:///{tmp_path}/store.db", ONCE)
    server.dialect = replace(server.dialect, settings=())  # without waiting for the other
    try:
        with sqlite3.connect(tmp_path / "store.db", timeout=0, isolation_level=None) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(SinkError, match="is locked by another program"):
                server.transaction(lambda connection: connection.execute(text("CREATE TABLE t (a int)")))
    finally:
        server.close()


def test_a_value_that_the_driver_does_not_take_is_refused(tmp_path: Path) -> None:
    server = SqlServer(f"sqlite:///{tmp_path}/store.db", ONCE)
    try:
        with pytest.raises(RefusedValue, match=r"^TypeError$"):
            server.transaction(lambda connection: connection.execute(select(literal("secret", Boolean))))
    finally:
        server.close()


def test_a_trigger_of_somebody_else_refuses_a_row(fresh_database: str) -> None:
    server = SqlServer(url_of(fresh_database), ONCE)
    try:
        with pytest.raises(RefusedValue):
            server.transaction(lambda connection: connection.execute(text("DO $$ BEGIN RAISE 'no'; END $$")))
    finally:
        server.close()


def test_a_refused_value_is_not_in_the_message(fresh_database: str) -> None:
    server = SqlServer(url_of(fresh_database), ONCE)

    def cast(connection: Connection) -> None:
        connection.execute(text("SELECT CAST(:value AS date)"), {"value": "secret"})

    try:
        with pytest.raises(RefusedValue, match=r"^InvalidDatetimeFormat$") as caught:
            server.transaction(cast)
    finally:
        server.close()
    assert caught.value.__suppress_context__


def test_a_transaction_is_done_again_after_a_lost_connection(fresh_database: str) -> None:
    server = SqlServer(url_of(fresh_database), Retries(attempt_count_max=3, delay_s_first=0.01))
    attempts: list[int] = []

    def work(connection: Connection) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return int(connection.execute(text("SELECT 7")).scalar_one())

    try:
        assert server.transaction(work) == 7
    finally:
        server.close()
    assert len(attempts) == 2


def test_a_pooler_does_not_hide_that_another_server_has_taken_over(fresh_database: str) -> None:
    """The connection stays, and only the start time of the server's process differs."""
    with closing(SqlServer(url_of(fresh_database), ONCE)) as server:
        for _ in range(2):
            server.transaction(server.observe)
            assert not server.take_loss()
        server.dialect = replace(server.dialect, process="SELECT now() - interval '1 day'")
        server.transaction(server.observe)
        assert server.take_loss()
        assert not server.take_loss()
