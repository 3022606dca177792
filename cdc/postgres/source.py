"""The source database: checks before anything is written, and the description that capture needs."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from cdc.config.columns import Chosen
from cdc.config.settings import SnapshotConfig, SourceConfig
from cdc.model.errors import ConfigError, ConnectionLost, SourceError, WatershedError
from cdc.model.events import TableId
from cdc.model.lsn import Lsn, parse_lsn
from cdc.model.sql_names import sql_name
from cdc.ports.source_now import SourceNow
from cdc.ports.source_table import SourceTable
from cdc.postgres.catalog import (
    Publication,
    add_tables_statement,
    create_index_statement,
    create_publication_statement,
    read_publication,
    read_table,
    require_all_rows,
)
from cdc.postgres.connection import at_slot, connect, read_row, says_lost, single_hosts
from cdc.postgres.replication import NEXT_AFTER_STANDBY, ReplicationConnection, SystemIdentity
from cdc.postgres.standby_log import require_log_of_primary

OLDEST_VERSION = 150_000
OLDEST_OF_STANDBY = 160_000  # that reads a standby's log
RAISES_LEVEL_VERSION = 190_000
LOCK_POLL_S: Final = 1.0
LOCK_WAIT_S: Final = 1  # adding a table to the publication waits for a session that alters, analyzes or vacuums it


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of pg_replication_slots."""

    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    invalidation: str | None = None  # why the server invalidated it; since PostgreSQL 17
    failover: bool = False  # whether standbys synchronise it; since PostgreSQL 17


# Of the tables that exist, whether the role owns all.
_MAY_CREATE: LiteralString = """
SELECT has_database_privilege(current_database(), 'CREATE'), coalesce(bool_and(pg_has_role(c.relowner, 'USAGE')), true)
  FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS t (schema, name)
  JOIN pg_namespace n ON n.nspname = t.schema
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A source that passed the checks."""

    identity: SystemIdentity
    tables: tuple[SourceTable, ...]
    publication: Publication | None  # None: capture will create it

    @property
    def unpublished(self) -> tuple[TableId, ...]:
        """The tables for which the publication will be created or altered."""
        published = self.publication.columns if self.publication is not None else {}
        return tuple(found.table for found in self.tables if found.table not in published)


def check_source(config: SourceConfig, snapshot: SnapshotConfig, *, is_running_on: bool = False) -> Source:
    """Checks everything that capture needs; writes nothing. Tables that a pattern takes, and with `is_running_on` all
    that can't be captured, are left out. Raises SourceError with the next step."""
    with connect(config) as connection:
        for error in setting_errors(connection):
            raise error
        if not is_running_on:
            if config.standby_dsn is not None:
                check_standby(config)
            with at_slot(config, connection) as server:
                check_slots(server, config.slot)
        publication = read_publication(connection, config.publication, config.table_ids)
        if publication is None:  # before the tables: whoever restored a dump without it should see that first
            check_may_create(connection, config)
        tables: tuple[SourceTable, ...] = ()
        for table in config.table_ids:
            try:
                tables += (checked_table(connection, table, publication, config.chosen(table)),)
            except (SourceError, ConfigError):
                if not is_running_on and config.is_named(table):
                    raise
        if not is_running_on:
            config.columns.require_meaning(
                (found.table, name) for found in tables for name in (*(c.name for c in found.columns), *found.left_out)
            )
        if snapshot.method == "chunked" and not is_running_on:
            check_chunkable(connection, [found for found in tables if not config.is_outbox(found.table)])
        check_may_mark(connection)
        with closing(ReplicationConnection(config.log_server)) as replication:  # raises if the role may not replicate
            identity = replication.identify()
        return Source(identity, tables, publication)


def allows_decoding(wal_level: str, version: int) -> bool:
    """Says whether row changes are, or will be, in the WAL: from PostgreSQL 19 on, `replica` is raised to `logical`
    while there is a logical slot. `version`: as in server_version_num."""
    return wal_level == "logical" or (wal_level == "replica" and version >= RAISES_LEVEL_VERSION)


def check_standby(config: SourceConfig) -> None:
    """Checks the standby that has the slot. Raises as check_source does."""
    with connect(config.log_server) as standby:
        for error in standby_errors(standby, config):
            raise error
    require_log_of_primary(config)


