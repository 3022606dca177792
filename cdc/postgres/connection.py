"""Connections to the source, with every setting pinned that changes bytes, and errors as sentences."""

from collections.abc import Callable
from functools import wraps
from typing import Any, LiteralString, ParamSpec, TypeVar

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConfigError, ConnectionLost, SourceError, UnreachableError

SourceConnection = psycopg.Connection  # for those who pass one on
P = ParamSpec("P")
T = TypeVar("T")

CONNECT_TIMEOUT_S = 10

# Whatever a role, database or user sets: the same row must give the same bytes, now and after a restart.
PINNED_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "quote_all_identifiers": "off",  # regclass and its like
    "xmloption": "content",
    "client_min_messages": "warning",
    "row_security": "off",  # a policy must raise an error, never hide rows
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "0",
}
# Not known to every version that we support, so set where it exists only.
SET_WHERE_KNOWN: LiteralString = (
    "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings"
    " WHERE name IN ('transaction_timeout', 'idle_session_timeout')"
)


def conninfo(source: SourceConfig, *, application: str, replication: bool = False) -> str:
    """A libpq connection string with our settings. Raises ConfigError for a DSN that libpq does not understand."""
    try:
        given: dict[str, Any] = conninfo_to_dict(source.dsn.get_secret_value())
    except psycopg.ProgrammingError as error:
        raise ConfigError(
            "source.dsn is not a PostgreSQL connection string", "for example postgresql://user@host:5432/database"
        ) from error
    pinned = " ".join(f"-c {name}={value}" for name, value in PINNED_SETTINGS.items())
    settings: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        **given,
        "application_name": application,
        "client_encoding": "UTF8",
        "options": f"{given.get('options', '')} {pinned}".strip(),
    }
    if replication:
        settings["replication"] = "database"
    return make_conninfo("", **settings)


def connect(source: SourceConfig, *, application: str = "watershed") -> SourceConnection:
    """A connection in autocommit mode. Raises SourceError or UnreachableError with the server's own words, ConfigError
    for a DSN with a value that psycopg can't read."""
    try:
        connection = psycopg.connect(conninfo(source, application=application), autocommit=True)
        connection.execute(SET_WHERE_KNOWN)
    except psycopg.OperationalError as error:
        raise connect_error(str(error)) from error
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"source.dsn: {error}", "correct it, or leave it out") from error
    return connection


def holds_any_bytes(pgconn: pq.abc.PGconn) -> bool:
    """Whether the database's encoding is SQL_ASCII: its text is bytes of any encoding. Asked for UTF-8, the server ends
    the statement or the stream at what is none, without a word of the table. So bytes are to come as they are, and we
    look."""
    return pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII"


def copy_options(connection: SourceConnection) -> sql.SQL:
    """What a COPY TO statement ends with."""
    return sql.SQL(" (ENCODING 'SQL_ASCII')" if holds_any_bytes(connection.pgconn) else "")


def connect_error(words: str) -> SourceError | UnreachableError:
    """A connection that could not be made, with the next step that fits the server's words."""
    said = " ".join(words.split()).removeprefix("connection failed: ")
    if "start WAL sender" in said or "start walsender" in said or "replication role" in said:
        return SourceError(f"the role may not replicate: {said}", "as a superuser: ALTER ROLE <role> REPLICATION")
    if "no pg_hba.conf entry" in said:
        return SourceError(f"the server refuses us: {said}", "add a pg_hba.conf line for this role, database and host")
    if "password authentication failed" in said or "no password supplied" in said:
        return SourceError(f"the server refuses us: {said}", "correct user and password in source.dsn")
    if "does not exist" in said:
        return SourceError(f"can't connect: {said}", "correct database and user in source.dsn")
    return UnreachableError(f"can't connect to PostgreSQL: {said}", "check source.dsn and that the server runs")


def says_too_large(state: str, words: str) -> bool:
    """Whether an error is that of a text of over 1 GiB: program_limit_exceeded, or an internal error, whose words are
    not translated."""
    return state == "54000" or (state == "XX000" and "invalid memory alloc request size" in words)


def lost(error: psycopg.Error | str) -> ConnectionLost:
    """The server went away in the middle."""
    return ConnectionLost(f"PostgreSQL: {' '.join(str(error).split()) or 'the connection was closed'}")


def says_lost(function: Callable[P, T]) -> Callable[P, T]:
    """For functions that ask the server: one that goes away meanwhile is ConnectionLost, which the service survives."""

    @wraps(function)
    def ask(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return function(*arguments, **named)
        except psycopg.OperationalError as error:
            raise lost(error) from error

    return ask
