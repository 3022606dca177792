"""A store of many rows is built again while changes arrive and readers read: nothing is missing or stale at any moment.

    python -m tests.faults.rebuild_campaign --rows 1000000 --rate 500 --sinks search cache

The stores are filled first. Then, while changes are written, each row that is read through the name of the readers is
compared with what was written and waited for (tests/support/read_meanwhile.py): during `cdc rebuild` of each store, and
for stores with two generations during `cdc rebuild --rollback`. With `--kills` the sinks' job is killed that often
during each of them, at random moments, and started again. After each the writer stops and every row is compared with
the source. A read that a store refuses for lack of resources is counted, and is not wrong. The result is a JSON object;
the exit code is 1 if anything was wrong.
"""

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import redis
from opensearchpy import OpenSearch
from opensearchpy.helpers import scan

from cdc.model.events import TableId
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.reader import WarehouseReader
from tests.conformance.stores import url_of
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import servers
from tests.support.captured import Captured
from tests.support.drift import Background
from tests.support.forked import run
from tests.support.read_meanwhile import (
    FILL,
    SCHEMA,
    TABLE,
    ReadMeanwhile,
    ReadRow,
    Writes,
    cache_reader,
    search_finder,
    search_reader,
    sql_reader,
    warehouse_reader,
)
from tests.support.sink_job import SinkJob
from watershed.devstack.endpoints import Endpoints

SINKS: Final = ("search", "cache", "sql", "warehouse")
FILL_S_MAX: Final = 1200.0
COMMAND_S_MAX: Final = 1200.0
IN_PLACE: Final = ("cache",)
KILL_PAUSE_S: Final = (2.0, 25.0)
PAGE: Final = 5_000
# Two generations of a million rows fill the 512 MB of the development stack's OpenSearch, which then refuses requests.
SMALL_ROWS: Final = 300_000


class Stores:
    """The knowledge of the campaign's readers about the stores."""

    def __init__(self, name: str, endpoints: Endpoints, sql: str, folder: Path) -> None:
        self._name = name
        self._endpoints = endpoints
        self._sql = sql
        self._lake = CatalogPlace(folder / "catalog.db", (folder / "tables").as_uri(), name)

    def section(self, sink: str) -> dict[str, Any]:
        endpoints = self._endpoints
        sections = {
            "search": {"url": endpoints.opensearch_url},
            "cache": {"url": endpoints.redis_url},
            "sql": {"type": "sql", "url": url_of(self._sql)},
            "warehouse": {"catalog_uri": f"jdbc:sqlite:{self._lake.database}", "location": self._lake.location},
        }
        return sections[sink]

    def readers(self, sink: str) -> list[ReadRow]:
        match sink:
            case "search":
                url = self._endpoints.opensearch_url
                return [search_reader(url, self._name), search_finder(url, self._name)]
            case "cache":
                return [cache_reader(self._endpoints.redis_url, self._name)]
            case "sql":
                return [sql_reader(self._sql)]
            case _:
                return [warehouse_reader(self._lake)]

    def rows(self, sink: str) -> Iterator[tuple[int, int]]:
        """Every row that readers see: id and n."""
        match sink:
            case "search":
                index = f"{self._name}.{TABLE}"
                with OpenSearch(self._endpoints.opensearch_url, timeout=60) as client:
                    client.indices.refresh(index=index)
                    query = {"query": {"match_all": {}}, "_source": ["id", "n"], "sort": ["_doc"]}
                    for hit in scan(client, query, index=index, size=PAGE):
                        yield hit["_source"]["id"], hit["_source"]["n"]
            case "cache":
                yield from self._cached()
            case "warehouse":
                for row in WarehouseReader(self._lake).rows(TableId("public", "counters")):
                    yield row.row["id"], row.row["n"]
            case _:
                with psycopg.connect(self._sql) as connection, connection.cursor("all_rows") as cursor:
                    cursor.itersize = PAGE
                    cursor.execute("SELECT id, n FROM public.counters")
                    yield from cursor

    def _cached(self) -> Iterator[tuple[int, int]]:
        beginning = f"{self._name}:{TABLE}:"
        with redis.Redis.from_url(self._endpoints.redis_url, decode_responses=True) as client:
            seen: set[str] = set()
            cursor: Any = 0
            while True:
                cursor, keys = client.scan(cursor, f"{beginning}[0-9]*", PAGE)
                fresh = [key for key in keys if key not in seen]
                seen.update(fresh)
                pipeline = client.pipeline(transaction=False)
                for key in fresh:
                    pipeline.hget(key, "doc")
                for text in pipeline.execute():
                    row = json.loads(text)
                    yield row["id"], row["n"]
                if cursor == 0:
                    return


