"""Operations over HTTP on a real pipeline: who may do them, what they do to topics and stores, and their records."""

import http.client
import json
import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import redis as redis_client

from cdc.kafka.compacted import read_latest
from cdc.model.job_records import RebuildRecord
from cdc.model.topics import Topics
from sinks.reduction import document_id
from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.http_server import free_port
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually
from watershed.client.dead_letters import read_dead_letters

pytestmark = pytest.mark.long

ITEMS: Final = "public.items"
SINKS: Final = ("cache", "report")
READ, OPERATE = "read-0123456789abcdef", "operate-0123456789abcdef"
USERS: Final = {"viewer": {"role": "read", "token": READ}, "oncall": {"role": "operate", "token": OPERATE}}
TOO_LONG: Final = "much too long"
DEADLINE_S: Final = 15.0
BUILT_S: Final = 180.0
LINE: Final = (
    "POST /v1/tables/stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Length: 40\r\n\r\n{{"
)


@dataclass
class Operated:
    """Capture, and a job with a cache and an SQL store whose names have three characters at most."""

    items: Captured
    job: SinkJob
    port: int  # of capture
    sink_port: int
    target: str  # dsn of the SQL store
    cache: redis_client.Redis

    def ask(self, method: str, path: str, body: object = None, token: str = OPERATE, port: int | None = None) -> Any:
        """Code and answer."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=190)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: object, port: int | None = None) -> dict[str, Any]:
        code, answer = self.ask("POST", path, body, port=port)
        assert code in (200, 202), (path, code, answer)
        found: dict[str, Any] = answer
        return found

    def refused(self, path: str, body: object, port: int | None = None) -> str:
        """What is said to an operator whose operation the state forbids; with a next step."""
        code, answer = self.ask("POST", path, body, port=port)
        assert (code, bool(answer["next"])) == (409, True), (path, code, answer)
        return str(answer["error"])

    def verified(self, action: str = "verify") -> dict[str, int]:
        """Compares, or repairs, in the sinks' process. Returns sink → rows that differ, or were repaired."""
        identity = self.post(f"/v1/{action}", {}, self.sink_port)["id"]

        def ended() -> dict[str, Any] | None:
            code, run = self.ask("GET", f"/v1/operations/{identity}", port=self.sink_port)
            assert code == 200, run
            return run if run["status"] != "running" else None

        run = eventually(ended, BUILT_S, "the comparison ends")
        assert run is not None and run["status"] == "done", run
        counted = "repaired" if action == "repair" else "drift"
        return {table["sink"]: table[counted] for table in run["result"]["tables"]}

    def await_applied(self) -> None:
        self.items.await_caught_up()
        self.job.wait_applied(self.items.progress(), *SINKS)

    def sink(self, name: str) -> dict[str, Any]:
        code, found = self.ask("GET", f"/v1/sinks/{name}", port=self.sink_port)
        assert code == 200, found
        shown: dict[str, Any] = found
        return shown

    def await_letters(self, count: int) -> None:
        eventually(lambda: self.sink("report")["dead_letters"] == count, DEADLINE_S, f"{count} letters are open")

    def target_rows(self) -> dict[int, str]:
        with psycopg.connect(self.target) as connection:
            return dict(connection.execute("SELECT id, name FROM items").fetchall())

    def falsify(self) -> None:
        """Every row of the SQL store gets another value."""
        with psycopg.connect(self.target) as connection:
            connection.execute("UPDATE items SET name = 'bad'")

    def empty(self) -> None:
        """Every row of the SQL store is gone."""
        with psycopg.connect(self.target) as connection:
            connection.execute("DELETE FROM items")

    def await_equal(self) -> None:
        self.await_applied()
        rows = self.source_rows()
        eventually(
            lambda: self.target_rows() == self.cached_rows() == rows,
            BUILT_S,
            lambda: f"stores have {rows}: they have {self.target_rows()} and {self.cached_rows()}",
        )

    def cached_rows(self) -> dict[int, str]:
        rows = (self.cache.hget(self.cached(key), "doc") for key in range(400))
        found = (json.loads(str(row, "utf-8")) for row in rows if isinstance(row, bytes))
        return {row["id"]: row["name"] for row in found}

    def snapshot(self) -> str:
        """The state of the table's snapshot."""
        return str(self.items.snapshots()[ITEMS]["status"])

    def rebuild(self) -> tuple[str, str]:
        """Action and status of the last request about generations."""
        topic, key = Topics(self.items.name).progress, RebuildRecord.key_of("report")
        value = read_latest(self.job.config.kafka, topic).get(key)
        assert value is not None
        record = RebuildRecord.decode(value, key)
        return record.action, record.status

    def audited(self, who: str = "oncall") -> list[tuple[str, str]]:
        """Action and code of a user's operations, in their order."""
        code, found = self.ask("GET", "/v1/audit?last=1000", token=READ)
        assert code == 200, found
        return [(one["action"], one["result"][:3]) for one in reversed(found["operations"]) if one["who"] == who]

    def source_rows(self) -> dict[int, str]:
        return dict(self.items.query("SELECT id, name FROM items"))

    def cached(self, key: int) -> str:
        """The key of a row in the cache."""
        return f"{self.items.name}:{ITEMS}:{document_id({'id': key})}"


