"""`/readyz` of capture turns red within ten seconds, and green again; the status says what is the matter."""

import http.client
import json
import signal
from typing import Any

import psycopg
import pytest

from tests.conftest import KafkaBroker
from tests.support.captured import Captured, frozen
from tests.support.forked import run
from tests.support.http_server import HttpServer, free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

ITEMS = "public.items"


@pytest.fixture
def server(items: Captured) -> HttpServer:
    """Capture runs, and is ready."""
    port = free_port()
    items.settings = {"http": {"port": port}}
    items.query("INSERT INTO items VALUES (1, 'a')")
    items.start()
    found = HttpServer(port)
    found.await_ready()
    return found


def drop_slot(items: Captured) -> bool:
    """Also from a process that streams from it, which has to be frozen."""
    items.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", items.name)
    try:
        items.query("SELECT pg_drop_replication_slot(%s)", items.name)
    except psycopg.errors.ObjectInUse:
        return False
    return True


def status(items: Captured) -> tuple[int, dict[str, Any]]:
    done = run(["status", "--json", "--config", str(items.config())], deadline_s=60.0)
    return done.returncode, json.loads(done.stdout)


def test_capture_that_streams_is_ready_and_its_status_is_the_same_everywhere(
    items: Captured, server: HttpServer
) -> None:
    items.await_caught_up()
    code, found = status(items)
    assert (code, found["problems"]) == (0, [])
    asked = server.json("/v1/status")
    assert asked["capture"]["state"] == "streaming"
    assert asked["source"]["slot"]["is_active"]
    assert found["tables"] == asked["tables"]
    assert [table["state"] for table in asked["tables"]] == ["streaming"]
    assert asked["tables"][0]["snapshot"]["rows"] == 1
    shown = items.cdc("status")
    assert "no problems" in shown
    assert ITEMS in shown
    assert server.get("/healthz") == (200, '{"is_alive":true}')


def test_a_port_in_use_is_refused_at_the_start(items: Captured, server: HttpServer) -> None:
    ended = items.run_once("run")
    assert ended.returncode == 2
    assert f"can't listen on 127.0.0.1 port {server.port}: Address already in use" in ended.stderr
    assert "http.port" in ended.stderr
    assert not server.reasons(), "the one that runs is not disturbed"


def test_a_stopped_table(items: Captured, server: HttpServer) -> None:
    items.cdc("table", "stop", ITEMS)
    assert f"table {ITEMS}" in server.await_reason("an operator stopped it")
    items.cdc("table", "start", ITEMS)
    server.await_ready()


def test_brokers_that_do_not_answer(items: Captured, server: HttpServer, kafka: KafkaBroker) -> None:
    with frozen(kafka.stack, "kafka"):
        server.await_reason("brokers")
        code, text = server.get("/metrics")
        assert code == 200
        assert "watershed_brokers_up 0.0" in text
        assert "watershed_source_up 1.0" in text
    server.await_ready()


def test_a_slot_that_is_gone(items: Captured, server: HttpServer) -> None:
    items.running().signal(signal.SIGSTOP)
    try:
        eventually(lambda: drop_slot(items), 20.0, "the slot is dropped")
    finally:
        items.running().signal(signal.SIGCONT)
    server.await_reason("does not exist any more")
    server.await_reason("state GAP")
    items.ask("heal")
    eventually(lambda: server.json("/v1/status")["capture"]["epoch"] == 2, 30.0, "a new epoch")
    server.await_ready()


def test_a_capture_that_stands_still_is_seen_from_outside(items: Captured, server: HttpServer) -> None:
    """A process that is frozen keeps its slot, and nobody who asks it gets an answer."""
    capture = items.running()
    # Before anything was published, one look can't tell for how long the position has stood still.
    items.query("INSERT INTO items VALUES (1000, 'published')")
    items.await_caught_up()
    capture.signal(signal.SIGSTOP)
    try:
        items.query("INSERT INTO items SELECT n, 'b' FROM generate_series(2, 100) n")

        def stands_still() -> bool:
            code, found = status(items)
            return code == 1 and any("does not: its position" in problem["message"] for problem in found["problems"])

        eventually(stands_still, 30.0, lambda: f"cdc status says that capture stands still: {status(items)}")
    finally:
        capture.signal(signal.SIGCONT)
    items.await_caught_up()
    server.await_ready()
    assert status(items)[0] == 0


def test_a_wal_budget_that_runs_out(items: Captured) -> None:
    items.settings = {"http": {"port": free_port(), "wal_bytes_max": 1}}
    items.start()
    server = HttpServer(items.settings["http"]["port"])
    server.await_reason("the WAL budget of replication slot", 60.0)
    assert server.json("/v1/status")["source"]["slot"]["budget"]["limit_bytes"] == 1
    assert items.running().terminate() == 0, "the server holds nobody up"


def test_one_table_is_read_and_operated_over_http_and_recorded(items: Captured) -> None:
    port, token = free_port(), "operate-0123456789abcdef"
    items.settings = {"http": {"port": port, "users": {"oncall": {"role": "operate", "token": token}}}}
    items.query("INSERT INTO items VALUES (1, 'a')")
    items.start()
    items.await_caught_up()

    def asked(path: str, method: str = "GET", body: str | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
        return connection.getresponse()

    def found(path: str, method: str = "GET", body: str | None = None) -> Any:
        answer = asked(path, method, body)
        assert answer.status == 200, answer.read()
        return json.loads(answer.read())

    one = f"/v1/tables/{ITEMS}"
    assert (found(one)["status"], found(one)["topic"]) == ("captured", f"{items.name}.{ITEMS}")
    row = found(f"{one}/row?key=1&records=1")
    assert row["source"]["id"] == "1" and [record["op"] for record in row["topic"]["records"]] == ["read"]
    changes = asked(f"{one}/changes?last=1")
    items.query("INSERT INTO items VALUES (2, 'b')")
    events = iter(lambda: changes.readline().decode(), "")
    data = (json.loads(line.removeprefix("data: ")) for line in events if line.startswith("data: "))
    assert [(change["op"], change["row"]["id"]) for change in (next(data), next(data))] == [("read", 1), ("insert", 2)]
    changes.close()
    tables = json.dumps({"tables": [ITEMS]})
    assert found("/v1/tables/stop", "POST", tables)["tables"] == [ITEMS]
    assert found("/v1/tables/start", "POST", tables)["tables"] == [ITEMS]
    records = found("/v1/audit")["operations"]
    assert [(one["who"], one["action"], one["result"][:4]) for one in records] == [
        ("oncall", "start_table", "200:"),
        ("oncall", "stop_table", "200:"),
    ]
    assert found("/v1/config")["options"]["topics.prefix"]["value"] == items.name
    assert any("an operation was requested over HTTP" in line for line in found("/v1/log")["lines"])
