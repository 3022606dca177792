"""What `cdc check` says about a standby whose log is read, each with the statement that helps."""

from dataclasses import replace

import pytest

from watershed.cli.findings.standby import LogFacts, findings_of

READY = LogFacts(has_physical_slot=True, has_slot=True, is_left_on_primary=False, may_log=True, is_named=True)


@pytest.mark.parametrize("facts", [READY, replace(READY, may_log=False), replace(READY, has_slot=False)])
def test_what_is_as_it_should_be(facts: LogFacts) -> None:
    (finding,) = findings_of(facts, "shop")
    assert (finding.level, finding.message) == (
        "ok",
        "the log is read from a standby of the primary that source.dsn leads to",
    )


@pytest.mark.parametrize(
    ("facts", "says", "step"),
    [
        (
            replace(READY, has_physical_slot=False),
            "the standby streams without a replication slot",
            "ALTER SYSTEM SET primary_slot_name = 'standby1'",
        ),
        (
            replace(READY, has_slot=False, may_log=False),
            "the role may not call pg_log_standby_snapshot()",
            "GRANT EXECUTE ON FUNCTION pg_catalog.pg_log_standby_snapshot() TO <role>",
        ),
        (
            replace(READY, is_left_on_primary=True),
            "slot shop exists on the primary, too",
            "pg_drop_replication_slot('shop')",
        ),
        (replace(READY, is_named=False), "source.dsn does not name the standby", "host=primary,standby"),
    ],
)
def test_what_is_missing_comes_with_the_step_that_helps(facts: LogFacts, says: str, step: str) -> None:
    _, finding = findings_of(facts, "shop")
    assert finding.level == "warn"
    assert finding.message.startswith(says)
    assert step in finding.next
