"""The reasons why existing rows could not be read, and whether a retry can succeed. Pure."""

from typing import Final

import psycopg

from cdc.model.errors import ConnectionLost, SourceError, UnreachableError, WatershedError
from cdc.model.sql_names import sql_name
from cdc.ports.chunk_reader import Chunk, ReadFailed, Request, TransactionBarrier
from cdc.postgres.chunk_table import TableAlteredError
from cdc.postgres.connection import lost, says_too_large

# Lost, refused or cancelled connections; lock timeouts and conflicts of transactions; a server short of resources.
PASSING_CLASSES: Final = {"08", "25", "40", "53", "55", "57", "58"}
PASSING_ERRORS: Final = (ConnectionLost, UnreachableError, TableAlteredError)


def may_succeed_later(error: Exception) -> bool:
    """Returns whether a retry after this error may succeed."""
    if isinstance(error, psycopg.Error):
        return error.sqlstate is None or error.sqlstate[:2] in PASSING_CLASSES
    return isinstance(error, PASSING_ERRORS)


def failed(request: Request, error: Exception) -> ReadFailed:
    """Returns the answer to a request that ended with this error."""
    is_passing = may_succeed_later(error)
    if isinstance(error, WatershedError):
        return ReadFailed(request.nonce, error, is_permanent=not is_passing)
    if isinstance(error, psycopg.Error):
        return ReadFailed(request.nonce, _described(request, error, is_passing), is_permanent=not is_passing)
    # A defect in Watershed. Its text is not shown, because it may contain values of a row.
    words = f"reading existing rows of {_where(request)} failed: {type(error).__name__}"
    return ReadFailed(request.nonce, SourceError(words, "report it, with the log of this process"), is_permanent=True)


def _described(request: Request, error: psycopg.Error, is_passing: bool) -> WatershedError:
    where = _where(request)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return SourceError(
            f"{where} is locked: another session alters, truncates or locks it, or is waiting to",
            "wait for that transaction to end, or end it; pg_locks names it",
        )
    if is_passing:
        return lost(error)
    if isinstance(error, psycopg.errors.InsufficientPrivilege) and not isinstance(request, TransactionBarrier):
        table = request.schema.table
        return SourceError(
            f"the role may not read {where}: {error.diag.message_primary}",
            f"GRANT USAGE ON SCHEMA {sql_name(table.schema)} TO <role>; GRANT SELECT ON {sql_name(*table)} TO <role>; "
            "the schemas of its types need USAGE too",
        )
    if says_too_large(error.sqlstate or "", error.diag.message_primary or ""):
        return SourceError(
            f"existing rows of {where} can't be read: the text of a row, or of a value, is above 1 GiB",
            "make the value smaller (octet_length finds it: a bytea's text has twice its bytes); then start the "
            "snapshot again",
        )
    # Without a condition, invalid values are those of the range's ends.
    is_asked = isinstance(request, Chunk) and (request.where is not None or isinstance(error, psycopg.DataError))
    return SourceError(
        f"existing rows of {where} can't be read: {_message(error)}",
        "correct the condition or the range, and start the snapshot again" if is_asked else "see the server's log",
    )


def _message(error: psycopg.Error) -> str:
    """Returns the server's message if it is about the statement; other messages may have values of a row."""
    is_of_statement = error.diag.statement_position is not None or (error.sqlstate or "").startswith("42")
    if is_of_statement and error.diag.message_primary:
        return error.diag.message_primary
    return f"SQLSTATE {error.sqlstate} ({type(error).__name__})"


def _where(request: Request) -> str:
    return "the database" if isinstance(request, TransactionBarrier) else f"table {request.schema.table}"
