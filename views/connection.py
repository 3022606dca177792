"""Connections to the base of a view, with every setting pinned that changes the text of values, and their errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from cdc.config.sink_settings import SqlConfig
from cdc.model.errors import SinkError
from cdc.postgres.connection import PINNED_SETTINGS

CONNECT_TIMEOUT_S: Final = 10
_PINNED: Final = {**PINNED_SETTINGS, "row_security": "on", "plan_cache_mode": "force_custom_plan"}


def connect(config: SqlConfig) -> psycopg.Connection[Any]:
    """Connects. Raises SinkError for a database that does not answer."""
    with explained():
        return psycopg.connect(
            config.url.get_secret_value(),
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="watershed views",
            client_encoding="UTF8",
            options=" ".join(f"-c {name}={value}" for name, value in _PINNED.items()),
        )


@contextmanager
def explained() -> Iterator[None]:
    """Raises SinkError for psycopg's errors."""
    try:
        yield
    except psycopg.Error as error:
        raise base_error(error) from error


def base_error(error: psycopg.Error) -> SinkError:
    if error.sqlstate is None or isinstance(error, psycopg.OperationalError):
        return SinkError(
            "the base of the view does not answer",
            "check that it runs and the url of the base's sink; it is tried again",
        )
    return SinkError(f"the base of the view refuses a statement: {said(error)}", "see the server's log for this error")


def said(error: psycopg.Error) -> str:
    """Returns the first line of PostgreSQL's message."""
    return (error.diag.message_primary or type(error).__name__).partition("\n")[0]
