"""Calls to the database. Failures that can pass are retried; all others are raised as SinkError without values or
secrets.
"""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError, StatementError

from sinks.errors import FullError, SinkError
from sinks.retries import Retries
from sinks.sql.dialects import dialect_of

STAGES: Final = "stages"  # the entry of a connection's info with the names of its temporary tables
READ_ROWS: Final = 200  # rows that the driver holds at once

# Classes and codes of SQLSTATE. See PostgreSQL's appendix A.
_TRANSIENT: Final = ("08", "25P03", "40", "53", "57P", "55P03", "55006")
_ENDED: Final = ("08", "57P01", "57P02", "57P03", "57P04")  # of a connection
DISK_FULL: Final = "53100"
LOCKED: Final = "55P03"
# P0001: a trigger of somebody else refuses the row.
_REFUSED_VALUE: Final = ("22", "23", "54", "P0001")
_REFUSED_VALUE_WITHOUT_STATE: Final = ("IntegrityError", "DataError")
_FATAL: Final = re.compile(r"FATAL: +(.*)")
# SQLite's codes for a file that can't be reached or used as it is now. Others are about a statement.
_SQLITE_AWAY: Final = ("CANTOPEN", "IOERR", "NOMEM", "PERM", "AUTH", "NOLFS", "PROTOCOL", "INTERRUPT")
_SQLITE_LOCKED: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")
_SQLITE_DAMAGED: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_NO_SUCH_OBJECT: Final = ("42P01", "42703", "3F000")

T = TypeVar("T")


class RefusedValue(Exception):  # noqa: N818
    """Raised when the database refuses a value of the batch. The text is the condition's name, without the value."""


class RefusedStatement(SinkError):  # noqa: N818
    """Raised when the database refuses a statement, for example because of an unknown type, or a view that needs a
    column.
    """


class LostTable(Exception):  # noqa: N818
    """Raised when a prepared table does not exist, or lacks a column."""


