"""Capture and the sinks' job beside each other, with their HTTP servers, as a reader of the stores meets them."""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import redis as redis_client

from sinks.reduction import document_id
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.http_server import HttpServer, free_port
from tests.support.sink_job import SinkJob

ITEMS: Final = "public.items"
TABLES: Final[LiteralString] = (
    "CREATE TABLE items (id int PRIMARY KEY, name text); CREATE TABLE other (id int PRIMARY KEY);"
)
END: Final = "SELECT pg_current_wal_insert_lsn()::text"


@dataclass
class Pipeline:
    items: Captured
    job: SinkJob
    config: Path
    capture_http: HttpServer
    sink_http: HttpServer
    redis: str

    def write(self, connection: psycopg.Connection, key: int, name: str) -> str:
        """Committed; the LSN behind it."""
        connection.execute(
            "INSERT INTO items VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET name = %s", (key, name, name)
        )
        row = connection.execute(END).fetchone()
        assert row is not None
        return str(row[0])

    def read(self, client: redis_client.Redis, key: int) -> str | None:
        """The item's name, as a reader of the cache has it."""
        row = f"{self.items.name}:public.items:{document_id({'id': key})}"
        raw: Any = client.hget(row, "doc")
        return None if raw is None else str(json.loads(raw)["name"])


@contextmanager
def pipeline_of(
    postgres: PostgresServer,
    kafka: KafkaBroker,
    redis: str,
    folder: Path,
    sinks: Mapping[str, Mapping[str, Any]],
) -> Iterator[Pipeline]:
    """Yields when all are ready, with fifty rows in the stores. `sinks`: the section of the configuration."""
    name, capture_port, sink_port = f"t{secrets.token_hex(5)}", free_port(), free_port()
    with (
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, TABLES, [ITEMS]) as items,
    ):
        items.settings = {
            "http": {"port": capture_port, "sink_port": sink_port},
            "sinks": {sink: dict(section) for sink, section in sinks.items()},
            "spark": {
                "checkpoint_location": str(folder / "checkpoints"),
                "warehouse_trigger_ms": 500,
                "options": INTERPRETED,
            },
        }
        items.query("INSERT INTO items SELECT n, 'before' FROM generate_series(1, 50) n")
        items.start()
        items.await_caught_up()
        config = items.config()
        with SinkJob(config, *sinks, log_level="info") as job:
            found = Pipeline(items, job, config, HttpServer(capture_port), HttpServer(sink_port), redis)
            found.sink_http.await_ready(240.0)
            yield found
