"""Connections to the source, with every setting pinned that changes the text of values, and their errors."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, LiteralString

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConfigError, ConnectionLost, SourceError, UnreachableError

SourceConnection = psycopg.Connection  # for modules that do not import psycopg
_TLS: Final = re.compile(r"\bSSL\b|certificate", re.IGNORECASE)

APPLICATION: Final = "watershed"  # the application_name of capture's connections
CONNECT_TIMEOUT_S = 10
# With several servers, another one takes over from one that is gone: the network's silence must end soon. Values of
# source.dsn go before these.
OF_SEVERAL: Final = {
    "connect_timeout": 3,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 4,
    "tcp_user_timeout": 8_000,
    # Not read-write: the role may be read-only by default.
    "target_session_attrs": "primary",
}

# The same row must have the same text, now and after a restart, whatever a role, a database or a user sets.
PINNED_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "quote_all_identifiers": "off",  # affects regclass and similar types
    "xmloption": "content",
    "client_min_messages": "warning",
    "row_security": "off",  # a policy must raise an error, never hide rows
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "0",
}
# Settings that some supported versions do not have.
SET_WHERE_KNOWN: LiteralString = (
    "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings"
    " WHERE name IN ('transaction_timeout', 'idle_session_timeout')"
)


def pinned_options(**others: str) -> str:
    """Returns libpq's `options` with PINNED_SETTINGS; `others` are added, or take their place."""
    return " ".join(f"-c {name}={value}" for name, value in (PINNED_SETTINGS | others).items())


def conninfo(source: SourceConfig, *, application: str, replication: bool = False) -> str:
    """Returns a libpq connection string with our settings. Raises ConfigError for a DSN that libpq can't parse."""
    given = _parsed(source)
    settings: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        **(OF_SEVERAL if _host_count(given) > 1 else {}),
        **given,
        "application_name": application,
        "client_encoding": "UTF8",
        "options": f"{given.get('options', '')} {pinned_options()}".strip(),
    }
    if replication:
        settings["replication"] = "database"
    return make_conninfo("", **settings)


def _parsed(source: SourceConfig) -> dict[str, Any]:
    try:
        return conninfo_to_dict(source.dsn.get_secret_value())
    except psycopg.ProgrammingError as error:
        raise ConfigError(
            f"{_option(source)} is not a PostgreSQL connection string",
            "for example postgresql://user@host:5432/database",
        ) from error


def _option(source: SourceConfig) -> str:
    """Returns the name of the option that names the server."""
    return "source.standby_dsn" if source.may_be_standby else "source.dsn"


def _host_count(given: Mapping[str, Any]) -> int:
    return len(str(given.get("hostaddr") or given.get("host") or "").split(","))


def single_hosts(source: SourceConfig) -> list[SourceConfig]:
    """Returns the source with each server of its DSN alone; the source itself if it names one. Raises ConfigError."""
    given = _parsed(source)
    count = _host_count(given)
    if count == 1:
        return [source]
    lists = {name: str(given[name]).split(",") for name in ("host", "hostaddr", "port") if given.get(name)}
    for name, values in lists.items():
        if len(values) not in (1, count):
            raise ConfigError(
                f"source.dsn names {count} servers, but {len(values)} values of {name}", f"one {name} for each server"
            )
    rest = {name: value for name, value in given.items() if name not in {*lists, "load_balance_hosts"}}
    servers = []
    for number in range(count):
        one = {name: values[number % len(values)] for name, values in lists.items()}
        settings: dict[str, Any] = (
            OF_SEVERAL | rest | {"target_session_attrs": "any"} | {k: v for k, v in one.items() if v}
        )
        servers.append(source.model_copy(update={"dsn": SecretStr(make_conninfo("", **settings))}))
    return servers


def name_of(source: SourceConfig) -> str:
    """Returns host and port of a source with one server."""
    given = _parsed(source)
    return f"{given.get('host') or given.get('hostaddr')}:{given.get('port') or 5432}"


def connect(source: SourceConfig, *, application: str = APPLICATION) -> SourceConnection:
    """Returns a connection in autocommit mode. Raises SourceError or UnreachableError with the server's message,
    ConfigError for a DSN with an invalid value."""
    try:
        connection = psycopg.connect(conninfo(source, application=application), autocommit=True)
        connection.execute(SET_WHERE_KNOWN)
    except psycopg.OperationalError as error:
        raise connect_error(str(error), source) from error
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"{_option(source)}: {error}", "correct it, or leave it out") from error
    return connection


