"""A pipeline that exists only as its status, for the console: with a past, and with many tables."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cdc.config.config_file import Config
from cdc.config.http_settings import HttpConfig
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.rejected_rows import RejectedRow
from tests.support.http_audit import RecordedAudit
from tests.support.http_server import HttpServer, running
from tests.support.pipeline_records import position
from tests.support.status_facts import applied, source_end
from watershed.client.applied import Positions
from watershed.client.dead_letters import DeadLetter
from watershed.http.dead_letters import DeadLetterReader
from watershed.http.operations import Operations
from watershed.http.routes import CAPTURE, Routed, application
from watershed.http.server import http_server
from watershed.http.signals import signal_operations
from watershed.http.waits import Waits
from watershed.status.model import (
    BrokerStatus,
    CaptureStatus,
    Problem,
    SinkStatus,
    SlotStatus,
    SnapshotStatus,
    SourceStatus,
    Status,
    TableStatus,
    ViewStatus,
    WalBudget,
)
from watershed.status.trend import INTERVAL_S, Trend

GIB = 1 << 30
STORES = ("search", "cache", "warehouse", "sql")
EVIL = '<script>window.stolen = "yes"</script><img src=x onerror="window.stolen=1">'
SETTINGS = Config.model_validate(
    {
        "source": {"dsn": "postgresql://nobody@localhost/none", "tables": ["public.orders", "public.customers"]},
        "kafka": {"bootstrap_servers": "localhost:1"},
        "topics": {"prefix": "shop"},
        "masking": {"asterisks": {"public.customers.email": 5}},
        "sinks": {
            "search": {"url": "http://localhost:1"},
            "cache": {"url": "redis://localhost:1"},
            "warehouse": {"catalog_uri": "jdbc:sqlite:x", "location": "y"},
            "sql": {"url": "sqlite:///z"},
        },
    }
)


def wave(at_s: float, period_s: float, phase: float = 0.0) -> float:
    """Between 0 and 1, and the same at each run."""
    parts = ((0.5, 1.0), (0.3, 2.3), (0.2, 5.1))
    return (
        0.5 + sum(share * math.sin(2 * math.pi * times * at_s / period_s + phase * times) for share, times in parts) / 2
    )


@dataclass
class ShownPipeline:
    """`end_s`: the time of the status, seconds since 1970."""

    end_s: float = field(default_factory=time.time)
    tables: tuple[TableStatus, ...] = ()
    sinks: tuple[str, ...] = STORES
    views: tuple[ViewStatus, ...] = ()
    problems: tuple[Problem, ...] = ()
    letters: Sequence[DeadLetter] = ()
    state: str = "streaming"
    now: Status | None = None  # instead of the one that is made
    trend: Trend = field(default_factory=Trend)

    def live(self, seconds: float = 900.0) -> "ShownPipeline":
        """Gives it a past of so many seconds."""
        for step in range(int(seconds / INTERVAL_S), -1, -1):
            self.trend.observe(self.at(self.end_s - step * INTERVAL_S))
        return self

    def status(self) -> Status:
        return self.now or self.at(time.time())

    def at(self, unix_s: float) -> Status:
        passed = unix_s - self.end_s + 3600
        published = int(passed * 1240 + 70_000 * wave(passed, 900))
        retained = int(GIB * (0.11 + 0.16 * wave(passed, 1100)))
        lag_s = 0.12 + 0.5 * wave(passed, 420) ** 4
        return Status(
            prefix="shop",
            unix_seconds=unix_s,
            source=SourceStatus(
                is_reachable=True,
                database="shop",
                version="18.1",
                timeline=1,
                lsn=f"3/{int(passed * 400_000):X}",
                slot=SlotStatus(
                    name="watershed",
                    exists=True,
                    is_active=True,
                    wal_status="reserved",
                    restart_lsn="3/51C2A8",
                    confirmed_lsn="3/51D0F0",
                    budget=WalBudget(
                        retained_bytes=retained,
                        limit_bytes=4 * GIB,
                        remaining_bytes=4 * GIB - retained,
                        rate_bytes_per_second=(rate := 2.1e6 + 1.4e6 * wave(passed, 700)),
                        seconds_left=(4 * GIB - retained) / rate,
                    ),
                ),
            ),
            brokers=BrokerStatus(is_reachable=True),
            capture=CaptureStatus(
                state=self.state,
                epoch=None if self.state == "not started" else 1,
                seq=None if self.state == "not started" else published,
                lsn="3/51D0F0",
                lag_bytes=4096,
                lag_seconds=None if self.state == "not started" else lag_s,
                silent_seconds=0.1,
                last_commit_unix_seconds=unix_s - 0.2,
                lost_events=0,
            ),
            tables=self.tables,
            sinks=tuple(self._sink(name, number, passed) for number, name in enumerate(self.sinks)),
            views=self.views,
            problems=self.problems,
        )

    def _sink(self, name: str, number: int, passed: float) -> SinkStatus:
        slowness = 6.0 if name == "warehouse" else 1.0
        lag_s = slowness * (0.35 + 0.15 * number + 0.6 * wave(passed, 600, number) ** 3)
        rejected = sum(letter.sink == name for letter in self.letters)
        errors = [problem for problem in self.problems if problem.part == "sink" and problem.name == name]
        return SinkStatus(
            sink=name,
            type=name if name in STORES else "",
            generation=1,
            epoch=1,
            applied_lsn=f"3/{int(passed * 399_000):X}",
            lag_bytes=8192,
            lag_records=0 if number % 2 else int(40 * slowness),
            is_catching_up=number % 2 == 0,
            lag_seconds=lag_s,
            unread_seconds=0.1,
            freshness_seconds=lag_s * 0.8,
            silent_seconds=0.3,
            waiting_seconds=0.0,
            written=int(passed * (1180 - 150 * number) + 60_000 * wave(passed, 900, number / 5)),
            stale=42 * number,
            dead_letters=rejected,
            state="",
            error=errors[0].message if errors else "",
            next=errors[0].next if errors else "",
        )


def table(name: str, state: str = "streaming", **fields: object) -> TableStatus:
    wanted: dict[str, object] = {
        "table": name,
        "state": state,
        "message": "",
        "next": "",
        "starts_by_itself": False,
        "dead_letters": 0,
        "skipped": 0,
        "snapshot": snapshot(rows=1_200, rows_total=1_200, status="done"),
    }
    return TableStatus.model_validate(wanted | fields)


def view(name: str, state: str = "serving", **fields: object) -> ViewStatus:
    wanted: dict[str, object] = {
        "view": name,
        "base": "sql",
        "target": "search",
        "state": state,
        "is_kept": True,
        "waiting_changes": 0,
        "oldest_change_seconds": 0.0,
        "waiting_keys": 0,
        "waiting_seconds": 0.0,
        "rejected_rows": 0,
        "silent_seconds": 3.0,
        "failing_seconds": 0.0,
        "error": "",
        "next": "",
    }
    return ViewStatus.model_validate(wanted | fields)


def snapshot(**fields: object) -> SnapshotStatus:
    wanted: dict[str, object] = {
        "status": "running",
        "rows": 4_310_000,
        "rows_total": 9_800_000,
        "rows_per_second": 61_000.0,
        "seconds_left": 90.0,
        "message": "",
    }
    return SnapshotStatus.model_validate(wanted | fields)


def shop_tables() -> tuple[TableStatus, ...]:
    rows = {"customers": 48_112, "order_lines": 1_904_377, "orders": 612_940, "products": 9_450}
    own = [table(f"public.{n}", snapshot=snapshot(status="done", rows=r, rows_total=r)) for n, r in rows.items()]
    return (*own, table("public.page_views", "snapshotting", snapshot=snapshot()))


def many_tables(number: int = 1_000) -> tuple[TableStatus, ...]:
    """In all states, ten to a schema."""
    states = {3: "snapshotting", 50: "stopped", 90: "not captured"}
    found = []
    for n in range(number):
        state = states.get(n % 100, "streaming")
        name = f"tenant_{n // 10:03}.{('orders', 'invoices', 'shipments', 'events', 'users')[n % 5]}_{n % 10}"
        fields: dict[str, object] = {"snapshot": snapshot(rows=n * 1000 + 500)} if state == "snapshotting" else {}
        if state == "stopped":
            fields = {"message": f"an operator stopped it: {name}", "next": f"cdc table start {name}"}
        if state == "not captured":
            fields = {"snapshot": None}
        found.append(table(name, state, **fields))
    return tuple(found)


def letter(sink: str, table_name: str, number: int, reason: str, row: dict[str, object] | None) -> DeadLetter:
    schema, _, name = table_name.partition(".")
    rejected = RejectedRow(
        table_schema=schema,
        table_name=name,
        key={"id": number},
        version=1_000 + number,
        reason=reason,
        topic=f"shop.{table_name}",
        partition=0,
        offset=number,
        rejected_us=round((1.78e9 + number) * 1e6),
        row=row,
    )
    return DeadLetter(sink, f"shop.dead-letter.{sink}", f"1/{table_name}/{number}", rejected)


def _refused(record: SignalRecord) -> SignalAnswer:
    return SignalAnswer(is_accepted=False, message=f"there is no capture for {record.action}")


@contextmanager
def served(
    pipeline: ShownPipeline,
    port: int | None = None,
    http: HttpConfig = SETTINGS.http,
    parts: Sequence[Routed] = (),
) -> Iterator[HttpServer]:
    """The server of the routes and of the console. `parts`: have further routes."""
    waits = Waits(lambda: source_end(10_000), lambda: Positions((applied(500),), position(500)))
    letters = DeadLetterReader(SETTINGS, lambda sinks: [one for one in pipeline.letters if one.sink in sinks])
    operations = Operations(signal_operations(_refused), RecordedAudit().audit)
    app = application(pipeline.status, CAPTURE, waits, pipeline.trend.recent, letters, *parts, operations)
    with running(http_server(app, http), port) as listening:
        yield HttpServer(listening)