class Job(Background):
    """The sinks' job. With `kills` to come it is killed at random moments, and started again."""

    def __init__(self, config: Path, sinks: Sequence[str]) -> None:
        super().__init__()
        self.kills_left = self.kills = 0
        self._config = config
        self._sinks = sinks
        self._chance = random.Random(11)
        self._lock = threading.Lock()
        self._jobs = [self._started()]

    def _started(self) -> SinkJob:
        job = SinkJob(self._config, *self._sinks, log_level="info")
        job.__enter__()
        return job

    @property
    def now(self) -> SinkJob:
        with self._lock:
            return self._jobs[-1]

    def _run(self) -> None:
        while not self._ended.wait(self._chance.uniform(*KILL_PAUSE_S)):
            if self.kills_left > 0:
                with self._lock:
                    self._jobs[-1].kill()
                    self._jobs.append(self._started())
                    self.kills_left -= 1
                    self.kills += 1

    def end(self) -> list[str]:
        """Lines of its logs that say that an error of ours came up."""
        self.now.kill()
        return [line for job in self._jobs for line in job.said().splitlines() if "Traceback" in line]


class Campaign:
    """One database under capture, with its stores."""

    def __init__(self, captured: Captured, stores: Stores, job: Job, options: argparse.Namespace) -> None:
        self._captured = captured
        self._stores = stores
        self._job = job
        self._rows: int = options.rows
        self._rate: float = options.rate
        self._kills: int = options.kills
        self._sinks: list[str] = options.sinks
        self._writes = Writes()

    def fill(self) -> dict[str, float]:
        """Seconds until the topics, then each store, had all rows."""
        began = time.monotonic()
        self._captured.await_caught_up(FILL_S_MAX)
        published = time.monotonic()
        self._job.now.wait_applied(self._captured.progress(), *self._sinks, deadline_s=FILL_S_MAX)
        return {"published_s": round(published - began, 1), "filled_s": round(time.monotonic() - published, 1)}

    def step(self, sink: str, *words: str) -> dict[str, Any]:
        """`cdc rebuild` with these words while rows are written and read; then every row compared."""
        readers: Mapping[str, Sequence[ReadRow]] = {sink: self._stores.readers(sink)}
        kills = self._job.kills
        with ReadMeanwhile(
            self._captured.dsn, self._captured.folder / "watershed.yml", self._rows, readers, self._rate, self._writes
        ) as meanwhile:
            began = time.monotonic()
            self._job.kills_left = self._kills
            done = self._command("rebuild", "--sink", sink, "--json", *words)
            took_s = time.monotonic() - began
            self._job.kills_left = 0
            written = meanwhile.written
        message = json.loads(done.stdout.splitlines()[-1])
        reported = {
            "step": " ".join(["rebuild", sink, *words]),
            "status": message["status"],
            "message": message["message"],
            "took_s": round(took_s, 1),
            "changes_per_s": round(written / took_s),
            "reads": meanwhile.reads[sink],
            "waits": meanwhile.waits[sink],
            "busy_reads": meanwhile.busy[sink],
            "slowest_read_s": round(meanwhile.slowest_read_s[sink], 2),
            "slowest_wait_s": round(meanwhile.slowest_wait_s[sink], 2),
            "wrong_reads": meanwhile.complaints[:5],
            "wrong_read_count": len(meanwhile.complaints),
            "kills": self._job.kills - kills,
        }
        reported |= self._compared(sink)
        print(json.dumps(reported), flush=True)
        return reported

    def drop(self, sink: str) -> None:
        done = self._command("rebuild", "--sink", sink, "--drop-old", "--json")
        assert done.returncode == 0, done.stderr

    def _command(self, *words: str) -> Any:
        done = run([*words, "--config", str(self._captured.folder / "watershed.yml")], deadline_s=COMMAND_S_MAX)
        assert done.stdout, done.stderr
        return done

    def _compared(self, sink: str) -> dict[str, int]:
        """Nothing is written meanwhile."""
        captured = self._captured
        captured.await_caught_up(FILL_S_MAX)
        self._job.now.wait_applied(captured.log_end() and captured.progress(), sink, deadline_s=FILL_S_MAX)
        source: dict[int, int] = dict(captured.query("SELECT id, n FROM counters"))
        rows, differences = 0, 0
        for key, n in self._stores.rows(sink):
            rows += 1
            differences += source.pop(key, None) != n
        return {"rows": rows, "differences": differences + len(source)}


