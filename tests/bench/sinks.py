"""Measures the sinks, each alone and all together: rows per second from a backlog in comparison with the store's plain
client, and the time from a commit in PostgreSQL until the store shows it.

    python -m tests.bench.sinks --rows 500000 --json
    python -m tests.bench.sinks --only cache --parts freshness

The benchmark starts its own servers in a temporary folder. The last line of standard output is one JSON object.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString

from psycopg import sql
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.table import Table

from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics
from tests.bench.processes import cores, cpu_by_program, cpu_s, memory_mb
from tests.bench.sinks_limits import rows_per_second, write_iceberg, write_opensearch, write_postgresql, write_redis
from tests.bench.sinks_load import SampledRow, sample, write_changes
from tests.bench.sinks_restart import idle, restarts
from tests.bench.sinks_scaling import rates
from tests.bench.sinks_tables import rounds
from tests.bench.snapshot import percentile
from tests.bench.yardstick import narrow_rows_per_second
from tests.conformance.stores import url_of
from tests.support.captured import Captured
from tests.support.sink_job import SinkJob
from tests.support.sink_machine import Positions
from tests.support.stores import sinks_section
from tests.support.waiting import eventually
from watershed.devstack.endpoints import Endpoints
from watershed.devstack.stack import Stack

STORES: Final = ("cache", "search", "warehouse", "sql")
TOGETHER: Final = STORES[:3]  # in one application
PARTS: Final = ("backlog", "scaling", "freshness", "together", "tables", "restarts", "idle")
TABLES: Final = ("orders", "lines", "customers", "products", "payments")
DATABASE: Final = "watershed"
FRESH_ROWS: Final = 20_000  # in each table under the workload
WARM_S: Final = 15.0
START_S_MAX: Final = 180.0
BACKLOG_S_MAX: Final = 900.0
SAMPLERS: Final = 1  # rows of each store that are changed and waited for, each in a process of its own
LIMIT_ROWS: Final = 200_000

SCHEMA: LiteralString = """
CREATE TABLE {} (
  id bigint PRIMARY KEY, customer_id int NOT NULL, status text NOT NULL, amount numeric(12,2) NOT NULL,
  note text NOT NULL, is_gift boolean NOT NULL, changed_at timestamptz NOT NULL, counter int NOT NULL DEFAULT 0,
  city text NOT NULL, country text NOT NULL
) WITH (autovacuum_enabled = off)  -- which would take half a core while a backlog is worked off
"""
FILL: LiteralString = """
INSERT INTO {} SELECT n, n %% 9973, (ARRAY['new', 'paid', 'packed', 'shipped'])[n %% 4 + 1], (n %% 500000) / 100.0,
  'a note of some words ' || md5(n::text), n %% 3 = 0, now(), 0, 'city ' || n %% 997, 'NL'
  FROM generate_series(%s::bigint, %s) AS n
"""
# Single-row transactions, as fast as the server makes them.
SINGLES: LiteralString = """
CREATE PROCEDURE fill_singly(first bigint, last bigint) LANGUAGE plpgsql AS $$ BEGIN
  FOR n IN first..last LOOP
    INSERT INTO orders VALUES (n, n % 9973, 'new', (n % 500000) / 100.0, 'a note of some words ' || md5(n::text),
      n % 3 = 0, now(), 0, 'city ' || n % 997, 'NL');
    COMMIT;
  END LOOP;
