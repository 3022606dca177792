"""What `cdc check` says about promotions, each with the statement that helps."""

from dataclasses import replace

import pytest

from watershed.cli.findings.failover import (
    PhysicalSlot,
    PrimaryFacts,
    StandbyFacts,
    findings_of,
    findings_of_standby,
)

READY = PrimaryFacts(180_004, ("standby1",), (PhysicalSlot("standby1", True, True),), 0, True)
SETTINGS = {"sync_replication_slots": "on", "hot_standby_feedback": "on", "primary_slot_name": "standby1"}
STANDBY = StandbyFacts("b:5432", SETTINGS, "synchronised")


@pytest.mark.parametrize(
    ("primary", "says"),
    [
        (READY, "slot shop has FAILOVER, and changes wait for standby1"),
        (replace(READY, slot_has_failover=None), "slot shop has FAILOVER"),  # it will have
        (PrimaryFacts(150_018, (), (), 0, False), "no standby is connected"),
        (PrimaryFacts(180_004, (), (PhysicalSlot("gone", False, False),), 0, True), "no standby is connected"),
    ],
)
def test_what_is_as_it_should_be(primary: PrimaryFacts, says: str) -> None:
    (finding,) = findings_of(primary, "shop", is_wanted=True)
    assert finding.level == "ok"
    assert finding.message.startswith(says)


@pytest.mark.parametrize(
    ("primary", "says", "statement"),
    [
        (replace(READY, version=160_014), "PostgreSQL 16 does not copy slots to standbys", "upgrade to PostgreSQL 17"),
        (replace(READY, slot_has_failover=False), "slot shop has not the option FAILOVER", "start cdc run again"),
        (
            replace(READY, without_slot=1),
            "a standby (or a backup) streams without a replication slot",
            "ALTER SYSTEM SET primary_slot_name = 'standby1'",
        ),
        (
            replace(READY, slots=(PhysicalSlot("standby1", True, False),)),
            "the standby of slot standby1 gives no feedback",
            "ALTER SYSTEM SET hot_standby_feedback = on",
        ),
        (
            replace(READY, waits_for=()),
            "synchronized_standby_slots is empty",
            "ALTER SYSTEM SET synchronized_standby_slots = 'standby1'",
        ),
        (
            replace(READY, waits_for=("standby1", "standby2")),
            "synchronized_standby_slots names standby2, from which no standby streams: the server sends no changes",
            "ALTER SYSTEM SET synchronized_standby_slots = 'standby1'",
        ),
        (
            replace(READY, waits_for=("standby1",), slots=()),
            "synchronized_standby_slots names standby1, from which no standby streams",
            "ALTER SYSTEM SET synchronized_standby_slots = ''",
        ),
    ],
)
def test_each_lack_has_its_statement(primary: PrimaryFacts, says: str, statement: str) -> None:
    (finding,) = findings_of(primary, "shop", is_wanted=True)
    assert finding.level == "warn"
    assert finding.message.startswith(says)
    assert statement in finding.next


def test_what_is_turned_off_is_said() -> None:
    (finding,) = findings_of(READY, "shop", is_wanted=False)
    assert (finding.level, finding.next) == ("warn", "remove source.failover")


@pytest.mark.parametrize(
    ("standby", "says", "hint"),
    [
        (
            replace(STANDBY, settings=SETTINGS | {"sync_replication_slots": "off"}, slot=None),
            "standby b:5432 does not keep slot shop: sync_replication_slots is not set",
            "ALTER SYSTEM SET sync_replication_slots = on; SELECT pg_reload_conf()",
        ),
        (
            replace(STANDBY, settings=SETTINGS | {"primary_slot_name": ""}),
            "standby b:5432 does not keep slot shop: primary_slot_name is not set",
            "ALTER SYSTEM SET primary_slot_name",
        ),
        (replace(STANDBY, slot=None), "slot shop: standby b:5432 does not have it", "dbname"),
        (replace(STANDBY, slot="not yet"), "slot shop: standby b:5432 has not synchronised it yet", "wait"),
        (replace(STANDBY, slot="rows_removed"), "slot shop: standby b:5432 has lost it (rows_removed)", "log"),
    ],
)
def test_a_standby_that_would_not_have_the_slot(standby: StandbyFacts, says: str, hint: str) -> None:
    (finding,) = findings_of_standby(standby, "shop")
    assert (finding.level, finding.message) == ("warn", says)
    assert hint in finding.next


def test_a_standby_that_has_it() -> None:
    (finding,) = findings_of_standby(STANDBY, "shop")
    assert (finding.level, finding.message) == ("ok", "standby b:5432 has slot shop")
