"""Capture on real servers, judged by a plain consumer that shares no code with it."""

import json
import signal
import time
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.checker.records import read_topics
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, frozen
from tests.support.waiting import eventually
from tests.support.workload import Client, Workload, fill

EXISTING_ROWS = 3_000
STOP_S_MAX = 10.0


def load_and_stream(captured: Captured) -> None:
    """Existing rows and clients that go on before, during and after their load; then the judge."""
    with captured.connect() as connection:
        fill(connection, EXISTING_ROWS)
    with Workload(captured.dsn, seed=1, clients=3, pause_s=0.01) as clients:
        eventually(lambda: clients.committed > 20)
        capture = captured.start()
        capture.await_said("streaming")
        at_streaming = clients.committed
        eventually(lambda: clients.committed > at_streaming + 200)
    captured.await_caught_up()
    report = captured.judge()
    assert report.ops["r"] >= EXISTING_ROWS
    assert min(report.ops[op] for op in "cud") > 20
    assert capture.terminate() == 0


@pytest.mark.promise(1)
@pytest.mark.parametrize("method", ["chunked", "consistent"])
@pytest.mark.invariant(1)
@pytest.mark.invariant(2)
@pytest.mark.invariant(3)
@pytest.mark.invariant(4)
@pytest.mark.combination("encodings", "json", "readable", "capture")
@pytest.mark.combination("kafka", "Apache Kafka", "none", clients="capture")
def test_existing_rows_and_a_mixed_workload_are_published_exactly_once(captured: Captured, method: str) -> None:
    captured.settings = {"snapshot": {"method": method, "chunk_rows_max": 200}}
    load_and_stream(captured)


@pytest.mark.promise(1)
def test_the_same_on_postgresql_16(captured16: Captured) -> None:
    load_and_stream(captured16)


@pytest.mark.promise(1)
def test_restarts_go_on_where_the_last_one_stopped(captured: Captured) -> None:
    for number in range(3):
        capture = captured.start(is_forked=False)
        capture.await_said("streaming")
        with Workload(captured.dsn, seed=10 + number, transactions=30):
            pass
        if number == 1:
            captured.await_caught_up()
        assert capture.terminate() == 0
        with Workload(captured.dsn, seed=20 + number, transactions=10, clients=1):
            pass  # while nobody captures
    captured.start()
    captured.await_caught_up()
    assert captured.judge().epoch == 1


def test_sigterm_under_load_drains_and_exits_in_time(captured: Captured) -> None:
    capture = captured.start()
    capture.await_said("streaming")
    with Workload(captured.dsn, seed=3) as clients:
        eventually(lambda: clients.committed > 100)
        capture.signal(signal.SIGTERM)
        assert capture.await_end(STOP_S_MAX) == 0
    assert "Traceback" not in capture.said()
    assert slots(captured) == [(captured.name, False)]
    captured.start()
    captured.await_caught_up()
    captured.judge()


def test_sigterm_during_the_load_exits_in_time_and_the_next_start_loads_anew(captured: Captured) -> None:
    with captured.connect() as connection:
        fill(connection, 8_000)
    captured.settings = {"capture": {"transaction_rows_max": 500}, "snapshot": {"method": "consistent"}}
    capture = captured.start(failpoint="load.part-committed:2:stop")
    eventually(lambda: published(captured), 90.0, "rows of the load are published")
    eventually(lambda: capture.is_frozen, 90.0, "it is in the middle of the load")
    capture.signal(signal.SIGTERM)
    capture.signal(signal.SIGCONT)
    assert capture.await_end(STOP_S_MAX) == 0
    assert "initial load interrupted" in capture.said()
    captured.query("DELETE FROM accounts WHERE id <= 1000")  # only a sweep removes these from what consumers hold
    captured.start()
    captured.await_caught_up()
    report = captured.judge()
    assert report.epoch == 2
    assert {sweep.table for sweep in report.sweeps} == set(captured.tables)


