"""The course of the demo: a shop, its three derived stores and a consumer of its events, a workload, kill -9 in the
middle, and the comparison.
"""

import select
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]
import psycopg
import redis
from opensearchpy.exceptions import OpenSearchException
from rich.console import Console, RenderableType

from cdc.config.config_file import load_config
from cdc.model.errors import WatershedError
from cdc.model.lsn import Lsn, format_lsn, parse_lsn
from watershed.client.outbox_migrations import Names, migrate
from watershed.client.source_reader import PostgresSourceReader
from watershed.demo import naive
from watershed.demo.books import Books
from watershed.demo.charts import Kill, LagChart, duration, kill_schedule
from watershed.demo.followed import FollowedOrder, creation
from watershed.demo.keeping import Keeping, console_line
from watershed.demo.place import BASE_DATABASE, demo_folder, write_config
from watershed.demo.programs import Programs
from watershed.demo.rows import Stock
from watershed.demo.screen import (
    DemoScreen,
    StoreFigures,
    flow_lines,
    print_balance,
    print_drift,
    print_figures,
    print_results,
    render_lags,
    render_lines,
    render_places,
    snapshot_lines,
)
from watershed.demo.stores import STORES
from watershed.demo.view_watch import ViewWatch
from watershed.demo.workload import Workload, create_shop, execute, flushed_lsn, run_statements
from watershed.devstack.stack import Stack
from watershed.status.children import CDC
from watershed.status.fill_progress import Rate
from watershed.status.model import Status
from watershed.status.monitor import Monitor
from watershed.status.screen import sinks_table
from watershed.status.topic_facts import KafkaTopicReader
from watershed.verify.model import TableResult
from watershed.verify.pipeline_reader import PipelineReader
from watershed.verify.verifier import Selection, Verifier

TICK_S: Final = 0.25
START_S_MAX: Final = 300.0  # for Spark's start, several times what a busy machine of two cores takes
ROWS_PER_S_MIN: Final = 500.0  # the least rate at which the slowest store applies rows, once it runs
RECENT_S: Final = 30.0  # of the freshness on the screen
SEED: Final = 20260101
NEW_SEARCH: Final = "INSERT INTO saved_searches VALUES (3, 'expensive and new', 'new', 497.50)"
NARROWED_SEARCH: Final = "UPDATE saved_searches SET total_from = 499.00 WHERE id = 1"
CAPTURE, SINKS, VIEWS, NAIVE, BOOTSTRAP = "capture", "sinks", "views", "naive", "bootstrap"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    seconds: float
    rows: int
    rate: float  # committed row changes a second
    chaos: bool
    hold_s: float  # pause before the comparison
    folder: Path
    keep: bool  # after the comparison, until Enter or Ctrl-C
    bootstrap: str  # a store that does not exist before, and is filled beside the workload; empty: none
    views: bool  # three views beside the shop


def run_demo(options: DemoOptions, console: Console) -> int:
    """Returns 0 if every row and column of every store, and the totals from events, equal PostgreSQL's, otherwise 1.
    All processes are ended in any case. Raises WatershedError if the comparison was not reached.
    """
    if options.bootstrap and options.bootstrap not in STORES:
        raise WatershedError(f"there is no store {options.bootstrap!r}", f"the stores are {', '.join(STORES)}")
    with demo_folder(options.folder) as folder, ExitStack() as at_end:
        screen = at_end.enter_context(closing(DemoScreen(console)))
        screen.say("starting PostgreSQL, Kafka, OpenSearch and Redis")
        # The demo starts its own servers even if the environment names others, since it fills and empties them.
        servers = at_end.enter_context(Stack(folder / "servers", temporary=True, progress=console, given={}))
        at_end.callback(_keep_logs, servers, folder / "logs")
        servers.start()
        screen.say("servers are ready; starting the sinks")
        try:
            return _Demo(options, folder, screen, servers, at_end).run()
        except (psycopg.Error, redis.RedisError, OpenSearchException) as error:
            what = " ".join(str(error).split())
            raise WatershedError(f"a server of the demo failed: {what}", f"see its log in {folder / 'logs'}") from error


