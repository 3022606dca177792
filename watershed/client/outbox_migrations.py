"""The objects that events need in an application's database: an outbox table, and a function that publishes without it.

Alembic runs the migrations, and records in the schema which were run. `cdc outbox migrate` calls this module; an
application that uses Alembic itself can print the SQL (`--sql`) and add it to its own migrations.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import psycopg.sql as sql
from alembic import command
from alembic.config import Config as AlembicConfig
from sqlalchemy import Connection, NullPool, create_engine, text

from cdc.config.outbox_settings import MESSAGE_PREFIX
from cdc.config.settings import SourceConfig
from cdc.postgres.connection import SourceConnection, connect

LATEST = "head"
NONE = "base"  # the revision without anything


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the objects, and the roles that may use them."""

    schema: str = "cdc"
    table: str = "outbox"
    function: str = "publish"
    prefix: str = MESSAGE_PREFIX  # of the logical messages
    publishers: Sequence[str] = field(default=())  # roles that may publish
    capture: str | None = None  # the role of capture, which verifies messages and prunes the table

    def quoted(self, statement: str) -> str:
        """Returns the statement with these names, quoted, for its placeholders {schema}, {table}, {key}, {function},
        and with {prefix} as a string.
        """
        return (
            sql.SQL(statement)
            .format(
                schema=sql.Identifier(self.schema),
                table=sql.Identifier(self.schema, self.table),
                key=sql.Identifier(self.schema, "outbox_key"),
                function=sql.Identifier(self.schema, self.function),
                prefix=sql.Literal(self.prefix),
            )
            .as_string()
        )

    def grants(self) -> list[str]:
        """Returns statements that permit roles to publish, and capture to read. No other role gets a permission."""
        statements = []
        for role in self.publishers:
            to = sql.Identifier(role).as_string()
            statements += [
                self.quoted("GRANT USAGE ON SCHEMA {schema} TO ") + to,
                self.quoted("GRANT INSERT ON {table} TO ") + to,
                self.quoted("GRANT EXECUTE ON FUNCTION {function} TO ") + to,
            ]
        if self.capture is not None:
            to = sql.Identifier(self.capture).as_string()
            statements += [
                self.quoted("GRANT USAGE ON SCHEMA {schema} TO ") + to,
                self.quoted("GRANT SELECT, DELETE ON {table} TO ") + to,
                self.quoted("GRANT SELECT ON {key} TO ") + to,
            ]
        return statements


def migrate(source: SourceConfig, names: Names) -> None:
    """Upgrades the database to the newest revision, completely or not at all. Raises SourceError, UnreachableError, and
    the errors of SQLAlchemy for a statement that the role may not execute.
    """
    with _transaction(source) as connection:
        connection.execute(text(names.quoted("CREATE SCHEMA IF NOT EXISTS {schema}")))
        command.upgrade(_config(names, connection), LATEST)
        for statement in names.grants():
            connection.exec_driver_sql(statement)


def revert(source: SourceConfig, names: Names, revision: str) -> None:
    """Downgrades to an earlier revision, or to NONE. The schema stays, with Alembic's record. Raises the same as
    `migrate`.
    """
    with _transaction(source) as connection:
        command.downgrade(_config(names, connection), revision)


def migration_sql(names: Names) -> str:
    """Returns the SQL of `migrate`, for execution by another role."""
    config, output = _config(names), StringIO()
    config.output_buffer = output
    command.upgrade(config, LATEST, sql=True)
    schema = names.quoted("CREATE SCHEMA IF NOT EXISTS {schema}")
    return "\n\n".join([f"{schema};", output.getvalue().strip(), *(f"{statement};" for statement in names.grants())])


def reverting_sql(names: Names, revision: str) -> str:
    """Returns the SQL of `revert`, from the newest revision."""
    config, output = _config(names), StringIO()
    config.output_buffer = output
    command.downgrade(config, f"{LATEST}:{revision}", sql=True)
    return output.getvalue().strip()


@contextmanager
def _transaction(source: SourceConfig) -> Iterator[Connection]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: _connection(source), poolclass=NullPool)
    with engine.begin() as connection:
        yield connection


def _connection(source: SourceConfig) -> SourceConnection:
    connection = connect(source, application="watershed migrate")
    connection.autocommit = False
    return connection


def _config(names: Names, connection: Connection | None = None) -> AlembicConfig:
    config = AlembicConfig()
    config.set_main_option("script_location", str(_scripts()))
    config.attributes |= {"names": names, "connection": connection}
    return config


def _scripts() -> Path:
    """Returns the folder of Alembic's scripts: in the wheel it is data of this package, in the repository its own."""
    package = Path(__file__).parents[1]
    return next(folder / "migrations" for folder in (package, package.parent) if (folder / "migrations").is_dir())