def test_sigterm_while_the_slot_waits_for_a_transaction_exits_in_time(captured: Captured) -> None:
    """A slot is created when all running writers have ended, prepared ones too: libpq waits, no signal reaches it."""
    prepared = f"before {captured.name}"
    with captured.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO lines VALUES (1, 1, 1, 1, NULL)")
        connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(prepared))
        capture = captured.start()
        capture.await_said("slot creation waits for transactions that began earlier")
        assert f"oldest='prepared transaction {prepared}'" in capture.said()
        capture.signal(signal.SIGTERM)
        assert capture.await_end(STOP_S_MAX) == 0
        # Its backend has not noticed: the next start has to wait for it.
        again = captured.start()
        again.await_said("session lost")
        connection.execute(sql.SQL("COMMIT PREPARED {}").format(prepared))
    again.await_said("streaming", deadline_s=60.0)
    captured.await_caught_up()
    assert captured.judge().ops == {"r": 1}


@pytest.mark.invariant(12)
def test_a_second_instance_stands_by_with_one_line_and_takes_over(captured: Captured) -> None:
    first = captured.start()
    first.await_said("streaming")
    second = captured.start()
    second.await_said("standing by")
    with Workload(captured.dsn, seed=4, transactions=60):
        pass
    captured.await_caught_up()
    assert len(second.said().splitlines()) == 2, second.said()  # that it has checked the source, and that it stands by
    assert first.exit_code is None, first.said()
    assert "session lost" not in first.said()
    with Workload(captured.dsn, seed=5) as clients:
        first.kill()
        second.await_said("streaming")
        at_take_over = clients.committed
        eventually(lambda: clients.committed > at_take_over + 50)
    captured.await_caught_up()
    assert captured.judge().epoch == 1
    assert second.terminate() == 0


@pytest.mark.invariant(12)
def test_of_instances_started_at_once_one_loads_and_the_others_stand_by(captured: Captured) -> None:
    with captured.connect() as connection:
        fill(connection, 4_000)
    captured.settings = {"capture": {"transaction_rows_max": 500}, "snapshot": {"method": "consistent"}}
    instances = [captured.start() for _ in range(3)]
    eventually(lambda: any("streaming" in instance.said() for instance in instances), 60.0)
    active = next(instance for instance in instances if "streaming" in instance.said())
    standbys = [instance for instance in instances if instance is not active]
    for instance in standbys:
        instance.await_said("standing by")
    with Workload(captured.dsn, seed=6, transactions=20):
        active.kill()
    captured.await_caught_up()
    message = [instance.said() for instance in instances]
    assert sum(text.count("slot created") for text in message) == 1
    assert sum(text.count(" streaming ") for text in message) == 2
    assert all(instance.exit_code is None for instance in standbys), message
    assert captured.judge().epoch == 1


def test_no_secret_is_in_a_log_or_a_process_list(captured: Captured) -> None:
    """The servers of the tests ask for no password, so any will do."""
    secret = "correct-horse-battery"
    captured.settings = {
        "source": {"dsn": make_conninfo(captured.dsn, password=secret)},
        "kafka": {"options": {"sasl.password": secret}},
    }
    capture = captured.start(arguments=["--log-level", "debug"], is_forked=False)
    capture.await_said("streaming")
    captured.query(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", captured.name
    )
    capture.await_said("streaming", times=2)
    captured.query("INSERT INTO lines VALUES (1, 1, 1, 1, NULL)")
    captured.await_caught_up()
    assert secret.encode() not in Path(f"/proc/{capture.pid}/cmdline").read_bytes()
    activity = captured.query("SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'watershed%%'")
    assert ("watershed",) in activity
    captured.query("DROP TABLE lines")
    capture.await_said("table stopped, the others continue")
    assert secret not in capture.said()


def test_a_quiet_table_in_a_busy_database_moves_the_slot(captured: Captured) -> None:
    captured.start().await_said("streaming")
    with captured.connect() as connection:
        connection.execute("CREATE TABLE busy (id serial PRIMARY KEY, noise text)")
        for _ in range(3):
            before = captured.confirmed() or 0
            connection.execute("INSERT INTO busy (noise) SELECT repeat('x', 100) FROM generate_series(1, 1000)")
            captured.await_caught_up(15.0)
            assert (captured.confirmed() or 0) > before + 100_000
    assert captured.judge().ops == {}


