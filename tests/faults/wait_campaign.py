"""Read your writes, measured: each write is waited for and then read from every store, as its readers read it.

    python -m tests.faults.wait_campaign --writes 1000 --folder .watershed/wait-campaign

Meanwhile the source takes about 300 other changes a second. Several writers wait at once, each for its own write and
all sinks. The end is a table; the exit code is 1 if a store showed an older value than the one that was waited for.
"""

import argparse
import random
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import redis as redis_client
from opensearchpy import OpenSearch
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.expressions import EqualTo

from cdc.config.config_file import load_config
from sinks.warehouse.catalog import catalog_place
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import servers
from tests.support.drift import Background
from tests.support.pipeline import Pipeline, pipeline_of
from tests.support.stores import sinks_section, table_id
from watershed import Waiter
from watershed.devstack.stack import Stack

KEYS: Final = 40
ROWS_AT_ONCE: Final = 30
PAUSE_S: Final = 0.1
WAIT_S: Final = 120.0
STORES: Final = ("search", "cache", "sql", "warehouse")


class Load(Background):
    """Changes of other rows, about 300 a second."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self.changes = 0
        self._dsn = dsn

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(PAUSE_S):
                first = random.randrange(1000, 3000)
                connection.execute(
                    "INSERT INTO items SELECT n, 'load' FROM generate_series(%s::int, %s) n ON CONFLICT (id)"
                    " DO UPDATE SET name = 'load ' || random()",
                    (first, first + ROWS_AT_ONCE - 1),
                )
                self.changes += ROWS_AT_ONCE


@dataclass
class Outcome:
    """The observations of the writers."""

    waited_s: list[float] = field(default_factory=list)
    reads: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STORES, 0))
    stale: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Writer:
    """Writes rows of its own, waits for each in all sinks, and reads it from every store."""

    def __init__(self, pipeline: Pipeline, number: int, sql_dsn: str, outcome: Outcome) -> None:
        self._pipeline, self._number, self._outcome = pipeline, number, outcome
        config = load_config(pipeline.config)
        sinks: Mapping[str, Any] = config.sinks
        prefix = config.topics.prefix
        self._sinks = list(sinks)
        self._index = f"{prefix}.public.items"
        self._search = OpenSearch([sinks["search"].url.get_secret_value()])
        self._cache = redis_client.Redis.from_url(pipeline.redis, decode_responses=True)
        self._sql = psycopg.connect(sql_dsn, autocommit=True)
        self._warehouse = catalog_place(sinks["warehouse"], prefix) if "warehouse" in sinks else None

    def run(self, writes: int) -> None:
        try:
            source = psycopg.connect(self._pipeline.items.dsn, autocommit=True)
            with source as connection, Waiter(self._pipeline.config) as waiter:
                for number in range(writes):
                    self._write(connection, waiter, number)
        except Exception as error:  # noqa: BLE001 - of a thread; the campaign reports it
            self._outcome.errors.append(f"writer {self._number}: {error}")

    def _write(self, connection: psycopg.Connection, waiter: Waiter, number: int) -> None:
        key, name = self._number * KEYS + number % KEYS, f"write {self._number}.{number}"
        lsn = self._pipeline.write(connection, key, name)
        began = time.monotonic()
        waiter.wait_for(self._sinks, lsn, WAIT_S)
        self._outcome.waited_s.append(time.monotonic() - began)
        for store in self._sinks:
            found = self._read(store, key)
            self._outcome.reads[store] += 1
            if found != name:
                self._outcome.stale.append(f"{store}: row {key} is {found!r}, {name!r} was waited for")

    def _read(self, store: str, key: int) -> str | None:
        match store:
            case "search":
                body = {"query": {"term": {"id": key}}}
                hits = self._search.search(index=self._index, body=body)["hits"]["hits"]
                return str(hits[0]["_source"]["name"]) if hits else None
            case "cache":
                return self._pipeline.read(self._cache, key)
            case "sql":
                row = self._sql.execute("SELECT name FROM items WHERE id = %s", (key,)).fetchone()
                return None if row is None else str(row[0])
            case _:
                assert self._warehouse is not None
                with self._warehouse.opened() as catalog:
                    table = catalog.load_table(self._warehouse.place(table_id("items")).rows)
                    wanted = EqualTo(term="id", value=key)
                    rows = table.scan(wanted, selected_fields=("name",)).to_arrow().to_pylist()
                return str(rows[0]["name"]) if rows else None


def measure(stack: Stack, folder: Path, writes: int, writers: int, stores: list[str]) -> bool:
    """Runs it and prints what was seen. Returns whether no read was stale."""
    endpoints = stack.start("postgres", "kafka", "redis", "opensearch")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    outcome = Outcome()
    with new_database(server) as sql_dsn:
        parts = conninfo_to_dict(sql_dsn)
        url = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"
        sections = sinks_section(folder, endpoints.opensearch_url, endpoints.redis_url)
        sections["sql"] = {"url": url, "shapes": {"*": {"table": "public.{table}"}}}
        sinks = {store: sections[store] for store in stores}
        with pipeline_of(server, kafka, endpoints.redis_url, folder, sinks) as pipeline:
            made = [Writer(pipeline, number + 1, sql_dsn, outcome) for number in range(writers)]
            began = time.monotonic()
            with Load(pipeline.items.dsn) as load:
                shares = [writes // writers + (number < writes % writers) for number in range(writers)]
                threads = [
                    threading.Thread(target=writer.run, args=(share,), daemon=True)
                    for writer, share in zip(made, shares, strict=True)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            _report(outcome, load.changes, time.monotonic() - began)
    return not outcome.stale and not outcome.errors and len(outcome.waited_s) == writes


def _report(outcome: Outcome, changes: int, seconds: float) -> None:
    waited = sorted(outcome.waited_s)
    print(f"{len(waited)} writes, each waited for, in {seconds:.0f} s beside {changes / seconds:.0f} changes/s")
    if len(waited) > 1:
        p95 = statistics.quantiles(waited, n=20)[-1]
        print(f"waited: median {statistics.median(waited):.2f} s, p95 {p95:.2f} s, longest {waited[-1]:.2f} s")
    for store, count in outcome.reads.items():
        if count:
            stale = sum(1 for line in outcome.stale if line.startswith(f"{store}:"))
            print(f"{store:10} {count:5} reads, {stale} stale")
    for line in [*outcome.stale[:10], *outcome.errors]:
        print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writes", type=int, default=1000)
    parser.add_argument("--writers", type=int, default=10)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--folder", type=Path, default=Path(".watershed/wait-campaign"))
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o711)  # PostgreSQL and OpenSearch may run under another account than ours
    with servers(folder / "stack") as stack:
        return 0 if measure(stack, folder, asked.writes, asked.writers, asked.stores) else 1


if __name__ == "__main__":
    sys.exit(main())
