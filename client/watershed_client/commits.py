"""The LSN up to which a store must have come to show what an application has committed.

PostgreSQL tells nobody the LSN of their commit. `pg_current_wal_insert_lsn()` is the end of everything that was put
into the log so far, so asked after COMMIT has returned it is never below the commit record, whoever is asked on the
same primary: the same connection, another one of a pool, or one behind a pooler. Other sessions may have written in
between, which makes a wait a little longer, never too short.

Two values would be wrong. Read before the COMMIT, the same function is below the commit record, which does not exist
yet. And `pg_current_wal_lsn()` or `pg_current_wal_flush_lsn()` is below it where `synchronous_commit` is off: the
record is in the log's buffers only. A standby has no insert position, and refuses the question.
"""

from typing import Any, Final, NamedTuple

SQL: Final = (
    "SELECT pg_current_wal_insert_lsn()::text,"
    " ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int"
)
_TOO_EARLY: Final = "a transaction is open: commit first, because an LSN that is read before the commit is below it"


class Written(NamedTuple):
    """The end of the log after a commit. With the timeline, an LSN of a server that was replaced is noticed."""

    lsn: str  # as PostgreSQL prints it
    timeline: int


def written(connection: Any) -> Written:
    """Returns the end of the log, which a commit that has returned is part of. `connection`: of psycopg; a Session, a
    Connection or an Engine of SQLAlchemy; `django.db.connection`; or any other of DB-API 2. Call it after the commit,
    on the primary. Leaves no transaction open. Raises ValueError within a transaction, where the answer would be too
    early, and what the database driver raises."""
    if hasattr(connection, "raw_connection"):  # SQLAlchemy's engine
        with connection.connect() as opened:
            return written(opened)
    _require_no_transaction(connection)
    if hasattr(connection, "exec_driver_sql"):
        row = connection.exec_driver_sql(SQL).fetchone()
        connection.rollback()
    elif _is_session(connection):
        row = connection.connection().exec_driver_sql(SQL).fetchone()
        connection.rollback()
    else:
        cursor = connection.cursor()
        try:
            cursor.execute(SQL)
            row = cursor.fetchone()
        finally:
            cursor.close()
        if not _is_autocommit(connection):
            connection.rollback()
    return Written(str(row[0]), int(row[1]))


async def written_async(connection: Any) -> Written:
    """As `written`, for an AsyncConnection of psycopg, or an AsyncSession, AsyncConnection or AsyncEngine of
    SQLAlchemy."""
    if hasattr(connection, "raw_connection"):
        async with connection.connect() as opened:
            return await written_async(opened)
    _require_no_transaction(connection)
    if hasattr(connection, "exec_driver_sql"):
        row = (await connection.exec_driver_sql(SQL)).fetchone()
    elif _is_session(connection):
        row = (await (await connection.connection()).exec_driver_sql(SQL)).fetchone()
    else:
        row = await (await connection.execute(SQL)).fetchone()
        if _is_autocommit(connection):
            return Written(str(row[0]), int(row[1]))
    await connection.rollback()
    return Written(str(row[0]), int(row[1]))


def _is_session(connection: Any) -> bool:
    return callable(getattr(connection, "connection", None)) and hasattr(connection, "in_transaction")


def _require_no_transaction(connection: Any) -> None:
    """Raises ValueError if what was written on the connection may not be committed yet."""
    in_transaction = getattr(connection, "in_transaction", None)
    info = getattr(connection, "info", None)
    status = getattr(info, "transaction_status", None)  # psycopg's; IDLE is 0
    is_open = callable(in_transaction) and in_transaction()
    if is_open or getattr(connection, "in_atomic_block", False) or (status is not None and int(status) != 0):
        raise ValueError(_TOO_EARLY)


def _is_autocommit(connection: Any) -> bool:
    """Says whether a statement alone opens no transaction."""
    if hasattr(connection, "in_atomic_block"):  # Django's
        return bool(connection.get_autocommit())
    return bool(getattr(connection, "autocommit", False))