def test_progress_reaches_what_was_committed(captured: Captured) -> None:
    """Who waits for an LSN hears of it soon, with the time of its commit."""
    captured.settings = {"format": {"heartbeat.interval.ms": 100, "message.prefix.exclude.list": "other"}}
    captured.start().await_said("streaming")
    captured.query("INSERT INTO lines VALUES (1, 1, 1, 1, NULL)")
    for prefix in ("audit", "other"):
        captured.query("SELECT pg_logical_emit_message(false, %s, 'outside of transactions')", prefix)
    written = captured.log_end()

    def reported() -> bool:
        records, _ = read_topics(captured.bootstrap_servers, [f"{captured.name}.progress"])
        progress = [json.loads(record.value or b"{}") for record in records if record.key == b"progress"]
        return any(each["lsn"] >= written and each["commit_ts_us"] > 0 for each in progress)

    eventually(reported, 10.0, "progress covers the commit")
    beats, _ = read_topics(captured.bootstrap_servers, [f"__debezium-heartbeat.{captured.name}"])
    assert {beat.key for beat in beats} == {b'{"serverName":"%s"}' % captured.name.encode()}
    assert len(beats) > 1
    reported_once = [json.loads(record.value or b"{}") for record in captured.records("message")]
    assert [(each["message"]["prefix"], each["source"]["txId"]) for each in reported_once] == [("audit", None)]


@pytest.mark.promise(1)
@pytest.mark.invariant(8)
def test_a_large_transaction_is_published_in_parts(captured: Captured) -> None:
    captured.settings = {"capture": {"transaction_rows_max": 500}}
    captured.start()
    captured.await_caught_up()
    with captured.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO lines SELECT n, 1, n, 1, NULL FROM generate_series(1, 4000) AS n")
        with connection.transaction(force_rollback=True):
            connection.execute("DELETE FROM lines")
        connection.execute("UPDATE lines SET order_id = -order_id WHERE order_id % 2 = 0")
        connection.execute("DELETE FROM lines WHERE order_id > 3000")
    captured.await_caught_up()
    report = captured.judge()
    assert report.ops == {"c": 6_000, "d": 2_500}
    parts = [json.loads(record.value or b"{}")["partial"] for record in report.state]
    assert sum(part is not None for part in parts) >= 4, "the transaction fitted into one"


HOSTILE: list[tuple[LiteralString, LiteralString]] = [
    ("datestyle", "SQL, DMY"),
    ("intervalstyle", "sql_standard"),
    ("timezone", "Asia/Kathmandu"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "0"),
    ("client_encoding", "LATIN1"),
    ("client_min_messages", "error"),
    ("search_path", "nowhere"),
    ("statement_timeout", "1s"),
    ("lock_timeout", "1s"),
    ("idle_in_transaction_session_timeout", "1s"),
    ("idle_session_timeout", "1s"),
]


@pytest.mark.promise(1)
def test_settings_of_the_database_change_no_byte_and_end_no_session(captured: Captured) -> None:
    database = sql.Identifier(str(conninfo_to_dict(captured.dsn)["dbname"]))
    with captured.connect() as clients, captured.connect() as writer:
        fill(clients, 4_000)
        for name, value in HOSTILE:
            statement = sql.SQL("ALTER DATABASE {} SET {} = {}")
            clients.execute(statement.format(database, sql.Identifier(name), sql.Literal(value)))
        writer.execute("BEGIN")
        writer.execute("INSERT INTO lines VALUES (1, 1, 1, 1, NULL)")  # the slot waits for it, longer than the timeouts
        captured.settings = {"capture": {"transaction_rows_max": 500}}
        active = captured.start()
        eventually(lambda: slots(captured), 90.0, "the slot is being created")
        waited_until = time.monotonic() + 2.0
        eventually(lambda: time.monotonic() > waited_until)
        writer.execute("COMMIT")
        active.await_said("streaming")
        standby = captured.start()
        standby.await_said("standing by")
        client = Client(clients, seed=12)
        for _ in range(40):
            client.transaction()
        captured.await_caught_up()
        idle_until = time.monotonic() + 2.0
        eventually(lambda: time.monotonic() > idle_until)
        clients.execute("UPDATE accounts SET owner = 'Ünï' WHERE id = 301")
    for name, _ in HOSTILE:
        captured.query(sql.SQL("ALTER DATABASE {} RESET {}").format(database, sql.Identifier(name)))
    captured.await_caught_up()
    assert "session lost" not in active.said() + standby.said(), active.said() + standby.said()
    captured.judge()


# ---- servers that hang or go away


