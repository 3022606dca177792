"""The LSN after a commit, with connections that only look like those of drivers; on PostgreSQL it is in
tests/integration/test_wait.py."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from watershed_client import Written, written, written_async
from watershed_client.commits import SQL

ROW = ("0/16B3748", 1)


class Cursor:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def execute(self, statement: str) -> None:
        self._log.append(statement)

    def fetchone(self) -> tuple[str, int]:
        return ROW

    def close(self) -> None:
        self._log.append("closed")


class Psycopg:
    def __init__(self, status: int = 0, *, autocommit: bool = False) -> None:
        self.log: list[str] = []
        self.info = SimpleNamespace(transaction_status=status)
        self.autocommit = autocommit

    def cursor(self) -> Cursor:
        return Cursor(self.log)

    def rollback(self) -> None:
        self.log.append("rollback")


class Django:
    """`django.db.connection`."""

    connection = None

    def __init__(self, *, in_atomic_block: bool = False) -> None:
        self.log: list[str] = []
        self.in_atomic_block = in_atomic_block

    def get_autocommit(self) -> bool:
        return True

    def cursor(self) -> Cursor:
        return Cursor(self.log)


def test_a_connection_of_psycopg_has_no_transaction_afterwards() -> None:
    connection = Psycopg()
    assert written(connection) == Written("0/16B3748", 1)
    assert connection.log == [SQL, "closed", "rollback"]
    connection = Psycopg(autocommit=True)
    assert written(connection) == ROW
    assert connection.log == [SQL, "closed"]


def test_djangos_connection_commits_by_itself() -> None:
    connection = Django()
    assert written(connection) == ROW
    assert connection.log == [SQL, "closed"]


class Alchemy:
    """SQLAlchemy's Connection."""

    info: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, *, is_open: bool = False) -> None:
        self.log: list[str] = []
        self.is_open = is_open

    def in_transaction(self) -> bool:
        return self.is_open

    def exec_driver_sql(self, statement: str) -> Cursor:
        self.log.append(statement)
        return Cursor(self.log)

    def rollback(self) -> None:
        self.log.append("rollback")


class Session:
    def __init__(self, *, is_open: bool = False) -> None:
        self.made = Alchemy(is_open=is_open)

    def connection(self) -> Alchemy:
        return self.made

    def in_transaction(self) -> bool:
        return self.made.is_open

    def rollback(self) -> None:
        self.made.rollback()


def test_sqlalchemys_connections_and_sessions_have_no_transaction_afterwards() -> None:
    connection, session = Alchemy(), Session()
    assert written(connection) == written(session) == ROW
    assert connection.log == session.made.log == [SQL, "rollback"]


class Async:
    """Makes the methods of a connection asynchronous."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        if hasattr(connection, "info"):
            self.info = connection.info
        if hasattr(connection, "in_transaction"):
            self.in_transaction = connection.in_transaction
        if hasattr(connection, "exec_driver_sql"):
            self.exec_driver_sql = self._later(connection.exec_driver_sql)

    def _later(self, call: Any) -> Any:
        async def later(*arguments: Any) -> Any:
            return call(*arguments)

        return later

    async def rollback(self) -> None:
        self._connection.rollback()


class AsyncPsycopg(Async):
    autocommit = False

    async def execute(self, statement: str) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(statement)
        return SimpleNamespace(fetchone=self._later(cursor.fetchone))


class AsyncSession(Async):
    async def connection(self) -> Any:
        return Async(self._connection.connection())


def test_asynchronous_connections_too() -> None:
    plain, connection, session = Psycopg(), Alchemy(), Session()
    for one in (AsyncPsycopg(plain), Async(connection), AsyncSession(session)):
        assert asyncio.run(written_async(one)) == ROW
    assert plain.log == connection.log == session.made.log == [SQL, "rollback"]


@pytest.mark.parametrize(
    "connection", [Psycopg(2), Psycopg(3), Django(in_atomic_block=True), Alchemy(is_open=True), Session(is_open=True)]
)
def test_within_a_transaction_the_answer_would_be_too_early(connection: Any) -> None:
    with pytest.raises(ValueError, match="commit first"):
        written(connection)
    log = connection.made.log if isinstance(connection, Session) else connection.log
    assert log == []
    if not isinstance(connection, Django):
        with pytest.raises(ValueError, match="commit first"):
            asyncio.run(written_async(connection))
