"""Measures views: the freshness of nested documents on the demo's shop, from a commit in PostgreSQL until the document
is readable by its id; for each recipe of the documentation the keys per second and the size of the state; and how fast
an event log is loaded and folded.

    python -m tests.bench.views --seconds 100 --json
    python -m tests.bench.views --parts kinds
    python -m tests.bench.views --parts documents --target warehouse

The benchmark starts its own servers in a temporary folder. The last line of standard output is one JSON object.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from rich.console import Console

from tests.bench.processes import cores, cpu_by_program
from tests.bench.snapshot import percentile
from tests.bench.views_events import events
from tests.bench.views_kinds import kinds
from tests.bench.views_readers import READERS, ReadDocument, target
from tests.conformance.stores import url_of
from tests.support.captured import Captured
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually
from watershed.devstack.endpoints import Endpoints
from watershed.devstack.stack import Stack

PARTS: Final = ("documents", "kinds", "events")
SHOP: Final = Path(__file__).parents[2] / "watershed/demo/shop.sql"
START_S_MAX: Final = 240.0
SAMPLE_S_MAX: Final = 60.0
POLL_S: Final = 0.05
SAMPLERS: Final = 4
CUSTOMERS: Final = 4_000
FILL: LiteralString = """
INSERT INTO customers SELECT n, 'c' || n || '@example.org', 'name ' || n, NULL, NULL, true, 0, '{}', NULL, now(), now()
  FROM generate_series(1, 4000) AS n;
INSERT INTO products SELECT md5(n::text)::uuid, 'sku' || n, 'title ' || n, NULL, 9.5, 1, 5, NULL, '{}', '{}', true,
  NULL, NULL FROM generate_series(1, 100) AS n;
INSERT INTO orders SELECT n, n % 4000 + 1, 'new', now(), NULL, 10, false, NULL, NULL
  FROM generate_series(1, 12000) AS n;
INSERT INTO order_lines SELECT n, no, md5((n % 100 + 1)::text)::uuid, 1, 9.5, 0, '{}', '{}'
  FROM generate_series(1, 12000) AS n, generate_series(1, 3) AS no;
"""
DOCUMENT: Final = """
SELECT c.id, c.name, c.email, c.phone,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('id', o.id, 'status', o.status, 'note', o.note, 'total', o.total,
          'lines', (SELECT coalesce(jsonb_agg(jsonb_build_object('no', l.line_no, 'product', l.product_id,
                      'quantity', l.quantity, 'price', l.unit_price, 'options', l.options) ORDER BY l.line_no), '[]')
                      FROM order_lines l WHERE l.order_id = o.id)) ORDER BY o.id), '[]')
          FROM orders o WHERE o.customer_id = c.id) AS orders
  FROM customers c
"""
CHANGES: Final[tuple[LiteralString, ...]] = (
    "UPDATE customers SET credit = credit + 1, name = 'name ' || random() WHERE id = %s",
    "UPDATE orders SET total = total + 1 WHERE id = %s",
    "UPDATE order_lines SET quantity = quantity %% 100 + 1 WHERE order_id = %s AND line_no = 1",
    "UPDATE order_lines SET unit_price = unit_price + 1 WHERE order_id = %s AND line_no = 2",
)
# The change, and whether the base shows it.
MARKS: Final[tuple[tuple[LiteralString, LiteralString], ...]] = (
    ("UPDATE customers SET phone = %s WHERE id = %s", "SELECT 1 FROM customers WHERE phone = %s AND id = %s"),
    ("UPDATE orders SET note = %s WHERE id = %s", "SELECT 1 FROM orders WHERE note = %s AND id = %s"),
    (
        "UPDATE order_lines SET options = jsonb_build_object('mark', %s::text) WHERE order_id = %s AND line_no = 3",
        "SELECT 1 FROM order_lines WHERE options->>'mark' = %s AND order_id = %s AND line_no = 3",
    ),
)


@contextmanager
def running_view(endpoints: Endpoints, folder: Path, kind: str) -> Iterator[tuple[Captured, str]]:
    """The shop under capture, its tables in a base, and one view. Yields when the view serves, with the base's DSN."""
    superuser = make_conninfo(endpoints.superuser_dsn, dbname="watershed")
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute("CREATE DATABASE base OWNER watershed")
    base = make_conninfo(endpoints.dsn, dbname="base")
    tables = [f"public.{name}" for name in ("customers", "products", "orders", "order_lines")]
    captured = Captured(endpoints.dsn, superuser, endpoints.bootstrap_servers, "bench", tables, folder)
    indexes = {"public.orders": {"indexes": [["customer_id"]]}}
    captured.settings = {
        "sinks": {"base": {"type": "sql", "url": url_of(base), "shapes": indexes}},
        "views": {
            "documents": {
                "base": "base",
                "sql": DOCUMENT,
                "key": ["id"],
                "target": target(kind, endpoints, folder),
            }
        },
        "spark": {"checkpoint_location": str(folder / "checkpoints")},
    }
    with psycopg.connect(captured.dsn, autocommit=True) as connection:
        connection.execute(SHOP.read_bytes())
        connection.execute(FILL)
    try:
        captured.start(is_forked=False).await_said(" streaming", START_S_MAX)
        captured.await_caught_up()
        with SinkJob(captured.config(), "base", log_level="info") as job:
            job.wait_applied(captured.progress(), "base", deadline_s=START_S_MAX)
            command = [sys.executable, "-m", "watershed", "view", "run", "--config", str(captured.config())]
            with (folder / "view.log").open("wb") as log:
                view = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                message = folder / "view.log"
                eventually(lambda: "view is filled" in message.read_text(), START_S_MAX, message.read_text)
                yield captured, base
            finally:
                view.kill()
                view.wait()
    finally:
        captured.end()