def test_the_connection_survives_brokers_that_hang_longer_than_the_server_waits(
    captured: Captured, kafka: KafkaBroker, postgres: PostgresServer
) -> None:
    database = sql.Identifier(str(conninfo_to_dict(captured.dsn)["dbname"]))
    captured.query(sql.SQL("ALTER DATABASE {} SET wal_sender_timeout = '4s'").format(database))
    capture = captured.start()
    capture.await_said("streaming")
    (backend,) = captured.query("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", captured.name)
    with Workload(captured.dsn, seed=7, pause_s=0.01) as clients, frozen(kafka.stack, "kafka"):
        at_freeze = clients.committed
        eventually(lambda: clients.committed > at_freeze + 20)
        thawed_at = time.monotonic() + 9.0
        eventually(lambda: time.monotonic() > thawed_at)
    captured.await_caught_up()
    assert "session lost" not in capture.said(), capture.said()
    assert captured.query("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", captured.name) == [
        backend
    ]
    captured.judge()


def test_sigterm_while_the_brokers_hang_exits_in_time(captured: Captured, kafka: KafkaBroker) -> None:
    capture = captured.start()
    captured.await_caught_up()
    with frozen(kafka.stack, "kafka"):
        captured.query("INSERT INTO lines VALUES (1, 1, 1, 1, NULL)")
        capture.signal(signal.SIGTERM)
        assert capture.await_end(STOP_S_MAX) == 0
    assert "Traceback" not in capture.said()
    captured.start()
    captured.await_caught_up()
    assert captured.judge().ops == {"c": 1}


def test_capture_outlives_a_restarted_and_a_killed_postgresql(captured: Captured, postgres: PostgresServer) -> None:
    capture = captured.start()
    capture.await_said("streaming")
    with Workload(captured.dsn, seed=8, transactions=40):
        pass
    kept, undone = f"kept {captured.name}", f"undone {captured.name}"
    for name, number in ((kept, -1), (undone, -2)):
        with captured.connect() as connection:
            prepare(connection, name, number)
    postgres.stack.restart("postgres")
    capture.await_said("streaming", times=2)
    with Workload(captured.dsn, seed=9, transactions=40):
        pass
    postgres.stack.kill("postgres")
    postgres.stack.restart("postgres")
    with Workload(captured.dsn, seed=10, transactions=40):
        pass
    capture.kill()  # and capture dies while they are prepared
    with captured.connect() as connection:
        connection.execute(sql.SQL("COMMIT PREPARED {}").format(kept))
        connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(undone))
    capture = captured.start()
    captured.await_caught_up()
    assert capture.exit_code is None
    assert "Traceback" not in capture.said()
    report = captured.judge()
    assert report.epoch == 1
    assert sorted((c.op, c.identity) for c in report.changes if '"order_id": -' in c.identity) == [
        ("c", '{"line_no": 1, "order_id": -1}'),
        ("c", '{"line_no": 3, "order_id": -1}'),
    ]


def prepare(connection: psycopg.Connection, name: str, number: int) -> None:
    """A transaction of two rows, with a third one that a savepoint undid."""
    connection.execute("BEGIN")
    insert = "INSERT INTO lines VALUES (%s, %s, 1, 1, NULL)"
    connection.execute(insert, (number, 1))
    connection.execute("SAVEPOINT middle")
    connection.execute(insert, (number, 2))
    connection.execute("ROLLBACK TO middle")
    connection.execute(insert, (number, 3))
    connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(name))


def test_capture_outlives_a_killed_kafka(captured: Captured, kafka: KafkaBroker) -> None:
    capture = captured.start()
    capture.await_said("streaming")
    with Workload(captured.dsn, seed=11, clients=2, pause_s=0.02) as clients:
        at_kill = clients.committed
        eventually(lambda: clients.committed > at_kill + 20)
        kafka.stack.kill("kafka")
        kafka.stack.restart("kafka")
    captured.await_caught_up()
    assert capture.exit_code is None
    assert "Traceback" not in capture.said()
    assert captured.judge().epoch == 1


def slots(captured: Captured) -> list[tuple[str, bool]]:
    """(name, active) of the database's slots."""
    rows = captured.query(
        "SELECT slot_name::text, active FROM pg_replication_slots WHERE database = current_database()"
    )
    return [(name, active) for name, active in rows]


def published(captured: Captured) -> int:
    """Records of the first table that a consumer sees."""
    topic = f"{captured.name}.public.accounts"
    if topic not in captured.topics():
        return 0
    return len(read_topics(captured.bootstrap_servers, [topic])[0])