@pytest.fixture
def operated(postgres: PostgresServer, kafka: KafkaBroker, redis: str, tmp_path: Path) -> Iterator[Operated]:
    name, port, sink_port = f"t{secrets.token_hex(5)}", free_port(), free_port()
    table = "CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL)"
    with (
        new_database(postgres) as dsn,
        new_database(postgres) as target,
        under_capture(postgres, kafka, dsn, name, tmp_path, table, [ITEMS]) as items,
        redis_client.Redis.from_url(redis) as cache,
    ):
        items.settings = {
            "http": {"port": port, "sink_port": sink_port, "users": USERS},
            "sinks": {
                "cache": {"url": redis},
                "report": {"type": "sql", "url": url_of(target), "shapes": {ITEMS: {"types": {"name": "varchar(3)"}}}},
            },
            "spark": {"checkpoint_location": str(tmp_path / "checkpoints"), "options": INTERPRETED},
            "snapshot": {"chunk_rows_max": 1, "rows_per_s_max": 10},
        }
        items.query("INSERT INTO items SELECT n, 'old' FROM generate_series(1, 30) n")
        items.start()
        items.await_caught_up()
        with SinkJob(items.config(), *SINKS, log_level="info") as job:
            job.wait_applied(items.progress(), *SINKS)
            yield Operated(items, job, port, sink_port, target, cache)


def test_operators_handle_dead_letters_and_compare_over_http_and_readers_may_not(operated: Operated) -> None:
    _refused_to_readers(operated)
    _dead_letters(operated)
    assert operated.cache.delete(operated.cached(7)) == 1
    assert operated.verified() == {"cache": 1, "report": 0}


def _refused_to_readers(operated: Operated) -> None:
    code, description = operated.ask("GET", "/openapi.json", token=READ)
    assert code == 200
    paths = [path for path, methods in description["paths"].items() if "post" in methods]
    assert len(paths) >= 15
    for path in paths:
        code, answer = operated.ask("POST", path.replace("{name}", "report"), {}, token=READ)
        assert (code, bool(answer["next"])) == (403, True), path


def _dead_letters(operated: Operated) -> None:
    operated.items.query("INSERT INTO items VALUES (100, %s)", TOO_LONG)
    operated.await_letters(1)
    wanted = {"sink": "report", "tables": [ITEMS], "keys": ["100"]}
    said = operated.post("/v1/dead-letters/discard", wanted, operated.sink_port)["answer"]
    assert said == "1 dead letters of sink report are discarded"
    operated.await_letters(0)
    operated.items.query("INSERT INTO items VALUES (101, %s)", TOO_LONG)
    operated.await_letters(1)
    (before,) = read_dead_letters(operated.job.config, ["report"])
    replayed = operated.post("/v1/dead-letters/replay", {"sink": "report"}, operated.sink_port)
    assert replayed == {"answer": f"capture publishes 1 rows of {ITEMS} again", "tables": [ITEMS]}

    def is_rejected_again() -> bool:
        (after,) = read_dead_letters(operated.job.config, ["report"])
        return after.row.version > before.row.version

    eventually(is_rejected_again, DEADLINE_S, "the row was published again, and rejected as it still is too long")
    operated.items.query("UPDATE items SET name = 'ok' WHERE id >= 100")
    operated.await_letters(0)
    operated.await_applied()
    assert operated.target_rows() == operated.source_rows()


def test_operators_stop_start_and_read_tables_and_heal_over_http(operated: Operated) -> None:
    _snapshots(operated)
    _part_of_a_table(operated)
    _tables(operated)
    _without_the_end(operated)
    _gap(operated)
    assert ("heal", "200") in operated.audited() and ("stop_table", "409") in operated.audited()


def _part_of_a_table(operated: Operated) -> None:
    operated.falsify()
    operated.post("/v1/snapshots/start", {"tables": [ITEMS], "where": "id = 5"})
    operated.await_applied()
    assert operated.target_rows() == dict.fromkeys(range(1, 31), "bad") | {5: "old"}
    for where in ("no_column = 1", "id = 'x'", "true; DROP TABLE items", "("):
        operated.post("/v1/snapshots/start", {"tables": [ITEMS], "where": where})
        eventually(lambda: operated.snapshot() == "failed", DEADLINE_S, f"a snapshot {where=} fails")
        operated.post("/v1/snapshots/cancel", {})
    code, answer = operated.ask("POST", "/v1/snapshots/start", {"tables": [ITEMS], "where": "id = 1\0"})
    assert (code, bool(answer["next"])) == (400, True)


