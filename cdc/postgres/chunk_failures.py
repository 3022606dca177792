"""Why existing rows could not be read, and whether reading them again can help. Pure."""

from typing import Final

import psycopg

from cdc.model.errors import ConnectionLost, SourceError, UnreachableError, WatershedError
from cdc.model.sql_names import sql_name
from cdc.ports.chunk_reader import Chunk, ReadFailed, Request, TransactionBarrier
from cdc.postgres.chunk_table import TableAlteredError
from cdc.postgres.connection import lost, says_too_large

# Connections lost, refused or cancelled; transactions that waited too long or met others; a server short of resources.
PASSING_CLASSES: Final = {"08", "25", "40", "53", "55", "57", "58"}
PASSING_ERRORS: Final = (ConnectionLost, UnreachableError, TableAlteredError)
_EMITS_FLUSHED: Final = 170_000  # from here on pg_logical_emit_message takes a fourth argument


def failed(request: Request, error: Exception) -> ReadFailed:
    """The answer to a request that ended in this error."""
    if isinstance(error, WatershedError):
        return ReadFailed(request.nonce, error, is_permanent=not isinstance(error, PASSING_ERRORS))
    if isinstance(error, psycopg.Error):
        is_passing = error.sqlstate is None or error.sqlstate[:2] in PASSING_CLASSES
        return ReadFailed(request.nonce, _said(request, error, is_passing), is_permanent=not is_passing)
    # A mistake of ours; what it says may hold a row's values.
    words = f"reading existing rows of {_where(request)} failed: {type(error).__name__}"
    return ReadFailed(request.nonce, SourceError(words, "report it, with the log of this process"), is_permanent=True)


def watermark_refused(error: psycopg.errors.InsufficientPrivilege, server_version: int) -> SourceError:
    """The role may not write watermarks."""
    arguments = "boolean, text, text" + (", boolean" if server_version >= _EMITS_FLUSHED else "")
    return SourceError(
        f"the role may not write marks into the log: {error.diag.message_primary}",
        f"as a superuser: GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message({arguments}) TO <role>",
    )


def _said(request: Request, error: psycopg.Error, is_passing: bool) -> WatershedError:
    where = _where(request)
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return SourceError(
            f"{where} is locked: somebody alters, truncates or locks it, or waits to",
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
            "make the value smaller or delete the row (octet_length finds it: a bytea's text has twice its bytes); "
            "then ask for the snapshot again",
        )
    # Without a condition, values that don't read as their type are those of the range's ends.
    is_asked = isinstance(request, Chunk) and (request.where is not None or isinstance(error, psycopg.DataError))
    return SourceError(
        f"existing rows of {where} can't be read: {_words(error)}",
        "correct the condition or the range, and ask for the snapshot again" if is_asked else "see the server's log",
    )


def _words(error: psycopg.Error) -> str:
    """The server's, where they are about the statement; others may hold a row's values."""
    is_of_statement = error.diag.statement_position is not None or (error.sqlstate or "").startswith("42")
    if is_of_statement and error.diag.message_primary:
        return error.diag.message_primary
    return f"SQLSTATE {error.sqlstate} ({type(error).__name__})"


def _where(request: Request) -> str:
    return "the database" if isinstance(request, TransactionBarrier) else f"table {request.schema.table}"