class SqlServer:
    """One database. A transaction that fails temporarily is repeated from its beginning."""

    def __init__(self, url: str, retries: Retries) -> None:
        parsed = _parsed(url)
        self.dialect = dialect_of(parsed.get_backend_name())
        self.name = _name(parsed)
        self._engine = create_engine(
            parsed.set(drivername=self.dialect.driver),
            connect_args=dict(self.dialect.options),
            hide_parameters=True,  # of messages: they are rows
            pool_size=1,
            max_overflow=2,
        )
        self._retries = retries
        self._has_lost_connection = False
        self._process: object = None  # the server's, when it was observed last
        self._file = Path(parsed.database or "") if self.dialect.process is None else None
        self._joined: Connection | None = None  # of `one_transaction`
        self._joined_thread = 0  # whose transactions are part of it
        self._file_id: tuple[int, int] | None = None  # of the file that connections have open; None: it is not known
        event.listen(self._engine, "connect", self._connected)
        if self.dialect.begin is not None:
            event.listen(self._engine, "begin", self._begun)

    def transaction(self, work: Callable[[Connection], T]) -> T:
        """Returns the result of `work` after a commit. Raises RefusedValue and LostTable; SinkError for all other
        failures.
        """
        if self._joined is not None and self.is_one_transaction:
            return self._within(self._joined, work)

        def once() -> T:
            self._follow_file()
            with self._engine.begin() as connection:
                info = connection.info  # not accessible after the connection was lost
                try:
                    return work(connection)
                except BaseException:
                    info.pop(STAGES, None)  # the rollback drops the tables that this transaction created
                    raise

        def is_transient(error: Exception) -> bool:
            self._note_loss(error)
            return _is_transient(error)

        with self._explained():
            return self._retries.call(once, is_transient)

    @contextmanager
    def one_transaction(self) -> Iterator[None]:
        """Makes all transactions of this thread within the context savepoints of one, which is not repeated if it
        fails. Only one thread at a time may do so. Raises as `transaction`."""
        with self._explained():
            self._follow_file()
            try:
                with self._engine.begin() as connection:
                    info = connection.info
                    self._joined, self._joined_thread = connection, threading.get_ident()
                    try:
                        yield
                    except BaseException:
                        info.pop(STAGES, None)
                        raise
                    finally:
                        self._joined = None
            except DBAPIError as error:
                self._note_loss(error)
                raise

    @property
    def is_one_transaction(self) -> bool:
        """Says whether this thread is within `one_transaction`."""
        return self._joined is not None and self._joined_thread == threading.get_ident()

    def _within(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        info = connection.info
        with self._explained():
            try:
                with connection.begin_nested():
                    return work(connection)
            except BaseException as error:
                info.pop(STAGES, None)
                self._note_loss(error)
                raise

    def _note_loss(self, error: BaseException) -> None:
        self._has_lost_connection = self._has_lost_connection or (
            isinstance(error, Exception) and _has_lost_connection(error)
        )

    def take_loss(self) -> bool:
        """Says, once, whether a connection was lost since the last call, or the server or the file was replaced: the
        one that answers now may lack the last transactions."""
        was_lost, self._has_lost_connection = self._has_lost_connection, False
        return was_lost

    def observe(self, connection: Connection) -> None:
        """Notices if another process of the server answers than at the last call."""
        if self.dialect.process is not None:
            found = connection.exec_driver_sql(self.dialect.process).scalar()
            self._has_lost_connection |= self._process not in (None, found)
            self._process = found

    def _follow_file(self) -> None:
        """Notices if another file has the database's name, which open connections would go on without."""
        if self._file is None:
            return
        try:
            about = self._file.stat()
            found = about.st_dev, about.st_ino
        except OSError:  # the connection says why
            found = None
        if self._file_id not in (None, found):
            self._has_lost_connection = True
            self._engine.dispose()
        self._file_id = found

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Returns a connection that reads many rows in portions."""
        with (
            self._explained(),
            self._engine.connect().execution_options(stream_results=True, yield_per=READ_ROWS, reads=True) as held,
        ):
            yield held

    def close(self) -> None:
        self._engine.dispose()

    def _connected(self, connection: Any, _: object) -> None:
        if self.dialect.begin is not None:
            connection.isolation_level = None  # the driver begins no transactions by itself
        cursor = connection.cursor()
        for statement in self.dialect.settings:
            cursor.execute(statement)
        cursor.close()
        connection.commit()

    def _begun(self, connection: Connection) -> None:
        reads = connection.get_execution_options().get("reads")
        connection.exec_driver_sql("BEGIN" if reads else str(self.dialect.begin))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._error(error) from None
        except StatementError as error:  # a value that the driver does not take
            raise RefusedValue(type(error.orig).__name__) from None
        except SQLAlchemyError as error:
            raise SinkError(
                f"the SQL database at {self.name} can't be used ({type(error).__name__})",
                "check that it is running and that the sink's url is right; the sink tries again by itself",
            ) from None

    def _error(self, error: DBAPIError) -> Exception:
        state, condition, where = _state(error), type(error.orig).__name__, f"the SQL database at {self.name}"
        if state.startswith(_REFUSED_VALUE) or condition in _REFUSED_VALUE_WITHOUT_STATE:
            return RefusedValue(condition)
        if state.startswith(_NO_SUCH_OBJECT) or str(error.orig).startswith(("no such table", "no such column")):
            return LostTable()
        if state == DISK_FULL or getattr(error.orig, "sqlite_errorname", "") == "SQLITE_FULL":
            return FullError(f"{where} has a full disk", "free space on it; the sink tries again by itself")
        if state == LOCKED:
            return SinkError(
                f"{where}: another session holds a lock that a table needs",
                "end long transactions that read or lock its tables; the sink tries again by itself",
            )
        if state == "42501":
            return SinkError(
                f"{where} denies this user a permission that the sink needs: {_server_message(error)}",
                "grant the user the right to create schemas and tables there, or create the schemas for it",
            )
        if fatal := _FATAL.search(str(error.orig)):  # an unknown user or database; without a SQLSTATE
            return SinkError(
                f"{where} refuses the connection: {fatal[1]}",
                "check database, user and password of the sink's url; the sink tries again by itself",
            )
        if state == "25006" or "readonly" in str(error.orig):
            return SinkError(f"{where} is read-only", "give the primary's address in the sink's url")
        if isinstance(error.orig, sqlite3.Error):
            return _of_sqlite(error.orig, where)
        is_of_statement = not state.startswith(_TRANSIENT) if state else not _is_lost(error)
        if is_of_statement:
            return RefusedStatement(
                f"{where} refuses a statement: {_server_message(error)}", "see the server's log for this error"
            )
        return SinkError(
            f"{where} does not answer ({condition})",
            "check that it is running and that the sink's url is right; the sink tries again by itself",
        )


def _state(error: DBAPIError) -> str:
    """Returns the SQLSTATE; "" if the connection was lost or the driver has none."""
    return getattr(error.orig, "sqlstate", None) or ""


def _is_transient(error: Exception) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    state = _state(error)
    if state:
        return state.startswith(_TRANSIENT)
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig).startswith(_SQLITE_LOCKED)
    return _is_lost(error)


def _is_lost(error: Exception) -> bool:
    """Returns whether an error of PostgreSQL's driver says that a connection has ended, or could not be made."""
    if not isinstance(error, DBAPIError) or isinstance(error.orig, sqlite3.Error) or _state(error):
        return False
    return error.connection_invalidated or type(error.orig).__name__ in ("OperationalError", "InterfaceError")


def _has_lost_connection(error: Exception) -> bool:
    """Returns whether a connection ended, or could not be made, and another server may have taken over. A server that
    is stopped says so (57P01) before it ends the connection; one that ends it because it was idle stays.
    """
    if not isinstance(error, DBAPIError) or isinstance(error.orig, sqlite3.Error):
        return False
    state = _state(error)
    return state.startswith(_ENDED) if state else _is_lost(error)


def _sqlite_code(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))  # the driver's own errors have none


