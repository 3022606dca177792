"""Operations over HTTP on a real pipeline: who may do them, dead letters, and a comparison."""

import http.client
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import redis as redis_client

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

    def verified(self) -> dict[str, int]:
        """Compares in the sinks' process. Returns sink → rows that differ."""
        identity = self.post("/v1/verify", {}, self.sink_port)["id"]

        def ended() -> dict[str, Any] | None:
            code, run = self.ask("GET", f"/v1/operations/{identity}", port=self.sink_port)
            assert code == 200, run
            return run if run["status"] != "running" else None

        run = eventually(ended, DEADLINE_S, "the comparison ends")
        assert run is not None and run["status"] == "done", run
        return {table["sink"]: table["drift"] for table in run["result"]["tables"]}

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
