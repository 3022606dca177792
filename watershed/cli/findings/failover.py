"""Findings for `cdc check`: whether capture can continue after a promotion. What is visible from the primary, and from
those standbys that source.dsn names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from cdc.config.settings import SourceConfig
from cdc.model.errors import WatershedError
from cdc.model.findings import Finding
from cdc.postgres.connection import connect, name_of, says_lost, single_hosts
from cdc.postgres.replication import FAILOVER_VERSION

FAILOVER: Final = "failover"
RELOAD: Final = "SELECT pg_reload_conf()"
GUIDE: Final = "docs/how-to/failover.md"
_WANTED: Final = {"sync_replication_slots": "on", "hot_standby_feedback": "on"}  # on a standby


@dataclass(frozen=True, slots=True)
class PhysicalSlot:
    """A slot that a standby streams from, or did."""

    name: str
    is_active: bool
    has_feedback: bool  # the standby tells which rows it still needs


@dataclass(frozen=True, slots=True)
class PrimaryFacts:
    """What the primary shows."""

    version: int  # as server_version_num
    waits_for: tuple[str, ...]  # synchronized_standby_slots
    slots: tuple[PhysicalSlot, ...]
    without_slot: int  # connections that stream the log without a slot
    slot_has_failover: bool | None  # ours; None: it does not exist


@dataclass(frozen=True, slots=True)
class StandbyFacts:
    """What a standby shows. `name`: host and port. `slot`: of ours there; None if it does not exist."""

    name: str
    settings: dict[str, str]
    slot: str | None  # "synchronised", "not yet", or why it is invalidated


def failover_findings(connection: psycopg.Connection, config: SourceConfig) -> Iterator[Finding]:
    """Yields the findings. Raises ConnectionLost."""
    primary = read_primary(connection, config.slot)
    yield from findings_of(primary, config.slot, is_wanted=config.failover)
    if primary.version >= FAILOVER_VERSION and config.failover:
        yield from _standbys(config)


def findings_of(primary: PrimaryFacts, slot: str, *, is_wanted: bool) -> Iterator[Finding]:
    """Yields what the primary shows. Pure."""
    active = [one.name for one in primary.slots if one.is_active]
    if not active and not primary.without_slot and not primary.waits_for:
        yield Finding(FAILOVER, "ok", "no standby is connected")
        return
    if primary.version < FAILOVER_VERSION:
        yield Finding(
            FAILOVER,
            "warn",
            f"PostgreSQL {primary.version // 10000} does not copy slots to standbys: a promotion is a gap, unless the "
            "slot is kept there by Patroni (permanent slots) or pg_failover_slots",
            f"upgrade to PostgreSQL 17, or set up one of these; {GUIDE} says how",
        )
        return
    if not is_wanted:
        yield Finding(FAILOVER, "warn", "source.failover is off: a promotion is a gap", "remove source.failover")
        return
    found = [*_of_slot(primary, slot), *_of_standbys(primary), *_of_order(primary, active)]
    yield from found or [
        Finding(FAILOVER, "ok", f"slot {slot} has FAILOVER, and changes wait for {', '.join(primary.waits_for)}")
    ]


def _of_slot(primary: PrimaryFacts, slot: str) -> Iterator[Finding]:
    if primary.slot_has_failover is False:
        yield Finding(
            FAILOVER, "warn", f"slot {slot} has not the option FAILOVER yet", "start cdc run again: it alters the slot"
        )


def _of_standbys(primary: PrimaryFacts) -> Iterator[Finding]:
    if primary.without_slot:
        yield Finding(
            FAILOVER,
            "warn",
            "a standby (or a backup) streams without a replication slot: slots are synchronised only with one",
            "on the primary: SELECT pg_create_physical_replication_slot('standby1'); on the standby: ALTER SYSTEM SET "
            f"primary_slot_name = 'standby1'; {RELOAD}",
        )
    for one in primary.slots:
        if one.is_active and not one.has_feedback:
            yield Finding(
                FAILOVER,
                "warn",
                f"the standby of slot {one.name} gives no feedback: rows that our slot needs can be removed there, "
                "which invalidates it",
                f"on that standby: ALTER SYSTEM SET hot_standby_feedback = on; {RELOAD}",
            )


def _of_order(primary: PrimaryFacts, active: Sequence[str]) -> Iterator[Finding]:
    """Whether standbys receive changes before capture does."""
    waits_in_vain = [name for name in primary.waits_for if name not in active]
    if waits_in_vain:
        yield Finding(
            FAILOVER,
            "warn",
            f"synchronized_standby_slots names {', '.join(waits_in_vain)}, from which no standby streams: the server "
            "sends no changes to capture until one does",
            "start that standby; or, if it is gone for good: ALTER SYSTEM SET synchronized_standby_slots = "
            f"'{', '.join(name for name in primary.waits_for if name in active)}'; {RELOAD}",
        )
    elif not primary.waits_for and active:
        yield Finding(
            FAILOVER,
            "warn",
            "synchronized_standby_slots is empty: capture may publish changes that no standby has received yet, and "
            "then a promotion is a gap",
            f"ALTER SYSTEM SET synchronized_standby_slots = '{', '.join(active)}'; {RELOAD} -- those that may be "
            "promoted; changes then wait for them",
        )


def findings_of_standby(standby: StandbyFacts, slot: str) -> Iterator[Finding]:
    """Yields what a standby shows. Pure."""
    wrong = {name: value for name, value in _WANTED.items() if standby.settings.get(name) != value}
    statements = [f"ALTER SYSTEM SET {name} = {value}" for name, value in wrong.items()]
    if not standby.settings.get("primary_slot_name"):
        wrong["primary_slot_name"] = ""
        statements.append("ALTER SYSTEM SET primary_slot_name = 'standby1'")
    if wrong:
        yield Finding(
            FAILOVER,
            "warn",
            f"standby {standby.name} does not keep slot {slot}: {', '.join(wrong)} is not set",
            f"on that standby: {'; '.join(statements)}; {RELOAD}; primary_conninfo needs a dbname too",
        )
    elif standby.slot == "synchronised":
        yield Finding(FAILOVER, "ok", f"standby {standby.name} has slot {slot}")
    else:
        why = {None: "does not have it", "not yet": "has not synchronised it yet"}.get(
            standby.slot, f"has lost it ({standby.slot})"
        )
        yield Finding(
            FAILOVER,
            "warn",
            f"slot {slot}: standby {standby.name} {why}",
            "wait, while capture runs: it moves with the log; if it stays so, see the standby's log (primary_conninfo "
            "needs a dbname)",
        )


@says_lost()
def read_primary(connection: psycopg.Connection, slot: str) -> PrimaryFacts:
    """Returns what the primary shows to any role."""
    slots = connection.execute(
        "SELECT slot_name::text, active, xmin IS NOT NULL FROM pg_replication_slots WHERE slot_type = 'physical'"
        " ORDER BY 1"
    ).fetchall()
    setting = connection.execute("SELECT current_setting('synchronized_standby_slots', true)").fetchone()
    # The state is null for a role without pg_read_all_stats: then nothing is known. A logical connection that waits for
    # its slot does not stream.
    without = connection.execute(
        "SELECT count(*) FROM pg_stat_replication r"
        " WHERE state IN ('streaming', 'catchup')"
        "   AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid)"
    ).fetchone()
    ours = connection.execute(
        "SELECT coalesce((to_jsonb(s) ->> 'failover')::bool, false) FROM pg_replication_slots s WHERE slot_name = %s",
        (slot,),
    ).fetchone()
    names = (setting[0] if setting else None) or ""
    return PrimaryFacts(
        version=connection.info.server_version,
        waits_for=tuple(name.strip().strip('"') for name in names.split(",") if name.strip()),
        slots=tuple(PhysicalSlot(*row) for row in slots),
        without_slot=without[0] if without else 0,
        slot_has_failover=ours[0] if ours else None,
    )


@says_lost()
def read_standby(connection: psycopg.Connection, name: str, slot: str) -> StandbyFacts | None:
    """Returns what a standby shows; None for a primary."""
    if connection.execute("SELECT pg_is_in_recovery()").fetchone() != (True,):
        return None
    settings = connection.execute(
        "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", ([*_WANTED, "primary_slot_name"],)
    ).fetchall()
    found = connection.execute(
        "SELECT CASE WHEN invalidation_reason IS NOT NULL THEN invalidation_reason"
        " WHEN synced AND NOT temporary THEN 'synchronised' ELSE 'not yet' END"
        "  FROM pg_replication_slots WHERE slot_name = %s",
        (slot,),
    ).fetchone()
    return StandbyFacts(name, dict(settings), found[0] if found else None)


def _standbys(config: SourceConfig) -> Iterator[Finding]:
    servers = single_hosts(config)
    for server in servers if len(servers) > 1 else ():
        try:
            with connect(server, application="watershed check") as connection:
                standby = read_standby(connection, name_of(server), config.slot)
        except WatershedError as error:
            yield Finding(FAILOVER, "warn", f"{name_of(server)} of source.dsn: {error.message}", error.hint)
        else:
            yield from findings_of_standby(standby, config.slot) if standby is not None else ()
