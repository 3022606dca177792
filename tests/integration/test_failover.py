"""Promotions of real standbys: capture continues where the promoted server has all that is published, and is in state
GAP with the range where it has not."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.model.lsn import parse_lsn
from tests.checker.records import Change, parse
from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS, SMALL
from tests.support.captured import Captured, under_capture
from tests.support.standby_servers import PgServer, StandbyServers, Writer, standby_servers
from tests.support.waiting import eventually
from watershed.devstack.stack import Stack

pytestmark = pytest.mark.whole


@pytest.fixture
def pair() -> Iterator[StandbyServers]:
    """A primary with one standby."""
    with standby_servers(2) as made:
        yield made


@pytest.fixture
def items(pair: StandbyServers, kafka: KafkaBroker, stack: Stack, unique: str, tmp_path: Path) -> Iterator[Captured]:
    """Capture through all servers, with 20 rows that were there before."""
    server = PostgresServer(pair.dsn(), pair.dsn("postgres"), stack)
    with under_capture(server, kafka, pair.dsn(), unique, tmp_path, SMALL, [ITEMS]) as made:
        made.query("INSERT INTO items SELECT g, 'before' FROM generate_series(1, 20) g")
        yield made


def streaming(items: Captured, pair: StandbyServers, standby: PgServer) -> None:
    """Capture streams, and the standby has the slot."""
    items.start()
    items.await_caught_up()
    pair.await_synchronised(items.name, [standby])


def read_rows(changes: list[Change]) -> list[Change]:
    return [change for change in changes if change.op == "r"]


def position(items: Captured) -> dict[str, object]:
    return dict(parse([r.value for r in items.records("state") if r.key == b"position"][-1] or b""))


@pytest.mark.promise(1)
@pytest.mark.promise(4)
def test_a_promoted_standby_with_the_slot_is_followed_and_no_row_is_read_again(
    items: Captured, pair: StandbyServers
) -> None:
    primary, standby = pair.servers
    streaming(items, pair, standby)
    primary.set(synchronized_standby_slots=standby.physical_slot)
    with Writer(items.dsn) as writer:
        eventually(lambda: writer.count > 300, 30.0, "changes are written")
        primary.kill()
        standby.promote()
        count = writer.count
        eventually(lambda: any(change.epoch == 2 for change in items.changes()), 30.0, items._said)
        eventually(lambda: writer.count > count + 300, 30.0, "changes are written to the promoted server")
    items.await_caught_up()
    report = items.judge()
    assert report.epoch == 2
    assert len(read_rows(list(report.changes))) == 20, "rows of the first snapshot, each once"
    assert "state GAP" not in items.running().said()
    assert "no row is read again" in items.running().said()
    then = position(items)["source"]
    assert isinstance(then, dict)
    assert then["timeline"] == 2
    assert len(then["branches"]) == 1


@pytest.mark.promise(4)
def test_a_standby_that_was_behind_is_a_gap_with_the_range_and_healing_removes_what_never_happened(
    items: Captured, pair: StandbyServers
) -> None:
    primary, standby = pair.servers
    streaming(items, pair, standby)
    standby.set(primary_conninfo="")  # it receives nothing any more
    eventually(lambda: not primary.query("SELECT 1 FROM pg_stat_replication WHERE application_name = 'walreceiver'"))
    shared = items.log_end()
    items.query("INSERT INTO items VALUES (30, 'lost'); DELETE FROM items WHERE id = 1")
    items.await_caught_up()
    published = max(change.commit_lsn or 0 for change in items.changes())
    primary.kill()
    standby.promote()
    said = items.running().await_refusal()
    found = re.search(r"parts from the published history at (\S+), but changes up to (\S+) are published", said)
    assert found is not None, said
    switch, end = map(parse_lsn, found.groups())
    assert switch <= published < end, "the transaction is in the range"
    assert abs(switch - shared) < 0x10000
    items.query("INSERT INTO items VALUES (31, 'after')")
    items.ask("heal")
    items.await_caught_up()
    assert items.unlike([ITEMS]) == {}
    assert items.epoch() == 2
    made = {(change.key["id"], change.op, change.is_streamed) for change in items.changes() if change.epoch == 2}
    assert made == {(30, "d", False), (1, "r", False), (31, "c", True)}, "no other row is read"
    assert "healing rows whose changes never happened" in items.running().said()


@pytest.mark.promise(4)
def test_a_promoted_standby_without_the_slot_is_a_gap(items: Captured, pair: StandbyServers) -> None:
    primary, standby = pair.servers
    items.settings = {"source": {"failover": False}}
    items.start()
    items.await_caught_up()
    assert primary.query("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", items.name) == [(False,)]
    primary.stop()
    standby.promote()
    said = items.running().await_refusal()
    assert f"slot {items.name} can" in said
    assert "does not exist" in said
    assert "cdc check says what the next promotion needs" in said
    items.query("INSERT INTO items VALUES (31, 'after')")
    items.ask("heal")
    items.await_caught_up()
    items.judge()


def test_an_existing_slot_is_altered_as_configured(items: Captured, pair: StandbyServers) -> None:
    primary, standby = pair.servers
    items.settings = {"source": {"failover": False}}
    capture = items.start()
    items.await_caught_up()
    assert capture.terminate() == 0
    items.settings = {}
    items.start().await_said("slot altered")
    items.await_caught_up()
    assert primary.query("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", items.name) == [(True,)]
    pair.await_synchronised(items.name, [standby])


@pytest.mark.promise(4)
def test_an_old_primary_that_still_answers_is_left_and_named_by_both_instances(
    items: Captured, pair: StandbyServers
) -> None:
    primary, standby = pair.servers
    streaming(items, pair, standby)
    first, second = items.running(), items.start()
    second.await_said("standing by")
    standby.promote()  # the other one knows nothing of it
    first.await_said("two servers of source.dsn are primaries")
    eventually(lambda: "no row is read again" in first.said() + second.said(), 60.0, items._said)
    standby.query("INSERT INTO items VALUES (31, 'to the new one')")
    eventually(lambda: any(change.key["id"] == 31 for change in items.changes()), 30.0, items._said)
    primary.query("INSERT INTO items VALUES (32, 'to the old one')")
    primary.kill()
    items.await_caught_up()
    assert {change.key["id"] for change in items.changes()} == {*range(1, 21), 31}
    assert "state GAP" not in first.said() + second.said()
    items.judge()


@pytest.mark.promise(4)
def test_only_an_old_primary_answers_until_the_right_one_is_found_again(items: Captured, pair: StandbyServers) -> None:
    primary, standby = pair.servers
    streaming(items, pair, standby)
    primary.kill()
    standby.promote()
    items.running().await_said("no row is read again")
    standby.query("INSERT INTO items VALUES (31, 'new')")
    items.await_caught_up()
    standby.stop()
    primary.start()
    said = items.running().await_refusal()
    assert "the server is on timeline 1, the position on 2: an old primary" in said
    primary.stop()
    standby.start()
    standby.query("INSERT INTO items VALUES (33, 'newer')")
    items.await_caught_up()
    assert items.epoch() == 2
    items.judge()


@pytest.mark.promise(1)
def test_a_snapshot_goes_on_after_a_promotion(items: Captured, pair: StandbyServers) -> None:
    primary, standby = pair.servers
    items.query("INSERT INTO items SELECT g, 'many' FROM generate_series(1000, 6999) g")
    items.settings = {"snapshot": {"chunk_rows_max": 200, "rows_per_s_max": 1_000, "workers": 1}}
    items.start()
    pair.await_synchronised(items.name, [standby])
    primary.set(synchronized_standby_slots=standby.physical_slot)
    eventually(lambda: len(read_rows(items.changes())) > 1_000, 60.0, items._said)
    primary.kill()
    standby.promote()
    before = len(read_rows(items.changes()))
    items.await_caught_up()
    report = items.judge()
    read = read_rows(list(report.changes))
    assert before < 6_020, "it was not finished"
    assert {1, 2} == {change.epoch for change in read}
    assert 6_020 <= len(read) <= 6_020 + 400, "at most the chunks that were open are read again"