@contextmanager
def under_capture(server: PostgresServer, kafka: KafkaBroker, name: str, folder: Path) -> Iterator[Captured]:
    """As tests.support.captured.under_capture, without the journal, which would write each row a second time."""
    with new_database(server) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(SCHEMA)
        superuser = psycopg.conninfo.make_conninfo(
            server.superuser_dsn, dbname=str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
        )
        captured = Captured(dsn, superuser, kafka.bootstrap_servers, name, [TABLE], folder)
        try:
            yield captured
        finally:
            captured.end()


def is_true(reported: Mapping[str, Any]) -> bool:
    return (
        reported["status"] == "done"
        and not reported["wrong_read_count"]
        and not reported["differences"]
        and reported["reads"] > 0
    )


def run_campaign(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    name = f"rebuild_{secrets.token_hex(3)}"
    work = folder / name
    work.mkdir()
    with ExitStack() as stack:
        servers_here = stack.enter_context(servers(folder / "stack"))
        endpoints = servers_here.start("postgres", "kafka", "redis", "opensearch")
        server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, servers_here)
        kafka = KafkaBroker(endpoints.bootstrap_servers, servers_here)
        sql = stack.enter_context(new_database(server))
        captured = stack.enter_context(under_capture(server, kafka, name, work))
        stores = Stores(name, endpoints, sql, work)
        captured.settings = {
            "sinks": {sink: stores.section(sink) for sink in options.sinks},
            "spark": {"checkpoint_location": str(work / "checkpoints"), "warehouse_trigger_ms": 1000},
        }
        captured.query(FILL, options.rows)
        captured.start()
        job = stack.enter_context(Job(captured.config(), options.sinks))
        try:
            campaign = Campaign(captured, stores, job, options)
            reported: dict[str, Any] = {"rows": options.rows, "rate": options.rate, **campaign.fill()}
            print(json.dumps(reported), flush=True)
            steps = []
            for sink in options.sinks:
                steps.append(campaign.step(sink))
                if sink not in IN_PLACE:
                    steps.append(campaign.step(sink, "--rollback"))
                    campaign.drop(sink)
        finally:
            tracebacks = job.end()
    if not tracebacks and all(map(is_true, steps)):
        shutil.rmtree(work)
    return {**reported, "tracebacks": tracebacks, "is_true": not tracebacks and all(map(is_true, steps))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=500.0, help="changes per second")
    parser.add_argument("--kills", type=int, default=0, help="of the sinks' job, during each step")
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=list(SINKS[:3]))
    parser.add_argument("--folder", type=Path, default=Path(".watershed/rebuild-campaign"))
    options = parser.parse_args()
    if options.rows > SMALL_ROWS:
        os.environ.setdefault("OPENSEARCH_JAVA_OPTS", "-Xms2g -Xmx2g")
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers and processes are stopped
    reported = run_campaign(options, folder)
    print(json.dumps(reported), flush=True)
    return int(not reported["is_true"])


if __name__ == "__main__":
    sys.exit(main())