class _Demo:
    """One run, after the servers have started. Times are monotonic seconds."""

    _books: Books  # from _open_shop() on

    def __init__(
        self, options: DemoOptions, folder: Path, screen: DemoScreen, servers: Stack, at_end: ExitStack
    ) -> None:
        self._options = options
        self._screen = screen
        self._programs = at_end.enter_context(closing(Programs(folder, folder / "logs")))
        self._at_end = at_end
        self._servers = servers
        self._endpoints = servers.endpoints
        dsn = self._dsn = self._endpoints.dsn
        self._config_file = write_config(folder, self._endpoints, has_views=options.views)
        config = self._config = load_config(self._config_file)
        self._stock = Stock(SEED, options.rows)
        self._workload = Workload(dsn, self._stock, rate=options.rate)
        at_end.callback(self._workload.halt)
        monitor = Monitor(config, PostgresSourceReader(config.source), KafkaTopicReader(config))
        self._monitor = at_end.enter_context(closing(monitor))
        self._followed = FollowedOrder(config, self._endpoints)
        at_end.callback(self._followed.stop)
        self._views: ViewWatch | None = None  # not kept yet
        self._log = folder / "logs" / f"{BOOTSTRAP}.log"
        self._early = tuple(sink for sink in config.sinks if sink != options.bootstrap)
        self._load_s_max = START_S_MAX + options.rows / ROWS_PER_S_MIN
        self._catch_up_s_max = START_S_MAX + options.seconds * options.rate / ROWS_PER_S_MIN
        self._committed, self._captured = Rate(), Rate()
        self._chart = LagChart()
        self._started = float("inf")  # of the workload
        self._filled_at: float | None = None  # of the store that did not exist before
        self._warehouse_at: str | None = None  # the position at which the order was read there last

    def run(self) -> int:
        self._open_shop()
        first_row_s, loaded_s = self._load_existing_rows()
        captured = self._monitor.status().capture.seq or 0
        self._change_and_kill()
        seconds = time.monotonic() - self._started
        self._programs.stop(NAIVE)
        last_lsn = self._workload.stop()
        captured = (self._monitor.status().capture.seq or 0) - captured
        self._screen.say(f"workload stopped at {format_lsn(last_lsn)}, {self._workload.rows:,} row changes committed")
        phase, sinks = "catching up", tuple(self._config.sinks)
        caught_up_s = self._applied(phase, last_lsn, self._catch_up_s_max, sinks, time.monotonic())
        self._await_views(phase)
        self._followed.read_warehouse()
        pids = self._programs.pids() | {one.service: one.pid for one in self._servers.status() if one.pid}
        if self._filled_at is not None:
            loaded_s[self._options.bootstrap] = self._filled_at - self._started
        figures = {
            "committed": f"{self._workload.rows:,} row changes",
            "captured": f"{captured:,} records, {captured / seconds:,.0f}/s over {seconds:.0f} s",
            "first synced row": f"{first_row_s:.1f} s after the start",
            "memory, MiB": ", ".join(f"{name} {tree_mib(pid):,}" for name, pid in pids.items()),
        }
        spread = self._followed.freshness.spread
        stores = [StoreFigures(one, spread(one), loaded_s.get(one), caught_up_s.get(one)) for one in STORES]
        self._hold()
        return self._judge(figures, stores)

    def _judge(self, figures: Mapping[str, str], stores: Sequence[StoreFigures]) -> int:
        """Compares everything, and prints the result. Returns the exit code."""
        results = self._compare()
        ledger, sql = self._books.ledger, self._books.balance()
        results += self._views.compared() if self._views else []
        self._screen.close()
        console = self._screen.console
        print_results(console, results)
        print_balance(console, ledger, sql)
        print_drift(console, naive.drift(self._config, self._dsn, self._endpoints.redis_url))
        print_figures(console, self._chart, figures, stores)
        if self._views:
            self._screen.say(str(self._views.alerts))
        problems = ledger.problems(sql)
        differ = f"the books differ from PostgreSQL: {'; '.join(problems)}" if problems else ""
        by_events = differ or "the books, kept from events alone, are equal to PostgreSQL"
        verdicts = (verdict(results), (by_events, not problems))
        for text, is_good in verdicts:
            self._screen.say(text, style="bold green" if is_good else "bold red")
        if self._options.keep:
            keeping = Keeping(self._config, self._config_file, self._endpoints, console)
            keeping.show()
            keeping.wait(_enter_was_pressed, self._programs.check)
        return 0 if all(is_good for _, is_good in verdicts) else 1

    # ---- acts

    def _cdc(self, name: str, *words: str) -> None:
        self._programs.start(name, [*CDC, *words, "--config", str(self._config_file)])

    def _open_shop(self) -> None:
        """Starts everything, and loads the shop's rows. The sinks wait for capture's tables; Spark starts meanwhile."""
        began = time.monotonic()
        if self._options.views:
            execute(self._dsn, f"CREATE DATABASE {BASE_DATABASE}")
        self._cdc(SINKS, "sink", "run", *self._early)
        create_shop(self._dsn, self._stock)
        with psycopg.connect(self._dsn) as connection:
            run_statements(connection, creation())
        naive.create(self._dsn, self._endpoints.redis_url)
        if self._options.views:
            execute(self._dsn, Path(__file__).with_name("saved_searches.sql").read_text(encoding="utf-8"))
        migrate(self._config.source, Names())
        took = duration(time.monotonic() - began)
        self._screen.say(f"the shop has its rows after {took}; starting capture; {console_line(self._config)}")
        self._books = self._at_end.enter_context(closing(Books(self._config.kafka, self._dsn)))
        self._cdc(CAPTURE, "run")
        self._monitor.start()

    def _load_existing_rows(self) -> tuple[float, dict[str, float]]:
        """Waits for the existing rows. Returns the seconds from the demo's start to the first row in a store, and for
        each store the seconds from capture's start until it had all rows.
        """
        began, phase = time.monotonic(), "loading existing rows"

        def first() -> list[str]:
            return [sink.sink for sink in self._monitor.status().sinks if sink.written]

        self._wait("waiting for the first row", first, self._load_s_max)
        first_row_s = self._screen.elapsed_s()
        self._screen.say(f"first synced row {first_row_s:.1f} s after the start, in {first()[0]}", style="bold")
        self._wait(phase, self._are_published, self._load_s_max)
        # Existing rows are published beside the stream, so an earlier confirmed position does not include them.
        lsn = flushed_lsn(self._dsn)
        if self._options.views:  # which wait for their base themselves
            self._cdc(VIEWS, "view", "run")
            self._views = self._at_end.enter_context(closing(ViewWatch(self._config, self._endpoints.opensearch_url)))
        loaded_s = self._applied(phase, lsn, self._load_s_max, self._early, began)
        self._await_views("filling the views")
        return first_row_s, loaded_s

    def _are_published(self) -> bool:
        """Returns whether the first snapshot of each table is done. The outbox has none."""
        tables = self._monitor.status().tables
        done = {table.table for table in tables if table.snapshot is not None and table.snapshot.status == "done"}
        return done.issuperset(map(str, self._config.source.stored_table_ids))

    def _change_and_kill(self) -> None:
        """Runs the workload, and fills the new store beside it."""
        options = self._options
        killed = (CAPTURE, SINKS, *((VIEWS,) if self._views else ()))
        kills = kill_schedule(killed, options.seconds) if options.chaos else []
        searches = [(1 / 4, NEW_SEARCH), (2 / 5, NARROWED_SEARCH)] if self._views else []  # share of the run
        self._screen.say(f"workload: {options.rate:g} row changes a second for {options.seconds:g} s")
        self._started = time.monotonic()
        self._workload.start()
        self._followed.start()
        self._programs.start(NAIVE, [sys.executable, "-m", naive.__name__, self._dsn, self._endpoints.redis_url])
        if options.bootstrap:  # as a user would fill it, from fresh rows of the source, while they change
            words = ["snapshot", "start", "--sink", options.bootstrap, "--fresh", "--keep-running"]
            self._screen.say(f"{options.bootstrap} does not exist yet: cdc {' '.join(words)}", style="bold")
            self._cdc(BOOTSTRAP, *words, "--json")

        def is_over() -> bool:
            elapsed = time.monotonic() - self._started
            self._followed.change_when_due()
            while kills and kills[0].at_s <= elapsed:
                self._kill(kills.pop(0).process)
            while searches and searches[0][0] <= elapsed / options.seconds:
                execute(self._dsn, searches[0][1])
                self._screen.say(f"a saved search changes: {searches.pop(0)[1]}", style="bold")
            if options.bootstrap and self._filled_at is None and self._is_filled():
                self._filled_at = time.monotonic()
                self._screen.say(f"{options.bootstrap} is filled after {duration(elapsed)}", style="bold")
            is_filled = self._filled_at is not None or not options.bootstrap
            return elapsed >= options.seconds and not kills and is_filled

        limit_s = options.seconds + self._catch_up_s_max + (self._load_s_max if options.bootstrap else 0.0)
        self._wait("workload", is_over, limit_s, options.seconds)

    def _is_filled(self) -> bool:
        """Returns whether the command that fills the store says so."""
        lines = self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []
        return any('"what": "sink"' in line and '"status": "done"' in line for line in lines)

    def _kill(self, process: str) -> None:
        self._chart.kill(Kill(time.monotonic() - self._started, process))
        killed, pid = self._programs.kill(process), self._programs.restart(process)
        jobs = f" ({', '.join(STORES)} jobs)" if process == SINKS else ""
        self._screen.say(f"kill -9 {process}{jobs}, process {killed}; started again as {pid}", style="bold yellow")
        if process == CAPTURE:
            self._programs.kill(NAIVE)
            self._programs.restart(NAIVE)
            self._screen.say("the application that writes its database and its cache is killed and started, too")
            self._books.start_over()
            self._screen.say("the consumer of events reads their topic again, from its beginning", style="bold yellow")

    def _hold(self) -> None:
        """Waits while the user changes a value in a store by hand."""
        hold_s = self._options.hold_s
        if hold_s:
            self._screen.say(f"holding {hold_s:g} s: change a value in a store now, and the demo will report it")
            self._screen.say(f"the stores' addresses are in {self._config_file}; press Enter to go on")
            until = time.monotonic() + hold_s
            self._wait("holding", lambda: time.monotonic() >= until or _enter_was_pressed(), hold_s + 60, hold_s)

    def _compare(self) -> list[TableResult]:
        """Compares every row and column of each store, as `cdc verify` does. Returns the results by store."""
        self._screen.say("comparing every row and column")
        began = time.monotonic()

        def show(sink: str, table: object, step: str, *_: int) -> None:
            self._screen.show(f"{step} {table}{f' in {sink}' if sink else ''}", time.monotonic() - began)

        wanted = Selection(source_share=1.0, is_strict=True)
        with (
            PipelineReader(self._config, self._catch_up_s_max) as pipeline,
            Verifier(self._config, wanted, pipeline, show) as verifier,
        ):
            results = list(verifier.run())
        return sorted(results, key=lambda one: list(self._config.sinks).index(one.sink))

    # ---- waiting

    def _await_views(self, phase: str) -> None:
        """Waits until the views have everything that their base has."""
        if self._views:
            self._wait(phase, self._views.are_current, self._catch_up_s_max)

    def _applied(self, phase: str, lsn: Lsn, limit_s: float, sinks: Sequence[str], began: float) -> dict[str, float]:
        """Waits until each of these sinks has applied `lsn`. Returns the seconds that each took since `began`."""
        took: dict[str, float] = {}

        def all_have_it() -> bool:
            for sink in self._monitor.status().sinks:
                if sink.sink in sinks and sink.sink not in took and parse_lsn(sink.applied_lsn) >= lsn:
                    after_s = took[sink.sink] = time.monotonic() - began
                    self._screen.say(f"{sink.sink} has everything up to {format_lsn(lsn)} after {duration(after_s)}")
            return len(took) == len(sinks)

        self._wait(phase, all_have_it, limit_s)
        return took

    def _wait(self, phase: str, done: Callable[[], object], limit_s: float, total_s: float | None = None) -> None:
        """Updates the screen and checks all processes until `done`. Raises WatershedError after `limit_s`, or when a
        process has ended by itself.
        """
        began = time.monotonic()
        while not done():
            elapsed = time.monotonic() - began
            self._programs.check()
            self._workload.check()
            self._followed.check()
            if elapsed > limit_s:
                logs = "\n".join(self._programs.see_log(name) for name in self._programs.pids())
                raise WatershedError(f"{phase}: not done after {limit_s:.0f} s", f"cdc status; {logs}")
            self._screen.show(phase, elapsed, total_s, *self._look())
            time.sleep(TICK_S)

    def _look(self) -> list[RenderableType]:
        """Reads what has changed. Returns the parts of the screen."""
        now, status, freshness = time.monotonic(), self._monitor.status(), self._followed.freshness
        self._committed.observe(now, self._workload.rows)
        self._captured.observe(now, status.capture.seq or 0)
        self._observe(status, now)
        rates = self._committed.per_s(now), self._captured.per_s(now)
        recent = {store: freshness.spread(store, now - RECENT_S) for store in STORES}
        lines = flow_lines(status, self._workload.rows, *rates, recent)
        self._books.read()
        lines += [("consumed", str(self._books.ledger)), *snapshot_lines(status)]
        if self._views:
            self._views.read()
            lines += self._views.lines
        parts = [sinks_table(status), render_lines(lines)]
        parts += [render_places(self._followed.places)] if self._followed.places["row"] else []
        parts += [render_lags(self._chart)] if self._chart.lines() else []
        return parts

    def _observe(self, status: Status, now: float) -> None:
        for sink in status.sinks:
            if now >= self._started and sink.lag_seconds is not None:
                self._chart.observe(now - self._started, sink.sink, sink.lag_seconds)
            if sink.sink == "warehouse" and sink.applied_lsn != self._warehouse_at:
                self._warehouse_at = sink.applied_lsn
                self._followed.read_warehouse()


def verdict(results: Sequence[TableResult]) -> tuple[str, bool]:
    """Returns the result of the comparison as a sentence, and whether every row was compared and is equal."""
    differing = sum(one.drift for one in results)
    missed = [f"{one.table} in {one.sink}" for one in results if one.why_not or one.undecided]
    text = f"{differing:,} rows differ" if differing else "0 differences"
    text += f" in {', '.join(dict.fromkeys(one.sink for one in results))}"
    text += f"; not compared, or not every row: {', '.join(missed)}" if missed else ""
    return text, not (differing or missed)


def tree_mib(pid: int) -> int:
    """Returns the resident memory of a process and all its descendants; 0 if it has ended. Shared pages are counted for
    each process.
    """
    total = 0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total // 2**20


def _enter_was_pressed() -> bool:
    """Returns whether standard input, a terminal or a pipe, has a line; its end is no line."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        return bool(ready and sys.stdin.readline())
    except (OSError, ValueError):  # closed, or of a kind that select() does not support
        return False


def _keep_logs(servers: Stack, logs: Path) -> None:
    for status in servers.status():
        if status.log and status.log.exists():
            shutil.copy(status.log, logs / f"{status.service}.log")
