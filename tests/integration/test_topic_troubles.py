"""One table's topic that was deleted, created again, repartitioned or robbed of records stops that table; the others
go on, and an operator has its rows read again."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, LiteralString

import pytest
from confluent_kafka.admin import NewPartitions

from tests.checker.positions import sweeps_of
from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS, OTHER
from tests.integration.test_topic_identity import progress
from tests.support.captured import Captured, under_capture
from tests.support.topics import admin_of, delete_compacted_records, delete_topic, recreate_topic, set_topics
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

TABLES: LiteralString = (
    "CREATE TABLE items (id int PRIMARY KEY, name text); CREATE TABLE other (id int PRIMARY KEY, name text)"
)


@pytest.fixture
def both(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """Two tables with rows, both captured."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [ITEMS, OTHER]) as made:
        made.query("INSERT INTO items SELECT n, 'old' FROM generate_series(1, 40) n; INSERT INTO other VALUES (1, 'a')")
        made.start()
        made.await_caught_up()
        yield made


def repartition(servers: str, topic: str) -> None:
    admin = admin_of(servers)  # an admin client that nobody refers to ends its calls
    admin.create_partitions([NewPartitions(topic, 9)])[topic].result(10)


def delete_records(servers: str, topic: str) -> None:
    delete_compacted_records(servers, topic, {0: 3})


TROUBLES: Final[dict[str, Callable[[str, str], None]]] = {
    "is gone": delete_topic,
    "was deleted and recreated": recreate_topic,
    "has 9 partitions, but had 4": repartition,
    "has lost records: partition 0 begins at 3": delete_records,
}


def await_stopped(captured: Captured, expected: str) -> None:
    def is_stopped() -> bool:
        state = captured.states()[ITEMS]
        return state["status"] == "stopped" and expected in state["message"]

    eventually(is_stopped, 90.0, lambda: f"{captured.states()[ITEMS]}\n{captured.running().said()}")


def await_same(captured: Captured, *tables: str) -> None:
    eventually(
        lambda: not captured.unfinished() and not captured.unlike(tables),
        90.0,
        lambda: f"{captured.unlike(tables)}\n{captured.running().said()}",
    )


@pytest.mark.promise(4)
@pytest.mark.invariant(10)
@pytest.mark.parametrize("is_running", [True, pytest.param(False, marks=pytest.mark.long)], ids=["running", "asleep"])
@pytest.mark.parametrize("expected", TROUBLES)
def test_a_topic_in_trouble_stops_its_table_until_an_operator_starts_it(
    both: Captured, expected: str, is_running: bool
) -> None:
    topic, before = f"{both.name}.{ITEMS}", progress(both)
    if not is_running:
        assert both.running().terminate() == 0
    TROUBLES[expected](both.bootstrap_servers, topic)
    both.query("UPDATE items SET name = 'new' WHERE id < 10; DELETE FROM items WHERE id = 10")
    both.query("INSERT INTO other VALUES (2, 'b')")
    if not is_running:
        both.start()
    await_stopped(both, f"topic {topic} {expected}")
    both.query("INSERT INTO other VALUES (3, 'c'); DELETE FROM items WHERE id = 11")
    await_same(both, OTHER)
    assert "GAP" not in both.running().said()
    assert both.states()[ITEMS]["next"] == f"cdc table start {ITEMS}: all its rows are read again"
    eventually(lambda: ITEMS in progress(both)["owed"], 30.0, "it is owed")

    both.cdc("table", "start", ITEMS)
    eventually(lambda: not progress(both)["owed"], 90.0, both.running().said)
    await_same(both, ITEMS, OTHER)
    after = progress(both)
    assert (after["epoch"], after["history"]) == (before["epoch"], before["history"])
    assert after["incarnations"][topic] != before["incarnations"][topic]
    assert after["incarnations"][f"{both.name}.{OTHER}"] == before["incarnations"][f"{both.name}.{OTHER}"]
    assert len(after["end_offsets"][topic]) == (9 if "9 partitions" in expected else 4)
    floor = max(sweep.floor for sweep in sweeps_of(both.records("control")) if sweep.table == ITEMS)
    alive = {key for (key,) in both.query("SELECT id FROM items")}
    newest = {c.key["id"]: c.version for c in both.changes() if c.table == ITEMS}
    assert {key for key, version in newest.items() if version >= floor and key in alive} == alive
    assert {key for key, version in newest.items() if version < floor} & alive == set(), "a reader sweeps no row"

    both.query("INSERT INTO items VALUES (50, 'last')")
    await_same(both, ITEMS)
    assert both.running().terminate() == 0
    both.start()
    both.await_caught_up()
    assert both.states()[ITEMS]["status"] == "captured"


@pytest.mark.promise(4)
def test_a_table_whose_topic_was_deleted_is_read_again_at_once_where_gaps_heal_themselves(both: Captured) -> None:
    both.running().kill()
    both.settings = {"snapshot": {"mode": "when_needed"}}
    both.start().await_said("streaming")
    delete_topic(both.bootstrap_servers, f"{both.name}.{ITEMS}")
    both.query("UPDATE items SET name = 'new' WHERE id < 10")
    await_same(both, ITEMS, OTHER)
    assert "GAP" not in both.running().said()


@pytest.mark.promise(4)
def test_a_topic_that_takes_no_rows_stops_its_table_alone(both: Captured) -> None:
    topic = f"{both.name}.{ITEMS}"
    assert both.running().terminate() == 0
    set_topics(both.bootstrap_servers, [topic], cleanup_policy="delete")
    both.query("UPDATE items SET name = 'new' WHERE id < 10; INSERT INTO other VALUES (2, 'b')")
    both.start()
    await_stopped(both, f"topic {topic} exists with cleanup.policy=delete, not compact")
    await_same(both, OTHER)
    set_topics(both.bootstrap_servers, [topic], cleanup_policy="compact")
    both.cdc("table", "start", ITEMS)
    await_same(both, ITEMS, OTHER)


def test_a_heal_without_a_gap_names_the_tables_that_wait_for_an_operator(both: Captured) -> None:
    delete_topic(both.bootstrap_servers, f"{both.name}.{ITEMS}")
    await_stopped(both, "is gone")
    answer = both.ask("heal")
    assert (answer.is_accepted, answer.message) == (False, "there is no gap to heal: capture is streaming")
    assert answer.next == f"cdc table start {ITEMS}: it is stopped, and all its rows are read again"


@pytest.mark.promise(4)
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "asleep"])
def test_a_publication_that_got_other_options_has_its_tables_read_again(both: Captured, is_running: bool) -> None:
    """It may have left out updates meanwhile."""
    if not is_running:
        assert both.running().terminate() == 0
    both.query("BEGIN; ALTER PUBLICATION watershed SET (publish = 'insert'); COMMIT")
    both.query("UPDATE items SET name = 'unpublished' WHERE id < 10")
    both.query("ALTER PUBLICATION watershed SET (publish = 'insert, update, delete, truncate')")
    if not is_running:
        both.start()
    await_same(both, ITEMS, OTHER)
    assert "GAP" not in both.running().said()
    assert progress(both)["epoch"] == 1


@pytest.mark.promise(4)
def test_a_publication_that_leaves_out_changes_is_a_gap(both: Captured) -> None:
    both.query("ALTER PUBLICATION watershed SET (publish = 'insert')")
    assert "the publication was altered, and leaves out some operations" in both.running().await_refusal()
