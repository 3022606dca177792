"""kill -9 of capture, at named points and anywhere, under load: nothing is lost and nothing published twice.

The judge reads as a `read_committed` consumer, and compares with the source's own journal, event by event.
"""

import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cdc.config.settings import TopicConfig
from tests.checker.judge import table_topic
from tests.checker.large import SCHEMA as LARGE
from tests.checker.large import TABLE as LARGE_TABLE
from tests.checker.large import Plan
from tests.conftest import KafkaBroker, PostgresServer
from tests.faults.large_campaign import judged, publish
from tests.support.captured import Captured, frozen, under_capture
from tests.support.halves import watched_for_halves
from tests.support.waiting import eventually
from tests.support.workload import SCHEMA, TABLES, Workload, fill
from watershed.cli.failpoints import FAILPOINTS

pytestmark = [pytest.mark.whole, pytest.mark.long]

LOAD_FAILPOINTS = [name for name in FAILPOINTS if name.startswith("load.")]
PARTITIONS = TopicConfig(prefix="t").partitions


@pytest.fixture
def captured(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """A database with the workload's tables; Kafka transactions are small."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, SCHEMA, TABLES) as made:
        made.settings = {"capture": {"transaction_rows_max": 500}}
        yield made


@pytest.mark.promise(1)
def test_killed_in_the_initial_load(captured: Captured) -> None:
    """Of all rows at one point in time. Each next attempt raises the epoch, and ends with a sweep of what only earlier
    ones had seen."""
    captured.settings["snapshot"] = {"method": "consistent"}
    with captured.connect() as connection:
        fill(connection, 2_500)
    for number, failpoint in enumerate(LOAD_FAILPOINTS):
        captured.start_and_die(failpoint)
        captured.query("DELETE FROM accounts WHERE id %% 5 = %s", number)
        captured.query("UPDATE lines SET line_no = 7 + %s WHERE order_id %% 5 = %s", number, number)
    with Workload(captured.dsn, seed=1, transactions=20):
        captured.start().await_said("streaming")
    captured.await_caught_up()
    report = captured.judge()
    assert report.epoch == 1 + len(LOAD_FAILPOINTS)
    assert {sweep.table for sweep in report.sweeps} == set(TABLES)


@pytest.mark.promise(1)
def test_aborted_while_brokers_do_not_answer_a_commit(captured: Captured, kafka: KafkaBroker) -> None:
    """librdkafka ends the process by SIGABRT when it finds a defect in itself; a supervisor starts it again."""
    capture = captured.start()
    captured.await_caught_up()
    with Workload(captured.dsn, seed=3, clients=2, pause_s=0.01):
        for _ in range(3):
            with frozen(kafka.stack, "kafka"):
                behind = captured.log_end() + 50_000
                eventually(partial(_is_past, captured, behind), 60.0, "changes wait for the brokers")
                capture.signal(signal.SIGABRT)
                assert capture.await_end() == -signal.SIGABRT
            capture = captured.start()
            capture.await_said("streaming")
    captured.await_caught_up()
    assert captured.judge().epoch == 1


@pytest.mark.promise(1)
@pytest.mark.invariant(13)
@pytest.mark.invariant(15)
def test_killed_while_chunks_are_read_beside_the_stream(captured: Captured) -> None:
    """The next process goes on at the cursors, in the same epoch: nothing that is published is read again."""
    captured.settings["snapshot"] = {"chunk_rows_max": 100}
    with captured.connect() as connection:
        fill(connection, 2_500)
    with Workload(captured.dsn, seed=1, clients=2, pause_s=0.05):
        for failpoint in ("chunk.marked:2", "kafka.after-commit:4", "chunk.marked:4"):
            captured.start_and_die(failpoint)
        captured.start().await_said("streaming")
        eventually(lambda: not captured.unfinished(), 60.0, "all chunks are read")
    captured.await_caught_up()
    report = captured.judge()
    assert report.epoch == 1
    times_read = Counter((change.table, change.identity) for change in report.changes if change.op == "r")
    assert len(times_read) > 2_500
    # At most the open chunks of each of three processes: two workers, two chunks each.
    assert sum(times - 1 for times in times_read.values()) <= 3 * 4 * 100


@pytest.mark.promise(1)
def test_killed_between_the_slot_and_the_first_position(captured: Captured) -> None:
    with captured.connect() as connection:
        fill(connection, 500)
    captured.start_and_die("bootstrap.before-commit")
    captured.query("DELETE FROM accounts WHERE id % 5 = 0")
    captured.start()
    captured.await_caught_up()
    report = captured.judge()
    assert report.epoch == 2
    assert {sweep.table for sweep in report.sweeps} == set(TABLES)


@pytest.mark.promise(1)
def test_killed_again_and_again_while_streaming(captured: Captured) -> None:
    captured.start()
    captured.await_caught_up()
    captured.end()
    with Workload(captured.dsn, seed=2, clients=2, pause_s=0.03):
        for failpoint in ("kafka.before-commit", "kafka.after-commit", "status.sent"):
            for passing in (1, 4):
                captured.start_and_die(f"{failpoint}:{passing}")
    captured.start()
    captured.await_caught_up()
    report = captured.judge()
    assert report.epoch == 1
    assert sum(report.ops.values()) > 50


@pytest.mark.promise(1)
def test_killed_inside_a_transaction_that_spans_several_kafka_transactions(captured: Captured) -> None:
    captured.settings["format"] = {"provide.transaction.metadata": True, "message.prefix.include.list": "audit"}
    captured.start()
    captured.await_caught_up()
    captured.end()
    with captured.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO lines SELECT n, 1, n, 1, NULL FROM generate_series(1, 12000) AS n")
        connection.execute("SELECT pg_logical_emit_message(true, 'audit', 'inside')")
        connection.execute("UPDATE lines SET line_no = 2 WHERE order_id % 3 = 0")
        connection.execute("DELETE FROM lines WHERE order_id % 3 = 1")
    for passing in (1, 2):
        captured.start_and_die(f"transaction.part-committed:{passing}")
        # The markers of the commit may reach the partition after the process has died.
        partial = eventually(lambda: last_position(captured)["partial"], 20.0, "the position is visible")
        assert partial["next_index"] > 0
    captured.start()
    captured.await_caught_up()
    report = captured.judge()
    assert report.ops == {"c": 16_000, "d": 8_000}
    assert report.epoch == 1
    parts = [json.loads(record.value or b"{}")["partial"] for record in report.state]
    assert sum(part is not None for part in parts) >= 3
    begin, end = (json.loads(record.value or b"{}") for record in captured.records("transaction"))
    counts = [{"data_collection": "public.lines", "event_count": 24_000},
              {"data_collection": "LOGICAL_DECODING_MESSAGE", "event_count": 1}]  # fmt: skip
    assert (begin["status"], end["event_count"], end["data_collections"]) == ("BEGIN", 24_001, counts)
    reported = [*captured.records("public.lines"), *captured.records("message")]
    blocks = [json.loads(record.value)["transaction"] for record in reported if record.value is not None]
    assert {block["id"] for block in blocks} == {begin["id"]}
    assert sorted(block["total_order"] for block in blocks) == list(range(1, 24_002))


@pytest.mark.promise(1)
@pytest.mark.invariant(1)
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
def test_killed_anywhere_under_load(captured: Captured) -> None:
    """And no reader of what is committed ever sees half of a transaction."""
    captured.settings["capture"] = {"transaction_rows_max": 2_000}  # more than any of the clients' has
    chance = random.Random(11)
    with captured.connect() as connection:
        fill(connection, 500)
    process = captured.start()
    process.await_said("streaming")
    topics = [table_topic(captured.name, table) for table in TABLES]
    with watched_for_halves(captured.bootstrap_servers, topics, PARTITIONS) as halves:
        with Workload(captured.dsn, seed=3, clients=2, pause_s=0.01) as clients:
            for _ in range(4):
                if chance.random() < 0.7:
                    process.await_said("streaming")
                alive_until = clients.committed + chance.randrange(1, 120)
                eventually(lambda until=alive_until: clients.committed > until)  # type: ignore[misc]
                process.kill()
                process = captured.start()
        captured.await_caught_up()
    assert sum(captured.judge().ops.values()) > 100
    assert halves.complaints == []
    assert halves.transactions > 50
    assert halves.moments > 20


@pytest.mark.promise(1)
@pytest.mark.invariant(12)
def test_a_frozen_process_that_wakes_up_writes_nothing_more(captured: Captured) -> None:
    """It was given up by the server meanwhile, and another streams."""
    zombie = captured.start()
    zombie.await_said("streaming")
    standby = captured.start()
    standby.await_said("standing by")
    with Workload(captured.dsn, seed=4, clients=2, pause_s=0.01) as clients:
        frozen_at = clients.committed
        eventually(lambda: clients.committed > frozen_at + 50)
        zombie.signal(signal.SIGSTOP)
        # What the server does itself after wal_sender_timeout.
        captured.query(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", captured.name
        )
        standby.await_said("streaming")
        woken_at = clients.committed
        eventually(lambda: clients.committed > woken_at + 50)
        zombie.signal(signal.SIGCONT)
        zombie.await_said("standing by")
        confirmed_at = clients.committed
        eventually(lambda: clients.committed > confirmed_at + 50)
    captured.await_caught_up()
    assert captured.judge().epoch == 1
    assert "session lost" not in standby.said()


@pytest.mark.promise(1)
def test_everything_is_killed_at_once(captured: Captured, kafka: KafkaBroker, postgres: PostgresServer) -> None:
    """Source, brokers and capture, in the middle of a load on all of them."""
    process = captured.start()
    process.await_said("streaming")
    with captured.connect() as connection:
        connection.execute("INSERT INTO lines SELECT n, 5, n, 1, NULL FROM generate_series(1, 3000) AS n")
        postgres.stack.kill("postgres")
    kafka.stack.kill("kafka")
    process.kill()
    postgres.stack.restart("postgres")
    kafka.stack.restart("kafka")
    captured.start()
    with Workload(captured.dsn, seed=5, transactions=20):
        pass
    captured.await_caught_up()
    assert captured.judge().epoch == 1


@pytest.mark.promise(1)
@pytest.mark.promise(5)
@pytest.mark.invariant(8)
def test_a_large_transaction_takes_no_more_memory_than_a_small_one_and_passes_kills(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> None:
    """Of the whole size: tests/faults/large_campaign.py."""
    small = Plan.of(50_000)
    large = Plan.of(250_000, below=small.rows)
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, LARGE, [LARGE_TABLE]) as captured:
        captured.query("ALTER TABLE large DISABLE TRIGGER judge")
        captured.start(is_forked=False)
        captured.await_caught_up()
        with captured.connect() as connection:
            small.write(connection)
            before = publish(captured, small, kills=0, seq_before=0)
            xid = large.write(connection)
        course = publish(captured, large, kills=2, seq_before=small.changes)
        judge, complaints = judged(captured, large, xid, seq_before=small.changes)
    assert complaints == []
    assert judge.ops == {"c": large.rows, "u": large.changes - large.rows}
    assert len(course.memories) == 3
    peak = max(memory.peak for memory in course.memories)
    assert peak < 120  # MiB; measured: about 70, as with ten million changes
    assert peak - before.memories[0].peak < 30


def last_position(captured: Captured) -> dict[str, dict[str, int]]:
    position: dict[str, dict[str, int]] = json.loads(captured.records("state")[-1].value or b"{}")
    return position


def _is_past(captured: Captured, lsn: int) -> bool:
    return captured.log_end() > lsn
