"""All findings about the source database, for `cdc check`; a start stops at the first error."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

import psycopg

from cdc.config.settings import SnapshotConfig, SourceConfig
from cdc.model.errors import ConfigError, ConnectionLost, WatershedError
from cdc.model.events import TableId
from cdc.model.findings import Finding
from cdc.ports.source_table import SourceTable
from cdc.postgres.catalog import Publication, read_publication
from cdc.postgres.connection import APPLICATION, at_slot, says_lost
from cdc.postgres.replication import ReplicationConnection, StandbyError
from cdc.postgres.source import (
    check_chunkable,
    check_may_create,
    check_may_mark,
    check_slots,
    checked_table,
    is_standby,
    read_slot,
    setting_errors,
)
from watershed.cli.findings.failover import failover_findings
from watershed.cli.findings.standby import standby_findings

SOURCE: Final = "source"
TIMEOUT_MS_MIN: Final = 10_000


def source_findings(
    connection: psycopg.Connection, config: SourceConfig, snapshot: SnapshotConfig, found: list[SourceTable]
) -> Iterator[Finding]:
    """Yields the findings; writes nothing. Appends tables that can be captured to `found`. Raises ConnectionLost."""
    settings = list(setting_errors(connection))
    yield from (Finding.failed(SOURCE, error) for error in settings)
    if not settings:
        version = connection.info.parameter_status("server_version")
        yield Finding(SOURCE, "ok", f"PostgreSQL {version}, wal_level logical, the primary")
    with at_slot(config, connection) as server:
        yield from _attempt(
            SOURCE, lambda: check_slots(server, config.slot), "a replication slot is free, or exists already"
        )
        yield from _slot(server, config)
        yield from _limits(server)
        if config.standby_dsn is not None:
            yield from standby_findings(connection, server, config)
        if not is_standby(server):
            yield from failover_findings(connection, config)
    yield from _encoding(connection)
    yield from _attempt(SOURCE, lambda: _replication(config))
    yield from _attempt(SOURCE, lambda: check_may_mark(connection), "the role may write logical messages")
    publication = read_publication(connection, config.publication, config.table_ids)
    yield from _tables(connection, config, snapshot, publication, found)
    yield from _publication(connection, config, publication, found)


def _attempt(about: str, check: Callable[[], str | None], well: str = "") -> Iterator[Finding]:
    """Yields the finding of a check that raises an error. `well`: what to say without one, if the check does not."""
    try:
        message = check() or well
    except ConnectionLost:
        raise
    except WatershedError as error:
        yield Finding.failed(about, error)
    else:
        yield Finding(about, "ok", message)


def _replication(config: SourceConfig) -> str:
    with closing(ReplicationConnection(config.log_server)) as replication:
        try:
            identity = replication.identify()
        except StandbyError:  # which the server's settings have shown
            return "the role may replicate"
    return f"the role may replicate; database {identity.database}, timeline {identity.timeline}"


def _slot(connection: psycopg.Connection, config: SourceConfig) -> Iterator[Finding]:
    """Yields a finding if the slot of the configured name can't be ours. A slot that capture lost is a finding of
    history."""
    about, slot = f"slot {config.slot}", read_slot(connection, config.slot)
    if slot is None:
        return
    database = connection.info.dbname
    remedy = "choose another name in source.slot: this one is another program's"
    if slot.plugin != "pgoutput":
        kind = f"decodes with {slot.plugin}" if slot.plugin else "is physical"
        yield Finding(
            about, "fail", f"the slot exists and {kind}; capture requires a slot with plugin pgoutput", remedy
        )
    elif slot.database != database:
        yield Finding(about, "fail", f"the slot belongs to database {slot.database}, not {database}",
                      f"correct the database in source.dsn if it is mistyped; otherwise {remedy}")  # fmt: skip
    elif slot.active_pid is not None:
        reader = _application(connection, slot.active_pid)
        if reader == APPLICATION:
            yield Finding(about, "ok", f"capture streams from it (the server's process {slot.active_pid})")
        else:
            yield Finding(
                about,
                "fail",
                f"another program streams from it: {reader or 'one without a name'}, the server's process "
                f"{slot.active_pid}",
                f"{remedy}; if it is a former consumer of yours, stop that one first",
            )


@says_lost()
def _application(connection: psycopg.Connection, pid: int) -> str:
    row = connection.execute("SELECT application_name FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone()
    return str(row[0] or "") if row else ""


def _encoding(connection: psycopg.Connection) -> Iterator[Finding]:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding == "SQL_ASCII":
        yield Finding(
            SOURCE,
            "warn",
            "the database has encoding SQL_ASCII, which accepts any bytes: a table stops at the first text that is not "
            "UTF-8",
            "load the database into one that has ENCODING 'UTF8', and name that in source.dsn",
        )
    else:
        yield Finding(SOURCE, "ok", f"the database has encoding {encoding}, which the server converts to UTF-8")


@says_lost()
def _read_limits(connection: psycopg.Connection) -> dict[str, int]:
    return dict(
        connection.execute(
            "SELECT name, setting::int8 FROM pg_settings WHERE name IN ('max_slot_wal_keep_size',"
            " 'wal_sender_timeout', 'idle_replication_slot_timeout')"
        ).fetchall()
    )


def _limits(connection: psycopg.Connection) -> Iterator[Finding]:
    limits = _read_limits(connection)
    if limits["max_slot_wal_keep_size"] < 0:
        yield Finding(
            SOURCE,
            "warn",
            "max_slot_wal_keep_size is not set: while capture is down, the slot retains WAL until the disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf(); "
            "-- what the disk can spare; beyond it the slot is lost, and rows are read again",
        )
    else:
        yield Finding(SOURCE, "ok", f"the slot may retain {limits['max_slot_wal_keep_size']:,} MB of WAL")
    if 0 < limits["wal_sender_timeout"] < TIMEOUT_MS_MIN:
        yield Finding(
            SOURCE,
            "warn",
            f"wal_sender_timeout is {limits['wal_sender_timeout']} ms: a short pause ends the stream",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf()",
        )
    if limits.get("idle_replication_slot_timeout", 0) > 0:
        yield Finding(
            SOURCE,
            "warn",
            "idle_replication_slot_timeout is set: the slot is invalidated when capture is down for that time",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
        )


def _tables(
    connection: psycopg.Connection,
    config: SourceConfig,
    snapshot: SnapshotConfig,
    publication: Publication | None,
    found: list[SourceTable],
) -> Iterator[Finding]:
    def described(table: TableId) -> str:
        one = checked_table(connection, table, publication, config.chosen(table))
        if snapshot.method == "chunked" and not config.is_outbox(table):
            check_chunkable(connection, [one])
        found.append(one)
        key = f"key {', '.join(one.key)}" if one.key else "records without a key"
        return f"{key}, {len(one.columns)} columns"

    for table in config.table_ids:
        for finding in _attempt(f"table {table}", partial(described, table)):
            # A start stops a table that a pattern takes, and refuses one that is named.
            is_stopped = finding.level == "fail" and not config.is_named(table)
            yield replace(finding, level="warn") if is_stopped else finding
    if len(found) == len(config.table_ids):
        try:
            config.columns.require_meaning(
                (one.table, name) for one in found for name in (*(c.name for c in one.columns), *one.left_out)
            )
        except ConfigError as error:
            yield Finding.failed("columns", error)


def _publication(
    connection: psycopg.Connection,
    config: SourceConfig,
    publication: Publication | None,
    found: Sequence[SourceTable],
) -> Iterator[Finding]:
    about = f"publication {config.publication}"
    if publication is None:
        yield from _attempt(about, lambda: check_may_create(connection, config), "will be created at the first start")
        return
    missing = [str(one.table) for one in found if one.table not in publication.columns]
    yield Finding(about, "ok", f"will be extended with {', '.join(missing)}" if missing else "exists")