def _snapshots(operated: Operated) -> None:
    for action in ("pause", "resume", "cancel"):
        assert operated.refused(f"/v1/snapshots/{action}", {}) == f"refused: there is no snapshot to {action}"
    operated.falsify()
    operated.post("/v1/snapshots/start", {"tables": [ITEMS]})
    operated.post("/v1/snapshots/pause", {})
    eventually(lambda: operated.snapshot() == "paused", DEADLINE_S, "the snapshot is paused")
    assert "bad" in operated.target_rows().values()
    operated.post("/v1/snapshots/resume", {"tables": [ITEMS]})
    operated.await_equal()
    operated.falsify()
    operated.post("/v1/snapshots/start", {"tables": [ITEMS]})
    operated.post("/v1/snapshots/cancel", {"tables": [ITEMS]})
    eventually(lambda: operated.snapshot() == "cancelled", DEADLINE_S, "the snapshot is cancelled")
    assert "bad" in operated.target_rows().values()


def _tables(operated: Operated) -> None:
    with ThreadPoolExecutor(2) as two:  # operators, at once
        path, wanted = "/v1/tables/stop", {"tables": [ITEMS]}
        codes = sorted(code for code, _ in two.map(lambda _: operated.ask("POST", path, wanted), range(2)))
    assert codes[0] == 200 and codes[1] in (200, 409)
    eventually(lambda: operated.items.states()[ITEMS]["status"] == "stopped", DEADLINE_S, "the table is stopped")
    operated.refused("/v1/tables/stop", {"tables": [ITEMS]})
    operated.refused("/v1/snapshots/start", {"tables": [ITEMS]})
    operated.items.query("INSERT INTO items VALUES (200, 'new')")
    operated.post("/v1/tables/start", {"tables": [ITEMS]})
    eventually(lambda: operated.items.states()[ITEMS]["status"] != "stopped", DEADLINE_S, "the table is captured")
    operated.await_equal()
    assert operated.target_rows()[200] == "new"
    assert "public.itens" in operated.refused("/v1/tables/stop", {"tables": ["public.itens"]})


def _without_the_end(operated: Operated) -> None:
    """A client that leaves in the middle of its request has asked for nothing, which is recorded."""
    expected = [*operated.audited(), ("stop_table", "400")]
    with socket.create_connection(("127.0.0.1", operated.port)) as client:
        client.sendall(LINE.format(OPERATE).encode())
    assert operated.ask("GET", "/v1/status")[0] == 200
    eventually(lambda: operated.audited() == expected, DEADLINE_S, "it is recorded")
    assert "Traceback" not in operated.items.running().said()


def _gap(operated: Operated) -> None:
    assert "there is no gap to heal" in operated.refused("/v1/snapshots/heal", {})
    operated.items.running().terminate()
    operated.items.drop_slot()
    operated.items.query("DELETE FROM items WHERE id = 9")
    operated.items.query("INSERT INTO items VALUES (201, 'gap')")
    operated.items.start().await_said("state GAP")
    code, answer = operated.ask("POST", "/v1/snapshots/start", {"tables": [ITEMS]})
    assert (code in (409, 504), bool(answer["next"])) == (True, True), (code, answer)
    operated.post("/v1/snapshots/heal", {})
    operated.await_equal()
    rows = operated.target_rows()
    assert 9 not in rows and rows[201] == "gap"


def test_operators_rebuild_and_repair_stores_over_http(operated: Operated) -> None:
    operated.await_equal()
    operated.empty()
    assert operated.verified("repair") == {"cache": 0, "report": 30}
    operated.await_equal()
    sink = "/v1/sinks/report"
    assert "no rebuild is under way" in operated.refused(f"{sink}/cancel", {}, operated.sink_port)
    assert operated.ask("POST", "/v1/sinks/none/rebuild", {}, port=operated.sink_port)[0] == 404
    operated.post(f"{sink}/rebuild", {}, operated.sink_port)
    assert "a rebuild is under way" in operated.refused(f"{sink}/rollback", {}, operated.sink_port)
    operated.post(f"{sink}/cancel", {}, operated.sink_port)
    eventually(lambda: operated.rebuild() == ("rebuild", "cancelled"), DEADLINE_S, "the rebuild is cancelled")
    with ThreadPoolExecutor(2) as two:  # operators, at once
        asked = list(two.map(lambda _: operated.ask("POST", f"{sink}/rebuild", {}, port=operated.sink_port), range(2)))
    assert {code for code, _ in asked} == {200}
    eventually(lambda: operated.rebuild() == ("rebuild", "done"), BUILT_S, "another generation serves")
    operated.await_equal()
    operated.post(f"{sink}/rollback", {}, operated.sink_port)
    eventually(lambda: operated.rebuild() == ("rollback", "done"), BUILT_S, "the former generation serves")
    operated.items.query("INSERT INTO items VALUES (300, 'two')")
    operated.await_equal()
    assert set(operated.audited()) >= {("repair", "202"), ("rebuild", "200"), ("cancel_rebuild", "409")}
    assert set(operated.audited()) >= {("cancel_rebuild", "200"), ("rollback", "200"), ("rollback", "409")}
