"""Findings for `cdc check` about the standby whose log is read (source.standby_dsn)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, LiteralString

import psycopg

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConnectionLost, WatershedError
from cdc.model.findings import Finding
from cdc.postgres.connection import name_of, read_row, says_lost, single_hosts
from cdc.postgres.source import is_standby, standby_errors
from cdc.postgres.standby_log import GRANT, MAY_LOG, require_log_of_primary

STANDBY: Final = "standby"
_OF_STANDBY: LiteralString = """
SELECT current_setting('primary_slot_name') <> '',
       EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(slot)s)
"""
_OF_PRIMARY: LiteralString = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %(slot)s)"


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the two servers show about the slot."""

    has_physical_slot: bool  # the standby streams from a slot of the primary
    has_slot: bool  # ours, on the standby
    is_left_on_primary: bool  # a slot of that name
    may_log: bool  # whether the role may make the primary write its running transactions
    is_named: bool  # source.dsn names the standby, too


def standby_findings(
    connection: psycopg.Connection, server: psycopg.Connection, config: SourceConfig
) -> Iterator[Finding]:
    """Yields the findings. `connection`, `server`: to the primary, and to that
    standby. Raises ConnectionLost."""
    yield from (Finding.failed(STANDBY, error) for error in standby_errors(server, config))
    try:
        require_log_of_primary(config)
    except ConnectionLost:
        raise
    except WatershedError as error:
        yield Finding.failed(STANDBY, error)
        return
    if not is_standby(server):
        yield Finding(STANDBY, "ok", "source.standby_dsn leads to the primary: it was promoted")
        return
    parameters = {"slot": config.slot}
    with says_lost():
        has_physical_slot, has_slot = read_row(server, _OF_STANDBY, parameters)
        (is_left,) = read_row(connection, _OF_PRIMARY, parameters)
        (may_log,) = read_row(connection, MAY_LOG)
    is_named = name_of(config.log_server) in map(name_of, single_hosts(config))
    yield from findings_of(LogFacts(has_physical_slot, has_slot, is_left, may_log, is_named), config.slot)


def findings_of(facts: LogFacts, slot: str) -> Iterator[Finding]:
    """Yields what the servers show. Pure."""
    yield Finding(STANDBY, "ok", "the log is read from a standby of the primary that source.dsn leads to")
    if not facts.has_physical_slot:
        yield Finding(
            STANDBY,
            "warn",
            "the standby streams without a replication slot: while it is away, the primary removes rows and log that "
            f"slot {slot} needs, which loses it",
            "on the primary: SELECT pg_create_physical_replication_slot('standby1'); on the standby: ALTER SYSTEM SET "
            "primary_slot_name = 'standby1'; SELECT pg_reload_conf()",
        )
    if not facts.has_slot and not facts.may_log:
        yield Finding(
            STANDBY,
            "warn",
            "the role may not call pg_log_standby_snapshot() on the primary: the creation of the slot takes up to half "
            "a minute longer",
            f"as a superuser, on the primary: {GRANT}",
        )
    if facts.is_left_on_primary:
        yield Finding(
            STANDBY,
            "warn",
            f"slot {slot} exists on the primary, too: nobody reads it, and it retains log there",
            f"on the primary: SELECT pg_drop_replication_slot('{slot}')",
        )
    if not facts.is_named:
        yield Finding(
            STANDBY,
            "warn",
            "source.dsn does not name the standby: when it is promoted, capture does not find the primary",
            "name both in source.dsn, as host=primary,standby",
        )
