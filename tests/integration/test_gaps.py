"""History that may hide a change, and changes that can't be followed: capture publishes nothing after it."""

import json
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest
from confluent_kafka.cimpl import NewPartitions

from tests.captured import Captured
from tests.conftest import PostgresServer, new_database
from tests.integration.conftest import ITEMS, OTHER, SMALL
from tests.topics import admin_of, recreate_topic


def written(captured: Captured) -> tuple[Any, ...]:
    """All that capture could have written."""
    return (
        captured.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"),
        captured.query("SELECT pubname, xmin FROM pg_publication"),
        sorted(captured.topics()),
        published(captured),
        captured.confirmed(),
    )


# ---- while running


@pytest.fixture
def running(items: Captured) -> Callable[[], str]:
    """Capture streams one row. The function waits for its end and returns what it said last."""
    capture = items.start()
    items.await_caught_up()
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.await_caught_up()

    return capture.await_refusal


def topic_of(captured: Captured) -> str:
    return f"{captured.name}.{ITEMS}"


def published(captured: Captured) -> list[int]:
    """Keys in the order of publication."""
    return [change.key["id"] for change in captured.changes()]


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (
            ["ALTER TABLE items ADD COLUMN more text", "INSERT INTO items VALUES (3, 'three')"],
            "table public.items was altered: column more was added",
        ),
        (
            ["ALTER TABLE items RENAME TO things", "INSERT INTO things VALUES (3, 'x')"],
            "it is called public.things now",
        ),
        (["ALTER TABLE items REPLICA IDENTITY NOTHING", "INSERT INTO items VALUES (3, 'x')"], "replica identity"),
    ],
    ids=["add column", "rename", "identity nothing"],
)
def test_a_change_that_can_not_be_followed_stops_capture_before_it(
    items: Captured, running: Callable[[], str], statements: list[LiteralString], says: str
) -> None:
    with items.connect() as connection:
        connection.execute("ALTER TABLE items ALTER name SET STORAGE EXTERNAL")
        connection.execute("INSERT INTO items VALUES (2, repeat('large', 10000))")
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)
        connection.execute("INSERT INTO other VALUES (1)")
    assert says in running()
    # What is whole before it is published, unless a part of its own transaction had come with that: then all waits.
    assert published(items) in ([1], [1, 2])
    items.start().await_refusal()  # a restart helps nothing
    assert published(items) in ([1], [1, 2])


@pytest.mark.promise(4)
@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DROP PUBLICATION watershed", "publication"),
        (
            "ALTER PUBLICATION watershed SET TABLE other; ALTER PUBLICATION watershed SET TABLE items",
            "publication watershed was altered or dropped",
        ),
    ],
    ids=["dropped", "taken out and put back"],
)
def test_a_publication_that_is_altered_while_running_is_a_gap(
    items: Captured, running: Callable[[], str], statement: LiteralString, says: str
) -> None:
    with items.connect() as connection:
        connection.execute(statement)
        connection.execute("INSERT INTO items VALUES (2, 'two')")
    assert says in running()
    items.start().await_refusal()


@pytest.mark.promise(4)
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_topic_that_is_created_anew_while_running_is_a_gap(
    items: Captured, running: Callable[[], str], is_idle: bool
) -> None:
    recreate_topic(items.bootstrap_servers, topic_of(items))
    if not is_idle:
        items.query("INSERT INTO items VALUES (2, 'two')")
    said = running()
    assert f"topic {items.name}.public.items" in said
    assert "created anew" in said or "is gone" in said
    items.start().await_refusal()


@pytest.mark.promise(4)
def test_a_topic_with_new_partitions_while_running_is_a_gap(items: Captured, running: Callable[[], str]) -> None:
    topic = topic_of(items)
    admin = admin_of(items.bootstrap_servers)
    admin.create_partitions([NewPartitions(topic, 9)])[topic].result(10)
    assert f"topic {topic} has 9 partitions, it had 4" in running()


# ---- while stopped


@pytest.fixture
def stopped(items: Captured) -> Callable[[], str]:
    """Capture has streamed one row and ended. The function starts it again, and returns why it refuses to go on."""
    capture = items.start()
    items.await_caught_up()
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.await_caught_up()
    assert capture.terminate() == 0

    def start_again() -> str:
        before = written(items)
        again = items.start()
        said = again.await_refusal()
        if again.exit_code is None:
            assert again.terminate() == 0
        assert written(items) == before
        return said

    return start_again