@contextmanager
def at_slot(source: SourceConfig, connection: SourceConnection) -> Iterator[SourceConnection]:
    """Yields a connection to the server that has the slot: `connection` itself, or one to the standby. Raises as
    `connect` does."""
    if source.standby_dsn is None:
        yield connection
        return
    with connect(source.log_server) as standby:
        yield standby


def holds_any_bytes(pgconn: pq.abc.PGconn) -> bool:
    """Returns whether the database's encoding is SQL_ASCII, so that its text may be in any encoding. With
    client_encoding UTF8 such a server ends the statement or the stream at invalid bytes, and does not name the table.
    So text is requested unconverted, and we check it."""
    return pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII"


def copy_options(connection: SourceConnection) -> sql.SQL:
    """Returns the options at the end of a COPY TO statement."""
    return sql.SQL(" (ENCODING 'SQL_ASCII')" if holds_any_bytes(connection.pgconn) else "")


def connect_error(words: str, source: SourceConfig) -> SourceError | UnreachableError:
    """Returns the error of a failed connection, with the next step for the server's message."""
    option = _option(source)
    stated, _, _ = words.partition("\n\tIs the server running")  # libpq's question; our next step answers it
    text = " ".join(stated.split()).removeprefix("connection failed: ")
    if "start WAL sender" in text or "start walsender" in text or "replication role" in text:
        return SourceError(
            f"the role may not replicate: {text}",
            "as a superuser: ALTER ROLE <role> REPLICATION; -- on Amazon RDS: GRANT rds_replication TO <role>",
        )
    if "no pg_hba.conf entry" in text:
        return SourceError(
            f"the server refuses the connection: {text}", "add a pg_hba.conf line for this role, database and host"
        )
    if "password authentication failed" in text or "no password supplied" in text:
        return SourceError(
            f"the server refuses the connection: {text}",
            f"correct the user in {option}, and the password in PGPASSWORD, ~/.pgpass or {option}",
        )
    if "max_wal_senders" in text:
        return SourceError(
            f"the server has no free WAL sender: {text}",
            "ALTER SYSTEM SET max_wal_senders = 20; then restart PostgreSQL",
        )
    if "not permitted to log in" in text:
        return SourceError(f"the server refuses the connection: {text}", "as a superuser: ALTER ROLE <role> LOGIN")
    if _TLS.search(text):
        return SourceError(
            f"can't connect with TLS: {text}",
            f"set sslmode=prefer in {option} if the network can be trusted; otherwise set up the server's TLS "
            f"(ssl = on), and name its certificate authority in {option} (sslrootcert)",
        )
    if "does not exist" in text:
        return SourceError(f"can't connect: {text}", f"correct database and user in {option}")
    return UnreachableError(f"can't connect to PostgreSQL: {text}", f"check {option} and that the server runs")


def says_too_large(state: str, words: str) -> bool:
    """Returns whether the error is that of a text above 1 GiB: program_limit_exceeded, or an internal error, whose
    message is not translated."""
    return state == "54000" or (state == "XX000" and "invalid memory alloc request size" in words)


def lost(error: psycopg.Error | str) -> ConnectionLost:
    """Returns the error of a connection that broke."""
    return ConnectionLost(f"PostgreSQL: {' '.join(str(error).split()) or 'the connection was closed'}")


@contextmanager
def says_lost(refused: str = "", hint: str = "") -> Iterator[None]:
    """Is around queries, or decorates a function that makes them: a connection that breaks meanwhile becomes
    ConnectionLost, which the service survives. `refused`: what an error of any other kind means, which becomes a
    SourceError with the server's message."""
    try:
        yield
    except psycopg.OperationalError as error:
        raise lost(error) from error
    except psycopg.Error as error:
        if not refused:
            raise
        raise SourceError(f"{refused}: {error.diag.message_primary}", hint) from error


def read_row(
    connection: psycopg.Connection, query: LiteralString, parameters: Mapping[str, Any] | None = None
) -> tuple[Any, ...]:
    """Returns the row of a query that always has one. Raises psycopg.Error."""
    row = connection.execute(query, parameters).fetchone()
    assert row is not None, "a query of one row"
    return row