def documents(
    endpoints: Endpoints, folder: Path, rate: float, warm_s: float, seconds: float, kind: str
) -> dict[str, Any]:
    """Returns the times from a commit until the base shows it, and until a document of this kind of target does, under
    a steady load."""
    with running_view(endpoints, folder, kind) as (captured, base):
        ending, is_warm = threading.Event(), threading.Event()
        samples: list[tuple[int, float, float]] = []
        counts: list[int] = []
        threads = [threading.Thread(target=_load, args=(captured.dsn, rate, ending, counts), daemon=True)]
        threads += [
            threading.Thread(
                target=_sample,
                args=(number, captured, base, READERS[kind](endpoints, captured), is_warm, ending, samples),
                daemon=True,
            )
            for number in range(SAMPLERS)
        ]
        for thread in threads:
            thread.start()
        ending.wait(warm_s)
        before, begun = cpu_by_program(), time.monotonic()
        is_warm.set()
        ending.wait(seconds)
        used = cores(before, time.monotonic() - begun)
        ending.set()
        for thread in threads:
            thread.join(SAMPLE_S_MAX)
        with psycopg.connect(base, autocommit=True) as connection:
            (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchall()[0]
    hops = {
        "base": sorted(first for _, first, _ in samples),
        "view": sorted(whole - first for _, first, whole in samples),
        "readable": sorted(whole for _, _, whole in samples),
    }
    found: dict[str, Any] = {"changes_per_s": round(counts[0]), "samples": len(samples), "base_mb": round(size / 1e6)}
    for hop, values in hops.items():
        found[f"{hop}_ms"] = {
            name: round(percentile(values, share) * 1000)
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        }
    return found | {"cores": used}


def _load(dsn: str, rate: float, ending: threading.Event, counts: list[int]) -> None:
    """Commits changes of single rows until the end, of rows that the samplers do not use."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        chance = random.Random(1)
        begun, count = time.monotonic(), 0
        while not ending.is_set():
            if (due := begun + count / rate - time.monotonic()) > 0:
                time.sleep(due)
            connection.execute(CHANGES[count % len(CHANGES)], (chance.randint(100, CUSTOMERS - 1),))
            count += 1
        counts.append(round(count / (time.monotonic() - begun)))


def _sample(
    number: int,
    captured: Captured,
    base: str,
    read: ReadDocument,
    is_warm: threading.Event,
    ending: threading.Event,
    samples: list[tuple[int, float, float]],
) -> None:
    """Changes a row of each level of one document, one after the other, and waits for it in the base and then in the
    document. A change that does not appear in time counts with this time.
    """
    key = number + 2
    chance = random.Random(number)
    with psycopg.connect(captured.dsn, autocommit=True) as source, psycopg.connect(base, autocommit=True) as copies:
        is_warm.wait()
        level = number
        while not ending.is_set():
            level = (level + 1) % len(MARKS)
            change, shows = MARKS[level]
            mark = f"mark {time.time_ns()}"
            # Order n is of customer n + 1.
            row = key if level == 0 else key - 1
            source.execute(change, (mark, row))
            committed = time.monotonic()
            _await(lambda: copies.execute(shows, (mark, row)).fetchone() is not None)  # noqa: B023
            in_base = time.monotonic() - committed
            _await(lambda: mark in read(key))  # noqa: B023
            samples.append((level, in_base, time.monotonic() - committed))
            time.sleep(chance.random() / 2)


def _await(is_there: Any) -> None:
    end = time.monotonic() + SAMPLE_S_MAX
    while not is_there() and time.monotonic() < end:
        time.sleep(POLL_S)


def _database(endpoints: Endpoints, name: str) -> str:
    """Creates a database, and returns its DSN."""
    superuser = make_conninfo(endpoints.superuser_dsn, dbname="watershed")
    with psycopg.connect(superuser, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER watershed").format(sql.Identifier(name)))
    return make_conninfo(endpoints.dsn, dbname=name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100.0, help="that freshness is measured for")
    parser.add_argument("--warm", type=float, default=15.0, help="seconds under load before freshness is measured")
    parser.add_argument("--rate", type=float, default=300.0, help="changes a second")
    parser.add_argument("--rows", type=int, default=20_000, help="of each large table under the recipes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    parser.add_argument("--target", choices=list(READERS), default="search", help="that keeps the nested documents")
    parser.add_argument("--json", action="store_true", help="print no table")
    arguments = parser.parse_args()
    console = Console(stderr=True, quiet=arguments.json)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="watershed-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may run under another account than ours
        services = ["postgres", "opensearch", *(["kafka"] if {"documents", "events"} & {*arguments.parts} else [])]
        with Stack(folder / "stack", given={}) as stack:
            endpoints = stack.start(*services)
            if "documents" in arguments.parts:
                found["documents"] = documents(
                    endpoints, folder, arguments.rate, arguments.warm, arguments.seconds, arguments.target
                )
                console.print(found["documents"], highlight=False)
            if "kinds" in arguments.parts:
                found["kinds"] = kinds(_database(endpoints, "kinds"), endpoints.opensearch_url, arguments.rows)
                for kind, values in found["kinds"].items():
                    console.print(kind, values, highlight=False)
            if "events" in arguments.parts:
                found["events"] = events(endpoints, _database(endpoints, "events"), arguments.rows)
                console.print(found["events"], highlight=False)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
