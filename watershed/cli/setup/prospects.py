"""Tables that `cdc init` can offer for capture, and the removal of slot and publication by `cdc teardown`."""

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from cdc.config.settings import SourceConfig
from cdc.model.errors import SourceError
from cdc.model.events import TableId
from cdc.postgres.catalog import create_index_statement, read_table
from cdc.postgres.connection import connect, read_row, says_lost
from cdc.postgres.source import allows_decoding, read_slot
from watershed.cli.setup.new_file import TableCandidate


def capture_dsn(dsn: str, role: str) -> str:
    """Returns the connection string with this role and without the password. Raises SourceError if libpq can't parse
    it."""
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise SourceError(
            "--dsn is not a PostgreSQL connection string", "for example postgresql://user@host:5432/database"
        ) from error
    return make_conninfo("", **{name: value for name, value in given.items() if name != "password"} | {"user": role})


@says_lost()
def database_settings(connection: psycopg.Connection, role: str) -> tuple[str, bool, bool, bool]:
    """Returns (name of the database, whether wal_level allows decoding, whether max_slot_wal_keep_size limits slots,
    whether the role exists)."""
    name, wal_level, limits_slots, has_role = read_row(
        connection,
        "SELECT current_database()::text, current_setting('wal_level'),"
        " (SELECT setting::int8 >= 0 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),"
        " EXISTS (SELECT FROM pg_roles WHERE rolname = %(role)s)",
        {"role": role},
    )
    return name, allows_decoding(wal_level, connection.info.server_version), limits_slots, has_role


def tables_to_capture(dsn: str) -> list[str]:
    """Returns the tables of a database that can be captured as they are. Raises WatershedError."""
    asked = SourceConfig(dsn=SecretStr(dsn), tables=("public.x",))  # only its address is used
    with connect(asked, application="watershed init") as connection:
        return [str(found.table) for found in table_candidates(connection, []) if not found.trouble]


@says_lost()
def table_candidates(connection: psycopg.Connection, schemas: list[str]) -> list[TableCandidate]:
    """Returns the tables of these schemas (none: all schemas except those of the system and extensions). Partitions are
    represented by their root."""
    rows = connection.execute(
        "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'"
        "   AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'"
        "   AND (cardinality(%(schemas)s::text[]) = 0 OR n.nspname = ANY (%(schemas)s::text[]))"
        "   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid"
        "                   AND d.deptype = 'e')"
        " ORDER BY 1, 2",
        {"schemas": schemas},
    ).fetchall()
    return [_candidate(connection, TableId(schema, name)) for schema, name in rows]


def _candidate(connection: psycopg.Connection, table: TableId) -> TableCandidate:
    try:
        found = read_table(connection, table, None)
    except SourceError as error:
        return TableCandidate(table, (), error.message, error.hint)
    name = sql.Identifier(*table).as_string(connection)
    if not found.key:
        return TableCandidate(table, (), "it has no key", f"ALTER TABLE {name} ADD PRIMARY KEY (…);")
    if not found.is_chunkable:
        index = create_index_statement(table, found.key).as_string(connection)
        return TableCandidate(table, found.key, "no unique index has exactly its key columns", f"{index};")
    return TableCandidate(table, found.key)


# ---- teardown


def remove_slot(config: SourceConfig, *, removes: bool = True) -> bool:
    """Drops the slot. Returns whether it existed. Raises SourceError while it is in use, or if the role may not drop
    it. Not `removes`: only checks."""
    with connect(config.log_server, application="watershed teardown") as connection:
        slot = read_slot(connection, config.slot)
        if slot is None:
            return False
        if slot.active_pid is not None:
            raise SourceError(
                f"slot {config.slot} is in use by the server's process {slot.active_pid}",
                "stop every `cdc run` that streams from it, then the same command again",
            )
        if removes:
            _execute(connection, sql.SQL("SELECT pg_drop_replication_slot({})").format(sql.Literal(config.slot)))
    return True


def remove_publication(config: SourceConfig, *, removes: bool = True) -> bool:
    """Drops the publication. Returns whether it existed. Raises SourceError if the role may not drop it. Not `removes`:
    only looks for it."""
    with connect(config, application="watershed teardown") as connection:
        row = connection.execute("SELECT FROM pg_publication WHERE pubname = %s", (config.publication,)).fetchone()
        if row is None:
            return False
        if removes:
            _execute(connection, sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(config.publication)))
    return True


def _execute(connection: psycopg.Connection, statement: sql.Composed) -> None:
    try:
        connection.execute(statement)
    except psycopg.Error as error:
        text = statement.as_string(connection)
        raise SourceError(
            f"{text}: {error.diag.message_primary or error}", f"as its owner or a superuser: {text};"
        ) from error
