"""History that may hide a change: capture publishes nothing after it. Altered tables: see test_schema_changes; topics
of single tables: see test_topic_troubles."""

from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest

from tests.conftest import PostgresServer, new_database
from tests.integration.conftest import SMALL
from tests.support.captured import Captured
from tests.support.topics import recreate_topic


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


def published(captured: Captured) -> list[int]:
    """Keys in the order of publication."""
    return [change.key["id"] for change in captured.changes()]


@pytest.mark.promise(4)
def test_a_publication_that_is_dropped_while_running_is_a_gap(items: Captured, running: Callable[[], str]) -> None:
    with items.connect() as connection:
        connection.execute("DROP PUBLICATION watershed")
        connection.execute("INSERT INTO items VALUES (2, 'two')")
    assert "publication" in running()
    items.start().await_refusal()


@pytest.mark.long
@pytest.mark.promise(4)
def test_a_row_above_1_gib_of_text_ends_its_snapshot_and_in_the_stream_is_a_gap(items: Captured) -> None:
    huge: LiteralString = "convert_to(repeat('x', 540000000), 'UTF8')"  # as text 1.08 GB, above 2^30 bytes
    items.query("ALTER TABLE items ADD data bytea STORAGE EXTERNAL")
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.query(f"INSERT INTO items VALUES (2, 'huge', {huge})")
    capture = items.start()
    message = "existing rows of table public.items can't be read: the text of a row, or of a value, is above 1 GiB"
    capture.await_said(message)
    items.query("DELETE FROM items WHERE id = 2")
    items.await_caught_up()
    items.query(f"INSERT INTO items VALUES (3, 'huge', {huge})")
    assert "the server can't send a row, because its text or that of a value is above 1 GiB" in capture.await_refusal()
    assert 3 not in published(items)
    items.query("DELETE FROM items WHERE id = 3; INSERT INTO items VALUES (4, 'four')")
    items.ask("heal")
    items.await_caught_up()
    assert {c.key["id"] for c in items.changes() if c.epoch == 2 and c.after is not None} == {4}


@pytest.mark.promise(4)
def test_a_row_filter_that_fails_on_a_row_is_a_gap_until_it_is_altered_and_healed(items: Captured) -> None:
    with items.connect() as connection:
        connection.execute("CREATE PUBLICATION watershed FOR TABLE items WHERE (10 / id > 0)")
        capture = items.start()
        items.await_caught_up()
        connection.execute("INSERT INTO items VALUES (1, 'one')")
        connection.execute("INSERT INTO items VALUES (0, 'none')")
        assert "division by zero" in capture.await_refusal()
        capture.kill()
        connection.execute("ALTER PUBLICATION watershed SET TABLE items")
        capture = items.start()
        assert "division by zero" in capture.await_refusal(), "the log is read with the filter of its time"
    items.ask("heal")
    items.await_caught_up()
    assert set(published(items)) == {0, 1}


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
        message = again.await_refusal()
        if again.exit_code is None:
            assert again.terminate() == 0
        assert written(items) == before
        return message

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
@pytest.mark.invariant(10)
def test_a_slot_that_was_moved_is_a_gap(items: Captured, stopped: Callable[[], str]) -> None:
    items.query("INSERT INTO items VALUES (2, 'two')")
    items.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", items.name)
    assert f"slot {items.name} was moved to" in stopped()


@pytest.mark.promise(4)
def test_a_publication_that_was_made_anew_is_a_gap(items: Captured, stopped: Callable[[], str]) -> None:
    with items.connect() as connection:
        connection.execute("DROP PUBLICATION watershed")
        connection.execute("CREATE PUBLICATION watershed FOR TABLE items WITH (publish_via_partition_root = true)")
    assert "the publication was dropped or recreated" in stopped()


@pytest.mark.promise(4)
def test_a_state_topic_that_was_created_anew_is_a_gap(items: Captured, stopped: Callable[[], str]) -> None:
    recreate_topic(items.bootstrap_servers, f"{items.name}.state", partitions=1)
    assert f"topic {items.name}.public.items holds records, but {items.name}.state holds no position" in stopped()


@pytest.mark.promise(4)
@pytest.mark.invariant(10)
def test_another_database_is_a_gap_and_disturbs_nobody(items: Captured, postgres: PostgresServer) -> None:
    """Even where a slot of the same name waits: who streams to the topics goes on undisturbed."""
    capture = items.start()
    capture.await_said("streaming")
    with new_database(postgres) as other:
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute(SMALL)
        items.settings = {"source": {"dsn": other}}
        assert "the source is a different database" in items.start().await_refusal()
    items.settings = {}
    items.query("INSERT INTO items VALUES (1, 'one')")
    items.await_caught_up()
    assert "session lost" not in capture.said()


def test_another_slot_is_refused(items: Captured, stopped: Callable[[], str]) -> None:
    items.settings = {"source": {"slot": f"{items.name}_2"}}
    assert f"were written from slot {items.name}, not {items.name}_2" in stopped()
