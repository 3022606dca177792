"""Connections to the base of a view, with every setting pinned that changes the text of values, and their errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from cdc.config.stores import SqlConfig
from cdc.postgres.connection import pinned_options
from sinks.errors import SinkError

CONNECT_TIMEOUT_S: Final = 10
NEXT_QUERY_FAILS: Final = (
    "correct the rows, or have the query handle them (CASE, nullif); the job tries again, and until then the target "
    "keeps the former rows"
)
Texts = tuple[str | None, ...]
Key = tuple[str, ...]  # a view row's key as texts

_AWAY: Final = frozenset({"08", "57"})  # classes of errors: connections, and servers that start or end
_PINNED: Final = pinned_options(row_security="on", plan_cache_mode="force_custom_plan")


def connect(config: SqlConfig, timeout_s: int = CONNECT_TIMEOUT_S) -> psycopg.Connection[Any]:
    """Connects. Raises SinkError for a database that does not answer."""
    with explained():
        return psycopg.connect(
            config.url.get_secret_value(),
            autocommit=True,
            connect_timeout=timeout_s,
            keepalives_idle=30,
            tcp_user_timeout=60_000,  # ms; for a server that disappeared without closing the connection
            application_name="watershed views",
            client_encoding="UTF8",
            options=_PINNED,
        )


@contextmanager
def explained() -> Iterator[None]:
    """Raises SinkError for psycopg's errors."""
    try:
        yield
    except psycopg.Error as error:
        raise base_error(error) from error


def is_away(error: psycopg.Error) -> bool:
    """Returns whether an error is of the connection, or of a server that starts or ends."""
    return error.sqlstate is None or error.sqlstate[:2] in _AWAY


def base_error(error: psycopg.Error) -> SinkError:
    if is_away(error):
        return SinkError(
            "the base of the view does not answer",
            "check that it is running, and the url of the base's sink; the job tries again",
        )
    if is_of_rows(error):
        return SinkError(f"the view's query fails: {error_text(error)}", NEXT_QUERY_FAILS)
    return SinkError(
        f"the base of the view refuses a statement: {error_text(error)}",
        "see the server's log for this error; the job tries again",
    )


def is_of_rows(error: psycopg.Error) -> bool:
    """Says whether the values of rows made the query fail, such as a division by zero, and no state of the server."""
    return isinstance(error, psycopg.DataError | psycopg.errors.CardinalityViolation)


def error_text(error: psycopg.Error) -> str:
    """Returns the first line of PostgreSQL's message."""
    return (error.diag.message_primary or type(error).__name__).partition("\n")[0]


def texts(cursor: Any) -> Iterator[Texts]:
    """Yields the rows of a result as PostgreSQL prints them."""
    result = cursor.pgresult
    for row in range(result.ntuples):
        values = [result.get_value(row, column) for column in range(result.nfields)]
        yield tuple(None if value is None else bytes(value).decode() for value in values)