def standby_errors(standby: psycopg.Connection, config: SourceConfig) -> Iterator[WatershedError]:
    """Yields what is wrong with the server that source.standby_dsn names. Raises ConnectionLost."""
    if len(single_hosts(config.log_server)) > 1:
        yield ConfigError("source.standby_dsn names several servers", "name the one that has the slot, or will have it")
    yield from setting_errors(standby, may_be_standby=True)
    with says_lost():
        (has_feedback,) = read_row(standby, "SELECT current_setting('hot_standby_feedback')::bool")
    if is_standby(standby) and not has_feedback:
        yield SourceError(
            "hot_standby_feedback is off on the standby that source.standby_dsn names: when the primary removes rows "
            "of its catalog that the slot needs, the slot is lost",
            "on that standby: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf()",
        )


@says_lost()
def is_standby(connection: psycopg.Connection) -> bool:
    return read_row(connection, "SELECT pg_is_in_recovery()") == (True,)


def setting_errors(connection: psycopg.Connection, *, may_be_standby: bool = False) -> Iterator[SourceError]:
    """Yields what is wrong with the settings of the server. Raises ConnectionLost."""
    version = connection.info.server_version
    if version < OLDEST_VERSION:
        yield SourceError(
            f"PostgreSQL {version // 10000} is older than {OLDEST_VERSION // 10000}", "upgrade the source database"
        )
    in_recovery = is_standby(connection)
    with says_lost():
        rows = connection.execute(
            "SELECT name, setting FROM pg_settings"
            " WHERE name IN ('wal_level', 'max_replication_slots', 'max_wal_senders')"
        )
        settings: dict[str, str] = dict(rows.fetchall())
    if in_recovery and not may_be_standby:
        yield SourceError("the server is a standby, which accepts no watermarks", NEXT_AFTER_STANDBY)
    if in_recovery and version < OLDEST_OF_STANDBY:
        yield SourceError(
            f"PostgreSQL {version // 10000} can't have a logical slot on a standby",
            f"upgrade to PostgreSQL {OLDEST_OF_STANDBY // 10000}; or leave out source.standby_dsn",
        )
    if not allows_decoding(settings["wal_level"], version):
        yield SourceError(
            f"wal_level is {settings['wal_level']}, not logical: the WAL does not contain row changes",
            "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL",
        )
    for name in ("max_replication_slots", "max_wal_senders"):
        if int(settings[name]) == 0:
            yield SourceError(f"{name} is 0", f"ALTER SYSTEM SET {name} = 10; then restart PostgreSQL")


@says_lost()
def check_slots(connection: psycopg.Connection, slot: str) -> None:
    row = connection.execute(
        "SELECT count(*) FROM pg_replication_slots HAVING count(*) >= current_setting('max_replication_slots')::int"
    ).fetchone()
    if row is not None and read_slot(connection, slot) is None:
        raise SourceError(
            f"all {row[0]} replication slots of the server are in use, so {slot} can't be created",
            f"ALTER SYSTEM SET max_replication_slots = {row[0] + 10}; then restart PostgreSQL; or drop one that nobody "
            "needs, of those in pg_replication_slots that are not active",
        )


def published_table(
    connection: psycopg.Connection, table: TableId, publication: Publication, chosen: Chosen
) -> SourceTable:
    """Returns a captured table as it is now. Raises SourceError if its changes can't be followed any more,
    ConnectionLost."""
    # Without a column list, the publication also has columns that were added.
    found = read_table(connection, table, publication.columns.get(table, ()), chosen)
    _check_key(found, chosen)
    if found.is_partitioned:
        _check_identities(connection, found)
    return found