END $$
"""


@dataclass
class Bench:
    """The servers, a database under capture, and a folder for each run."""

    folder: Path
    endpoints: Endpoints
    console: Console
    number: int = 0
    warm_s: float = WARM_S

    def database(self, name: str) -> str:
        """Returns the URL of a database of the same server."""
        return url_of(make_conninfo(self.endpoints.superuser_dsn, dbname=name))

    @contextmanager
    def captured(self, tables: Sequence[str]) -> Iterator[Captured]:
        """Creates these tables, empty, and runs `cdc run` on them with a prefix of its own."""
        self.number += 1
        folder = self.folder / f"run{self.number}"
        folder.mkdir()
        superuser = make_conninfo(self.endpoints.superuser_dsn, dbname=DATABASE)
        captured = Captured(
            dsn=self.endpoints.dsn,
            superuser_dsn=superuser,
            bootstrap_servers=self.endpoints.bootstrap_servers,
            name=f"bench{self.number}",
            tables=[f"public.{table}" for table in tables],
            folder=folder,
        )
        captured.settings = {
            "sinks": sinks_section(folder, self.endpoints.opensearch_url, self.endpoints.redis_url)
            | {"sql": {"type": "sql", "url": self.database(captured.name)}},
            "spark": {"checkpoint_location": str(folder / "checkpoints")},
            "source": {"publication": captured.name},
            # The tables are empty. Their snapshot would begin while they are filled, and publish each row once more.
            "snapshot": {"mode": "never"},
        }
        captured.query(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(captured.name)))  # of the SQL sink
        for table in tables:
            captured.query(sql.SQL(SCHEMA).format(sql.Identifier(table)))
            captured.query(sql.SQL("ALTER TABLE {} OWNER TO watershed").format(sql.Identifier(table)))
        try:
            captured.start(is_forked=False).await_said(" streaming", START_S_MAX)
            yield captured
        finally:
            captured.end()
            # The walsender may take a moment to end.
            eventually(lambda: _drop_slot(captured), 60.0, "the slot is free")
            for table in tables:
                captured.query(sql.SQL("DROP TABLE {}").format(sql.Identifier(table)))


def _drop_slot(captured: Captured) -> bool:
    active = captured.query("SELECT active FROM pg_replication_slots WHERE slot_name = %s", captured.name)
    if active and not active[0][0]:
        captured.drop_slot()
        return True
    return not active


# ---- backlog


def backlog(bench: Bench, stores: Sequence[str], rows: int, *, singly: bool) -> dict[str, Any]:
    """Returns rows per second of each store, filled alone, one after the other, from the same topic."""
    with bench.captured(["orders"]) as captured:
        _fill(captured, rows, singly=singly)
        found = {}
        for store in stores:
            with SinkJob(captured.config(), store, log_level="info") as job:
                found[store] = _filled(job, captured, store, rows)
        return found


def _fill(captured: Captured, rows: int, *, singly: bool) -> None:
    if singly:
        captured.query("DROP PROCEDURE IF EXISTS fill_singly")
        captured.query(SINGLES)
        captured.query("CALL fill_singly(1, %s)", rows)
    else:
        for start in range(1, rows + 1, 1000):
            captured.query(sql.SQL(FILL).format(sql.Identifier("orders")), start, min(start + 999, rows))
    captured.await_caught_up(600.0)


def scaling(bench: Bench, rows: int) -> dict[str, int]:
    """Returns rows per second into a null sink, by the number of executor threads."""
    with bench.captured(["orders"]) as captured:
        _fill(captured, rows, singly=False)
        return rates(captured.config())


def many_tables(bench: Bench, count: int) -> dict[str, float]:
    """Seconds until ten changes in each of so many tables are in the warehouse."""
    tables = [f"t{number}" for number in range(count)]
    with bench.captured(tables) as captured, SinkJob(captured.config(), "warehouse", log_level="info") as job:
        job.wait_said("sink starts", START_S_MAX)
        return rounds(captured, tables)


def _filled(job: SinkJob, captured: Captured, store: str, rows: int) -> dict[str, Any]:
    job.wait_said("sink starts", START_S_MAX)
    wanted = captured.progress()
    first: list[SinkRecord] = []
    last: list[SinkRecord] = []
    positions = Positions(captured.bootstrap_servers, Topics(captured.name).progress)
    peak = 0

    def is_applied() -> bool:
        nonlocal peak
        assert job.process.poll() is None, job.said()
        peak = max(peak, memory_mb(job.process.pid))
        record = positions.newest(store)
        if record is None:
            return False
        if not first and record.written:
            first.append(record)
        last[:] = [record]
        return record.applied_lsn >= wanted and record.written >= rows

    begun = time.time()
    cpu, before = cpu_s(job.process.pid), cpu_by_program()
    with closing(positions):
        eventually(is_applied, BACKLOG_S_MAX, lambda: f"{store} has everything; {last}\n{job.said()[-3000:]}")
    assert not positions.complaints, positions.complaints
    # As for the plain clients, the start is not counted: that of Spark's query and of the first task.
    counted = rows - first[0].written
    took_s = (last[0].applied_ts_us - first[0].applied_ts_us) / 1e6
    assert counted > 0 and took_s > 0, "the backlog is too small: its first applied position covers all of it"
    return {
        "rows_per_s": round(counted / took_s),
        "start_s": round(first[0].applied_ts_us / 1e6 - begun, 1),
        "cpu_s_per_million": round((cpu_s(job.process.pid) - cpu) / rows * 1e6, 1),
        "cores": cores(before, time.time() - begun),
        "peak_mb": peak,
    }


def limits(bench: Bench, stores: Sequence[str]) -> dict[str, float]:
    """Returns the rows per second of plain clients, the better of one and of two clients."""
    writers: dict[str, tuple[Callable[[str, Sequence[int]], None], str, tuple[int, ...]]] = {
        "cache": (write_redis, bench.endpoints.redis_url, (1, 2)),
        "search": (write_opensearch, bench.endpoints.opensearch_url, (1, 2)),
        "warehouse": (write_iceberg, str(bench.folder), (1,)),
        "sql": (write_postgresql, bench.database(DATABASE), (1, 2)),
    }
    found = {}
    for store in stores:
        write, address, counts = writers[store]
        found[store] = max(rows_per_second(write, address, LIMIT_ROWS, count) for count in counts)
    return found


# ---- freshness


def freshness(
    bench: Bench, stores: Sequence[str], tables: Sequence[str], rate: float, seconds: float
) -> dict[str, Any]:
    """Returns the times from commit to readable, in seconds, while `stores` run in one application."""
    with bench.captured(tables) as captured:
        for table in tables:
            captured.query(sql.SQL(FILL).format(sql.Identifier(table)), 1, FRESH_ROWS)
        captured.await_caught_up()
        with SinkJob(captured.config(), *stores, log_level="debug") as job:
            job.wait_applied(captured.progress(), *stores, deadline_s=START_S_MAX)
            return _sampled(bench, captured, stores, tables, rate, seconds)


def _sampled(
    bench: Bench,
    captured: Captured,
    stores: Sequence[str],
    tables: Sequence[str],
    rate: float,
    seconds: float,
) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    writer = context.Process(
        target=write_changes, args=(captured.dsn, list(tables), FRESH_ROWS, rate, stop, results), daemon=True
    )
    writer.start()
    ready = context.Barrier(1 + SAMPLERS * len({"cache", "search"}.intersection(stores)))
    urls = {"cache": bench.endpoints.redis_url, "search": bench.endpoints.opensearch_url}
    samplers = [
        context.Process(
            target=sample,
            args=(
                captured.dsn,
                SampledRow(store, urls[store], captured.name, tables[0], number + 1),
                ready,
                stop,
                results,
            ),
            daemon=True,
        )
        for position, store in enumerate(store for store in stores if store in urls)
        for number in range(position * SAMPLERS, (position + 1) * SAMPLERS)
    ]
    for process in samplers:
        process.start()
    time.sleep(bench.warm_s)  # of the load; nothing is measured yet
    ready.wait(60)
    before, begun = cpu_by_program(), time.monotonic()
    applied = _applied_lags(captured, stores, seconds)
    used = cores(before, time.monotonic() - begun)
    stop.set()
    measured = dict(results.get(timeout=90) for _ in (writer, *samplers))
    found: dict[str, Any] = {"rate": round(measured.pop("writer")), "cores": used}
    for store in stores:
        samples = sorted(s for name, (took, _) in measured.items() if name.startswith(store) for s in took)
        lost = sum(count for name, (_, count) in measured.items() if name.startswith(store))
        spread = {"applied": sorted(applied[store])} | ({"readable": samples} if store in urls else {})
        found[store] = {
            f"{name}_{message}_ms": round(percentile(values, share) * 1000)
            for name, values in spread.items()
            for message, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        } | {"samples": len(samples), "lost": lost, "applied_p50_ms_by_third": _thirds(applied[store])}
    return found


def _thirds(lags: Sequence[float]) -> list[int]:
    """Returns the medians, in milliseconds, of a run's beginning, middle and end: whether the lag grows."""
    size = max(1, len(lags) // 3)
    return [round(statistics.median(lags[at : at + size]) * 1000) for at in (0, size, 2 * size) if lags[at : at + size]]


def _applied_lags(captured: Captured, stores: Sequence[str], seconds: float) -> dict[str, list[float]]:
    """Returns the times, in seconds, from a commit until each store's applied position covers it. Commits are sampled
    one after the other.
    """
    positions = Positions(captured.bootstrap_servers, Topics(captured.name).progress)
    lags: dict[str, list[float]] = {store: [] for store in stores}
    waiting: dict[str, list[tuple[int, float]]] = {store: [] for store in stores}
    end = time.monotonic() + seconds
    with closing(positions):
        while time.monotonic() < end:
            lsn, now = captured.log_end(), time.monotonic()
            for store in stores:
                waiting[store].append((lsn, now))
                applied = positions.applied(store)
                lags[store] += [time.monotonic() - at for wanted, at in waiting[store] if wanted <= applied]
                waiting[store] = [entry for entry in waiting[store] if entry[0] > applied]
    assert not positions.complaints, positions.complaints
    for store in stores:  # commits that are not applied at the end count with their age
        lags[store] += [time.monotonic() - at for _, at in waiting[store]]
    return lags


# ---- the job


def killed(bench: Bench, stores: Sequence[str], kills: int) -> dict[str, Any]:
    """Returns how long stores are behind after the job was killed, under load, without a second job and with one."""
    urls = {"cache": bench.endpoints.redis_url, "search": bench.endpoints.opensearch_url}
    with bench.captured(TABLES) as captured:
        for table in TABLES:
            captured.query(sql.SQL(FILL).format(sql.Identifier(table)), 1, FRESH_ROWS)
        captured.await_caught_up()
        with _written(captured, list(TABLES), 300):
            rows = [
                SampledRow(store, urls[store], captured.name, TABLES[0], number)
                for number, store in enumerate(stores, 1)
                if store in urls
            ]
            return {
                name: restarts(captured, stores, rows, kills, has_standby=has_standby)
                for name, has_standby in (("alone", False), ("standby", True))
            }


def nothing_to_do(bench: Bench, count: int) -> dict[str, Any]:
    """Returns what a cache's job costs whose tables do not change."""
    tables = [f"t{number}" for number in range(count)]
    with bench.captured(tables) as captured:
        for table in tables:
            captured.query(sql.SQL(FILL).format(sql.Identifier(table)), 1, 10)
        captured.await_caught_up()
        with SinkJob(captured.config(), "cache", log_level="info") as job:
            job.wait_applied(captured.progress(), "cache", deadline_s=START_S_MAX)
            row = SampledRow("cache", bench.endpoints.redis_url, captured.name, tables[0], 1)
            return idle(captured, job, tables, row)


@contextmanager
def _written(captured: Captured, tables: list[str], rate: float) -> Iterator[None]:
    """Changes rows at this rate within this context."""
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    writer = context.Process(
        target=write_changes, args=(captured.dsn, tables, FRESH_ROWS, rate, stop, results), daemon=True
    )
    writer.start()
    try:
        yield
    finally:
        stop.set()
        results.get(timeout=90)


# ---- all


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    stores = [arguments.only] if arguments.only else list(STORES)
    found: dict[str, Any] = {store: {} for store in stores}
    with tempfile.TemporaryDirectory(prefix="watershed-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may run under another account than ours
        with Stack(folder / "stack", given={}) as stack:
            bench = Bench(
                folder, stack.start("postgres", "kafka", "opensearch", "redis"), console, warm_s=arguments.warm
            )
            superuser = make_conninfo(bench.endpoints.superuser_dsn, dbname=DATABASE)
            found["machine"] = {"pg_recvlogical_rows_per_s": narrow_rows_per_second(superuser)}
            console.print(found["machine"], highlight=False)
            if "backlog" in arguments.parts:
                before = limits(bench, stores)
                console.print("plain clients", before, highlight=False)
                for kind, singly in (("", False), ("_singly", True)):
                    for store, run in backlog(bench, stores, arguments.rows, singly=singly).items():
                        found[store] |= {f"{key}{kind}": value for key, value in run.items()}
                        console.print(store, kind, run, highlight=False)
                after = limits(bench, stores)
                for store in stores:
                    found[store]["limit_rows_per_s"] = round(statistics.mean((before[store], after[store])))
            if "scaling" in arguments.parts:
                found["null"] = scaling(bench, arguments.rows)
                console.print(found["null"], highlight=False)
            if "tables" in arguments.parts and "warehouse" in stores:
                found["warehouse"]["tables"] = many_tables(bench, arguments.tables)
                console.print(found["warehouse"]["tables"], highlight=False)
            if "freshness" in arguments.parts:
                for store in stores:
                    for rate in arguments.rates:
                        run = freshness(bench, [store], TABLES[:1], rate, arguments.seconds)
                        console.print(store, run, highlight=False)
                        found[store][f"alone_{rate}"] = run
            if "together" in arguments.parts and not arguments.only:
                for rate in arguments.rates:
                    run = freshness(bench, TOGETHER, TABLES, rate, arguments.seconds)
                    console.print(f"together at {rate}", run, highlight=False)
                    found[f"together_{rate}"] = run
            if "restarts" in arguments.parts:
                found["restarts"] = killed(bench, [store for store in stores if store in TOGETHER], arguments.kills)
                console.print("restarts", found["restarts"], highlight=False)
            if "idle" in arguments.parts and "cache" in stores:
                found["idle"] = nothing_to_do(bench, arguments.tables)
                console.print("idle", found["idle"], highlight=False)
    return found


def show(found: dict[str, Any], console: Console) -> None:
    table = Table("store", "what", "value")
    for store, values in found.items():
        for name, value in values.items():
            table.add_row(store, name, json.dumps(value))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="of a backlog")
    parser.add_argument("--seconds", type=float, default=40.0, help="that freshness is measured for")
    parser.add_argument("--rates", type=int, nargs="+", default=[300, 1000], help="changes a second")
    parser.add_argument("--only", choices=STORES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    parser.add_argument(
        "--tables", type=int, default=200, help="that the warehouse takes ten changes each of, and an idle job has"
    )
    parser.add_argument("--kills", type=int, default=20, help="of the job")
    parser.add_argument("--warm", type=float, default=WARM_S, help="seconds under load before freshness is measured")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    found = measure(arguments, console)
    show(found, console)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
