"""Capture that reads the log of a standby (source.standby_dsn), while rows are read from the primary."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checker.records import Change
from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS, SMALL
from tests.support.captured import Captured, under_capture
from tests.support.checked import the_one, troubles
from tests.support.standby_servers import PgServer, StandbyServers, Writer, standby_servers
from tests.support.waiting import eventually
from watershed.devstack.instance import HOST
from watershed.devstack.postgres import DATABASE, ROLE, SUPERUSER
from watershed.devstack.stack import Stack

pytestmark = pytest.mark.long


@pytest.fixture
def three(request: pytest.FixtureRequest) -> Iterator[StandbyServers]:
    """A primary, the standby that is read, and another standby; of PostgreSQL 18 unless a test says otherwise."""
    with standby_servers(3, getattr(request, "param", 18)) as made:
        yield made


@pytest.fixture
def items(three: StandbyServers, kafka: KafkaBroker, stack: Stack, unique: str, tmp_path: Path) -> Iterator[Captured]:
    """Capture through the first standby, with 2,000 rows that were there before."""
    server = PostgresServer(three.dsn(), three.dsn("postgres"), stack)
    read = three.servers[1]
    with under_capture(server, kafka, three.dsn(), unique, tmp_path, SMALL, [ITEMS]) as made:
        made.query("INSERT INTO items SELECT -g, 'before' FROM generate_series(1, 2000) g")
        made.query("GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO PUBLIC")
        made.slot_dsn = f"host={HOST} port={read.port} user={SUPERUSER} dbname={DATABASE} connect_timeout=5"
        made.settings = {
            "source": {"standby_dsn": f"postgresql://{ROLE}@{HOST}:{read.port}/{DATABASE}"},
            "snapshot": {"chunk_rows_max": 200, "rows_per_s_max": 2_000, "workers": 2},
        }
        yield made


def slots(server: PgServer) -> list[str]:
    rows = server.query("SELECT slot_name::text FROM pg_replication_slots WHERE slot_type = 'logical'")
    return [name for (name,) in rows]


def read_rows(changes: list[Change]) -> list[Change]:
    return [change for change in changes if change.op == "r"]


@pytest.mark.promise(1)
@pytest.mark.promise(4)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("three", [16, 18], indirect=True)
def test_rows_and_log_of_two_servers_are_exact_under_load_and_through_a_promotion(
    items: Captured, three: StandbyServers
) -> None:
    primary, standby, other = three.servers
    with Writer(items.dsn) as writer:
        eventually(lambda: writer.count > 200, 30.0, "changes are written")
        items.start()
        eventually(lambda: len(read_rows(items.changes())) >= 2_000, 90.0, items._said)
        assert slots(primary) == []
        assert slots(standby) == [items.name]
        assert items.ask("snapshot", tables=(ITEMS,)).is_accepted
        eventually(lambda: len(read_rows(items.changes())) > 2_600, 60.0, items._said)
        other.stop()
        primary.kill()
        standby.promote()
        count = writer.count
        eventually(lambda: items.epoch() == 2, 60.0, items._said)
        eventually(lambda: writer.count > count + 300, 60.0, "changes are written to the promoted server")
    items.await_caught_up()
    report = items.judge()
    assert report.epoch == 2
    said = items.running().said()
    assert "state GAP" not in said
    assert "no row is read again" in said


@pytest.mark.promise(4)
@pytest.mark.timeout(300)
def test_the_standby_follows_another_server_that_was_promoted_and_capture_through_it(
    items: Captured, three: StandbyServers
) -> None:
    primary, standby, other = three.servers
    items.start()
    items.await_caught_up()
    with Writer(items.dsn) as writer:
        eventually(lambda: writer.count > 200, 30.0, "changes are written")
        primary.stop()  # both standbys get everything
        other.promote()
        other.query("SELECT pg_create_physical_replication_slot(%s)", standby.physical_slot)
        standby.set(primary_conninfo=f"host={HOST} port={other.port} user={SUPERUSER} dbname={DATABASE}")
        count = writer.count
        eventually(lambda: writer.count > count + 300, 60.0, "changes are written to the promoted server")
        eventually(lambda: items.epoch() == 2, 60.0, items._said)
    items.await_caught_up()
    items.judge()
    said = items.running().said()
    assert "state GAP" not in said
    assert "no row is read again" in said
    assert standby.query("SELECT pg_is_in_recovery()") == [(True,)]


@pytest.mark.timeout(300)
def test_the_primary_is_away_and_a_snapshot_waits_for_it(items: Captured, three: StandbyServers) -> None:
    primary = three.servers[0]
    capture = items.start()
    items.await_caught_up()
    items.query("INSERT INTO items VALUES (1, 'last')")
    primary.stop()
    eventually(lambda: any(change.key["id"] == 1 for change in items.changes()), 30.0, items._said)
    assert items.ask("snapshot", tables=(ITEMS,)).is_accepted
    capture.await_said("transaction barrier failed")
    assert "session lost" not in capture.said()
    primary.start()
    items.await_caught_up()
    items.judge()
    assert len(read_rows(items.changes())) >= 4_000


@pytest.mark.promise(4)
@pytest.mark.timeout(300)
def test_a_standby_that_is_made_again_is_a_gap_and_a_heal_publishes_what_differs(
    items: Captured, three: StandbyServers
) -> None:
    primary, standby, _ = three.servers
    capture = items.start()
    items.await_caught_up()
    standby.make_standby_of(primary)
    items.query("INSERT INTO items VALUES (1, 'since')")
    said = capture.await_refusal()
    assert f"slot {items.name}" in said
    assert "a standby that is made again has no slots" in said
    items.ask("heal")
    items.await_caught_up()
    items.judge()
    assert slots(standby) == [items.name]
    assert [c.key["id"] for c in items.changes() if c.epoch == 2] == [1], "no other row is published"


@pytest.mark.promise(4)
@pytest.mark.timeout(300)
def test_a_slot_that_a_conflict_invalidates_is_a_gap_with_the_reason(items: Captured, three: StandbyServers) -> None:
    primary, standby, _ = three.servers
    items.query("REVOKE EXECUTE ON FUNCTION pg_log_standby_snapshot() FROM PUBLIC")  # creation takes longer
    capture = items.start()
    items.await_caught_up()
    standby.set(hot_standby_feedback="off")
    step = the_one(troubles(items), "standby", "hot_standby_feedback is off").next
    assert "ALTER SYSTEM SET hot_standby_feedback = on" in step
    eventually(
        lambda: primary.query(
            "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND xmin IS NULL AND catalog_xmin IS NULL",
            standby.physical_slot,
        ),
        30.0,
        "the primary keeps nothing for the standby any more",
    )

    def is_lost() -> bool:
        """The other standby tells only every ten seconds which rows it still needs."""
        primary.query("CREATE TABLE short_lived (id int)")
        primary.query("DROP TABLE short_lived")
        primary.query("VACUUM pg_class, pg_attribute")
        items.query("INSERT INTO items SELECT max(id) + 1, 'in conflict' FROM items")
        return "state GAP" in capture.said()

    eventually(is_lost, 90.0, items._said)
    said = capture.await_refusal()
    assert "invalidat" in said or "conflict" in said, said
    assert "hot_standby_feedback" in said
    standby.set(hot_standby_feedback="on")
    items.ask("heal")
    items.await_caught_up()
    items.judge()