def checked_table(
    connection: psycopg.Connection, table: TableId, publication: Publication | None, chosen: Chosen
) -> SourceTable:
    """Returns the table if it can be captured. Raises SourceError and ConfigError with the next step,
    ConnectionLost."""
    published = None
    if publication is not None:
        published = publication.columns.get(table)
        if not publication.publishes_all:
            raise SourceError(
                f"publication {publication.name} leaves out some operations",
                f"ALTER PUBLICATION {sql_name(publication.name)} SET (publish = 'insert, update, delete, truncate')",
            )
    found = read_table(connection, table, published, chosen)
    # First: PostgreSQL refuses updates and deletes of a published table without a key, so nobody may be told to add it.
    _check_key(found, chosen)
    if publication is not None and published is None:
        if table in publication.entries:
            raise _hidden(publication, table)
        _check_may_add(connection, publication, found)
    if not (found.may_select or chosen.is_outbox):  # rows of outbox tables are never read
        raise SourceError(
            f"the role may not read table {table}, so its existing rows can't be loaded",
            f"GRANT USAGE ON SCHEMA {sql_name(table.schema)} TO <role>; GRANT SELECT ON {sql_name(*table)} TO <role>",
        )
    require_all_rows(found)
    _check_writable(connection, found)
    if found.is_partitioned:
        _check_identities(connection, found)
    return found


@says_lost()
def _check_writable(connection: psycopg.Connection, found: SourceTable) -> None:
    """PostgreSQL 18 refuses updates and deletes of published rows whose replica identity has columns that are not
    published."""
    if connection.info.server_version < 180_000:
        return
    row = connection.execute(
        "SELECT a.attname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.oid = %s AND c.relreplident = 'f' AND a.attgenerated <> '' AND NOT a.attisdropped"
        "   AND a.attname <> ALL (%s) ORDER BY a.attnum LIMIT 1",
        (found.oid, [*(column.name for column in found.columns), *found.left_out]),
    ).fetchone()
    if row is not None:
        raise SourceError(
            f"table {found.table} has REPLICA IDENTITY FULL and a generated column that is not published, {row[0]}: "
            "PostgreSQL would reject updates and deletes",
            f"ALTER TABLE {sql_name(*found.table)} REPLICA IDENTITY DEFAULT, or USING INDEX; or make the publication "
            "yourself, with publish_generated_columns = stored, where it is stored",
        )


def _check_key(found: SourceTable, chosen: Chosen) -> None:
    if not found.key and chosen.key is None:
        if found.has_primary_key:
            raise SourceError(
                f"table {found.table} has no key: its replica identity does not cover its primary key, so the WAL does "
                "not say which rows are updated and deleted",
                f"ALTER TABLE {sql_name(*found.table)} REPLICA IDENTITY DEFAULT",
            )
        raise SourceError(
            f"table {found.table} has no key: no non-deferrable primary key that its replica identity covers",
            f"ALTER TABLE {sql_name(*found.table)} ADD PRIMARY KEY (…); or REPLICA IDENTITY USING INDEX a unique "
            "index; or name unique columns in source.key_columns, or none at all for records without a "
            "key",
        )
    missing = set(found.key) - {column.name for column in found.columns}
    if missing:
        raise SourceError(
            f"key column {sorted(missing)[0]} of table {found.table} is not published",
            "add it to the publication's column list",
        )


def check_chunkable(connection: psycopg.Connection, tables: Sequence[SourceTable]) -> None:
    for found in tables:
        if not found.key:
            raise SourceError(
                f"rows of table {found.table} can't be read in chunks: it has no key",
                "snapshot.method: consistent, which reads all rows before streaming begins",
            )
        if not found.is_chunkable:
            statement = create_index_statement(found.table, found.key).as_string(connection)
            raise SourceError(
                f"rows of table {found.table} can't be read in chunks: no unique index has exactly its key columns "
                f"({', '.join(found.key)}), in this order",
                f"{statement}; or snapshot.method: consistent, which reads all rows before streaming begins",
            )


def _check_may_add(connection: psycopg.Connection, publication: Publication, found: SourceTable) -> None:
    is_seen = publication.publishes_roots or not found.is_partitioned
    if not (is_seen and publication.is_owned and found.is_owned):
        raise _not_contained(connection, publication.name, found.table)


def _not_contained(connection: psycopg.Connection, name: str, table: TableId) -> SourceError:
    statement = add_tables_statement(name, [table]).as_string(connection)
    return SourceError(
        f"publication {name} does not contain table {table}",
        f"as the owner of both: {statement}; or remove it from source.tables "
        "(a partitioned table needs publish_via_partition_root)",
    )