def _of_sqlite(error: sqlite3.Error, where: str) -> SinkError:
    code, message = _sqlite_code(error), str(error).partition("\n")[0]
    if code.startswith(_SQLITE_LOCKED):
        return SinkError(
            f"{where} is locked by another program ({message})",
            "end the program or the transaction that writes to it; the sink tries again by itself",
        )
    if code.startswith(_SQLITE_DAMAGED):
        return SinkError(
            f"{where} can't be read: {message}",
            "check that the sink's url names the right file, and see PRAGMA integrity_check",
        )
    if code.removeprefix("SQLITE_").startswith(_SQLITE_AWAY):
        return SinkError(
            f"{where} can't be opened, read or written: {message} ({code})",
            "check that its folder exists, and that this user may write the folder and the file; the sink tries again "
            "by itself",
        )
    return RefusedStatement(f"{where} refuses a statement: {message}", "see which table and column it names")


def _server_message(error: DBAPIError) -> str:
    """Returns the first line of the server's message. Only for errors that name objects, not values."""
    diagnosis = getattr(error.orig, "diag", None)
    return str(getattr(diagnosis, "message_primary", None) or error.orig).partition("\n")[0]


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise SinkError(
            "the sink's url is not the address of a database",
            "write postgresql://user:password@host:5432/database, or sqlite:////folder/file.db",
        ) from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise SinkError("the sink's url names no file", "write sqlite:////folder/file.db")
    return parsed


def _name(url: URL) -> str:
    """Returns host, port and database of the address; without user and password."""
    return f"{url.host}:{url.port or 5432}/{url.database or ''}" if url.host else str(url.database)