@pytest.mark.promise(4)
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_slot_that_was_dropped_is_a_gap(items: Captured, stopped: Callable[[], str], is_made_again: bool) -> None:
    items.query("SELECT pg_drop_replication_slot(%s)", items.name)
    items.query("INSERT INTO items VALUES (2, 'two')")
    if is_made_again:
        items.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", items.name)
        assert f"slot {items.name} was moved to" in stopped()
    else:
        assert f"slot {items.name} can't be used any more" in stopped()


@pytest.mark.promise(4)
def test_a_slot_that_was_moved_is_a_gap(items: Captured, stopped: Callable[[], str]) -> None:
    items.query("INSERT INTO items VALUES (2, 'two')")
    items.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", items.name)
    assert f"slot {items.name} was moved to" in stopped()


@pytest.mark.promise(4)
def test_a_publication_that_was_made_anew_is_a_gap(items: Captured, stopped: Callable[[], str]) -> None:
    with items.connect() as connection:
        connection.execute("DROP PUBLICATION watershed")
        connection.execute("CREATE PUBLICATION watershed FOR TABLE items WITH (publish_via_partition_root = true)")
    assert "the publication was altered, dropped or created anew" in stopped()


@pytest.mark.promise(4)
def test_a_topic_that_was_created_anew_is_a_gap(items: Captured, stopped: Callable[[], str]) -> None:
    recreate_topic(items.bootstrap_servers, topic_of(items))
    assert f"topic {items.name}.public.items was deleted and created anew" in stopped()


@pytest.mark.promise(4)
def test_a_state_topic_that_was_created_anew_is_a_gap(items: Captured, stopped: Callable[[], str]) -> None:
    recreate_topic(items.bootstrap_servers, f"{items.name}.state", partitions=1)
    assert f"topic {items.name}.public.items holds records, but {items.name}.state holds no position" in stopped()


def test_a_table_that_is_added_later_to_the_publication_of_somebody_else(
    items: Captured, stopped: Callable[[], str]
) -> None:
    """If the role may, the table joins: see test_joining."""
    items.settings = {"source": {"tables": [ITEMS, OTHER]}}
    items.query("ALTER PUBLICATION watershed OWNER TO postgres")
    said = stopped()
    assert "publication watershed does not contain table public.other" in said
    assert 'ALTER PUBLICATION "watershed" ADD TABLE "public"."other"' in said


@pytest.mark.promise(4)
def test_another_database_is_a_gap_and_disturbs_nobody(items: Captured, postgres: PostgresServer) -> None:
    """Even where a slot of the same name waits: who streams to the topics goes on undisturbed."""
    capture = items.start()
    capture.await_said("streaming")
    with new_database(postgres) as other:
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute(SMALL)
        items.settings = {"source": {"dsn": other}}
        assert "the source is another database" in items.start().await_refusal()
    items.settings = {}
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.await_caught_up()
    assert "session lost" not in capture.said()


def test_another_slot_is_refused(items: Captured, stopped: Callable[[], str]) -> None:
    items.settings = {"source": {"slot": f"{items.name}_2"}}
    assert f"were written from slot {items.name}, not {items.name}_2" in stopped()


def test_of_a_large_transaction_what_stands_before_such_a_change_may_be_published(
    items: Captured, running: Callable[[], str]
) -> None:
    """Before anybody could know. It is true, in order, and the position says where it ends."""
    with items.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO items SELECT n, 'x' FROM generate_series(2, 20001) AS n")
        connection.execute("ALTER TABLE items ADD COLUMN more text")
        connection.execute("UPDATE items SET id = 0 WHERE id = 2")
    items.settings = {"capture": {"transaction_rows_max": 5_000}}
    assert "table public.items was altered: column more was added" in running()
    for _ in range(2):
        keys = published(items)
        assert keys == list(range(1, len(keys) + 1))
        position = json.loads(items.records("state")[-1].value or b"{}")
        assert position["seq"] == len(keys)
        assert position["partial"] is None or position["partial"]["next_index"] == len(keys) - 1
        items.start().await_refusal()