@says_lost()
def _check_identities(connection: psycopg.Connection, root: SourceTable) -> None:
    """The stream describes the root with the root's replica identity, but the log holds the old rows of each
    partition's identity."""
    row = connection.execute(
        # pg_partition_tree() would wait for a lock on a partition.
        "WITH RECURSIVE part(oid) AS (SELECT %(root)s::int8::oid UNION ALL SELECT i.inhrelid FROM part"
        "  JOIN pg_inherits i ON i.inhparent = part.oid AND NOT i.inhdetachpending)"
        " SELECT l.oid::regclass::text FROM part JOIN pg_class l ON l.oid = part.oid AND l.relkind <> 'p'"
        "   JOIN pg_class r ON r.oid = %(root)s::int8::oid AND l.relreplident <> r.relreplident ORDER BY 1 LIMIT 1",
        {"root": root.oid},
    ).fetchone()
    if row is not None:
        raise SourceError(
            f"partition {row[0]} has another replica identity than its root {root.table}: old rows would be misread",
            f"ALTER TABLE {row[0]} REPLICA IDENTITY …, as the root's",
        )


@says_lost()
def check_may_create(connection: psycopg.Connection, config: SourceConfig) -> None:
    """Raises SourceError if the role may not create the publication. Tables that do not exist are not its matter."""
    tables = config.table_ids
    schemas, names = [table.schema for table in tables], [table.name for table in tables]
    may_create, owns_all = read_row(connection, _MAY_CREATE, {"schemas": schemas, "names": names})
    statement = create_publication_statement(config.publication, config.table_ids).as_string(connection)
    if not may_create or not owns_all:
        grant = "" if may_create else f" -- creating it also requires CREATE on database {connection.info.dbname}"
        raise SourceError(
            f"publication {config.publication} does not exist and the role may not create it",
            f"as the tables' owner: {statement}{grant}",
        )


@says_lost()
def check_may_mark(connection: psycopg.Connection) -> None:
    """Raises SourceError if the role may not write logical messages. Everybody may, unless that was revoked."""
    may_execute, signature = read_row(
        connection,
        "SELECT bool_or(has_function_privilege(oid, 'EXECUTE')), min(oid::regprocedure::text) FROM pg_proc"
        " WHERE proname = 'pg_logical_emit_message' AND 'text'::regtype = proargtypes[2]",
    )
    if not may_execute:
        raise SourceError(
            "the role may not write logical messages, which are the watermarks of snapshots",
            f"GRANT EXECUTE ON FUNCTION pg_catalog.{signature} TO <role>",
        )


def _hidden(publication: Publication, table: TableId) -> SourceError:
    if not publication.publishes_roots:
        return SourceError(
            f"publication {publication.name} publishes rows of table {table} as those of its partitions",
            f"ALTER PUBLICATION {sql_name(publication.name)} SET (publish_via_partition_root = true); or name the "
            "partitions in source.tables",
        )
    return SourceError(
        f"publication {publication.name} publishes rows of table {table} as those of its partitioned root",
        "remove one of the two from source.tables",
    )


def create_publication(connection: psycopg.Connection, config: SourceConfig) -> Publication:
    """Creates the configured publication for the configured tables. Raises SourceError, ConnectionLost."""
    with says_lost(f"can't create publication {config.publication}"):
        connection.execute(create_publication_statement(config.publication, config.table_ids))
    publication = read_publication(connection, config.publication, config.table_ids)
    assert publication is not None
    return publication


class TableLockedError(ConnectionLost):
    """Another session has locked the table for longer than LOCK_WAIT_S."""


def add_to_publication(connection: psycopg.Connection, config: SourceConfig, table: TableId) -> Publication:
    """Adds the table to the configured publication. Raises SourceError if the role may not, TableLockedError,
    ConnectionLost."""
    name = config.publication
    with says_lost(f"can't alter publication {name}"):
        try:
            with connection.transaction():
                # A standby that is named in synchronous_standby_names and down would block it.
                connection.execute(f"SET LOCAL synchronous_commit = local; SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'")
                connection.execute(add_tables_statement(name, [table]))
        except psycopg.errors.InsufficientPrivilege as error:
            raise _not_contained(connection, name, table) from error
        except psycopg.errors.LockNotAvailable as error:
            raise TableLockedError(f"table {table} is locked by another session") from error
        except (psycopg.errors.DuplicateObject, psycopg.errors.UndefinedTable) as error:
            # Duplicate: the server completed the statement of an earlier capture that was killed. Undefined: the table
            # was dropped since it was described.
            publication = read_publication(connection, name, [table])
            if publication is not None and table in publication.entries.keys() - publication.columns.keys():
                raise _hidden(publication, table) from error
            raise ConnectionLost(
                f"table {table} can't be added to publication {name} yet: {error.diag.message_primary}"
            ) from error
    publication = read_publication(connection, name, [*dict.fromkeys([*config.table_ids, table])])
    if publication is None or table not in publication.columns:
        # The next session's checks give the reason.
        raise ConnectionLost(f"publication {name} lacks a table that was added")
    return publication


def add_one_to_publication(
    connection: psycopg.Connection, config: SourceConfig, locked: Sequence[TableId], is_closing: threading.Event
) -> bool:
    """Adds the first of these tables that is no longer locked. Returns False if `is_closing` was set meanwhile. Raises
    like add_to_publication."""
    while not is_closing.wait(LOCK_POLL_S):
        for table in locked:
            with suppress(TableLockedError):
                add_to_publication(connection, config, table)
                return True
    return False


@says_lost()
def read_slot(connection: psycopg.Connection, name: str) -> Slot | None:
    """Returns the slot; None if it does not exist."""
    with connection.cursor(row_factory=class_row(Slot)) as cursor:
        return cursor.execute(
            "SELECT plugin::text, database::text, active_pid, wal_status,"
            "       (confirmed_flush_lsn - '0/0')::int8 AS confirmed_flush_lsn,"
            "       coalesce(to_jsonb(s) ->> 'invalidation_reason',"
            "                CASE WHEN (to_jsonb(s) ->> 'conflicting')::bool THEN 'a conflict with recovery' END)"
            "       AS invalidation,"
            "       coalesce((to_jsonb(s) ->> 'failover')::bool, false) AS failover"
            "  FROM pg_replication_slots s WHERE slot_name = %s",
            (name,),
        ).fetchone()


@says_lost()
def has_rows(connection: psycopg.Connection, table: TableId) -> bool:
    """Says whether the connection's transaction snapshot shows a row of the table."""
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(*table))
    return connection.execute(query).fetchone() == (True,)


@says_lost()
def read_log_end(connection: psycopg.Connection) -> Lsn:
    """Returns the present end of the source's log, durable or not."""
    return parse_lsn(read_row(connection, "SELECT pg_current_wal_insert_lsn()::text")[0])


@says_lost()
def read_flush_lsn(connection: psycopg.Connection) -> Lsn:
    """Returns the present end of the source's durable log."""
    return parse_lsn(read_row(connection, "SELECT pg_current_wal_flush_lsn()::text")[0])


@says_lost()
def drop_slot(connection: psycopg.Connection, name: str) -> None:
    """Drops the slot of an initial load that did not complete; does nothing if it does not exist.

    Raises ConnectionLost while it is in use: the server does not notice at once that the process which was creating it
    was killed.
    """
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    except psycopg.errors.UndefinedObject:
        return
    except psycopg.errors.ObjectInUse as error:
        raise ConnectionLost(f"slot {name} can't be dropped yet: {error.diag.message_primary}") from error


def source_now(
    identity: SystemIdentity, flush_lsn: Lsn, slot: Slot | None, publication: Publication | None
) -> SourceNow:
    """Returns the state of the source that a position is compared with."""
    wal_status, confirmed_lsn = (slot.wal_status, slot.confirmed_flush_lsn) if slot else (None, None)
    fingerprint = publication.fingerprint if publication else None
    system = identity.system_identifier, identity.timeline, identity.database
    invalidation = (slot.invalidation if slot else None) or ""
    slot_now = flush_lsn, wal_status, confirmed_lsn
    return SourceNow(*system, *slot_now, fingerprint, identity.ended, identity.is_standby, invalidation)
