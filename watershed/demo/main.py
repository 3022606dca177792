"""The course of the demo: a shop, its three derived stores and a consumer of its events, a workload, kill -9 in the
middle, and the comparison.
"""

import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import psutil  # type: ignore[import-untyped]
import psycopg
import redis
from confluent_kafka import KafkaException
from opensearchpy.exceptions import OpenSearchException
from rich.console import Console

from cdc.config.config_file import load_config
from cdc.model.errors import WatershedError
from cdc.model.lsn import Lsn, format_lsn, parse_lsn
from watershed.client.outbox_migrations import Names, migrate
from watershed.client.source_reader import PostgresSourceReader
from watershed.demo import naive
from watershed.demo.books import Books
from watershed.demo.charts import Kill, LagChart, Spread, duration, kill_schedule
from watershed.demo.followed import RECENT_S, FollowedOrder
from watershed.demo.keeping import Keeping, console_line
from watershed.demo.place import demo_folder, write_config
from watershed.demo.programs import Programs
from watershed.demo.rows import Stock
from watershed.demo.screen import DemoScreen, Figures, View, print_balance, print_drift, print_figures, print_results
from watershed.demo.shop_views import BASE, NARROWED_SEARCH, NEW_SEARCH, SAVED_SEARCHES, create_base, execute
from watershed.demo.stores import STORES, redis_url
from watershed.demo.workload import Workload, create_shop, flushed_lsn
from watershed.devstack.stack import Stack
from watershed.status.fill_progress import Rate
from watershed.status.model import SinkStatus, Status
from watershed.status.monitor import Monitor
from watershed.status.topic_facts import KafkaTopicReader
from watershed.verify.model import TableResult
from watershed.verify.pipeline_reader import PipelineReader
from watershed.verify.verifier import Selection, Verifier

if TYPE_CHECKING:
    from watershed.demo.view_watch import ViewWatch

TICK_S: Final = 0.25
START_S_MAX: Final = 300.0  # for Spark's start, several times what a busy machine of two cores takes
ROWS_PER_S_MIN: Final = 500.0  # the least rate at which the slowest store applies rows, once it runs
MEMORY_INTERVAL_S: Final = 5.0
SEED: Final = 20260101
CAPTURE, SINKS, VIEWS, NAIVE, BOOTSTRAP = "capture", "sinks", "views", "naive", "bootstrap"


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float = 120.0
    rows: int = 50_000
    rate: float = 300.0  # committed row changes a second
    chaos: bool = True
    hold_s: float = 0.0  # pause before the comparison
    folder: Path = Path(".watershed/demo")
    keep: bool = False  # after the comparison, until Enter or Ctrl-C
    bootstrap: str = ""  # a store that does not exist before, and is filled beside the workload
    views: bool = False  # three views beside the shop


def run_demo(options: Options, console: Console) -> int:
    """Returns 0 if every row and column of every store, and the totals from events, equal PostgreSQL's, otherwise 1.
    All processes are ended in any case. Raises WatershedError if the comparison was not reached.
    """
    if options.bootstrap and options.bootstrap not in STORES:
        raise WatershedError(f"there is no store {options.bootstrap!r}", f"the stores are {', '.join(STORES)}")
    with _sigterm_as_interrupt(), demo_folder(options.folder) as folder, ExitStack() as closing:
        screen = closing.enter_context(DemoScreen(console))
        screen.say("starting PostgreSQL, Kafka, OpenSearch and Redis")
        began = time.monotonic()
        # The demo starts its own servers even if the environment names others, since it fills and empties them.
        servers = closing.enter_context(Stack(folder / "servers", temporary=True, progress=console, given={}))
        closing.callback(_keep_logs, servers, folder / "logs")
        servers.start()
        screen.say(f"servers are ready after {time.monotonic() - began:.1f} s; starting the sinks")
        programs = closing.enter_context(Programs(folder, folder / "logs"))
        try:
            return _Demo(options, folder, screen, servers, programs, closing, began).run()
        except (psycopg.Error, KafkaException, redis.RedisError, OpenSearchException) as error:
            what = " ".join(str(error).split())
            raise WatershedError(f"a server of the demo failed: {what}", f"see its log in {folder / 'logs'}") from error


class _Demo:
    """One run, after the servers have started. Times are monotonic seconds."""

    def __init__(
        self,
        options: Options,
        folder: Path,
        screen: DemoScreen,
        servers: Stack,
        programs: Programs,
        closing: ExitStack,
        began: float,
    ) -> None:
        self._options = options
        self._screen = screen
        self._programs = programs
        self._closing = closing
        self._began = began
        self._servers = servers
        self._dsn = servers.endpoints.dsn
        if options.views:
            create_base(self._dsn)
        self._config_file = write_config(folder, servers.endpoints, has_views=options.views)
        config = self._config = load_config(self._config_file)
        self._naive = (self._dsn, redis_url(config))
        self._stock = Stock(SEED, options.rows)
        self._workload = Workload(self._dsn, self._stock, rate=options.rate)
        closing.callback(self._workload.halt)
        self._monitor = Monitor(config, PostgresSourceReader(config.source), KafkaTopicReader(config))
        closing.callback(self._monitor.close)
        self._followed = FollowedOrder(config, self._dsn)
        closing.callback(self._followed.stop)
        self._books = Books(config.kafka, self._dsn)
        closing.callback(self._books.close)
        self._views: ViewWatch | None = None  # not kept yet
        self._log = folder / "logs" / f"{BOOTSTRAP}.log"
        self._early = tuple(sink for sink in config.sinks if sink != options.bootstrap)
        self._load_s_max = START_S_MAX + options.rows / ROWS_PER_S_MIN
        self._catch_up_s_max = START_S_MAX + options.seconds * options.rate / ROWS_PER_S_MIN
        self._committed, self._captured = Rate(), Rate()
        self._chart = LagChart()
        self._started: float | None = None  # of the workload
        self._warehouse_at: str | None = None  # the position at which the order was read there last
        self._memory_at = float("-inf")
        self._memory: dict[str, int] = {}
        self._memory_max: dict[str, int] = {}

    def run(self) -> int:
        config_file = str(self._config_file)
        # The sinks wait for capture's tables. Spark starts while the shop's rows are loaded.
        self._programs.start(SINKS, "sink", "run", *self._early, "--config", config_file)
        loaded = create_shop(self._dsn, self._stock) + self._followed.create() + naive.create(*self._naive)
        if self._options.views:
            execute(self._dsn, SAVED_SEARCHES)
        migrate(self._config.source, Names())
        self._screen.say(f"the shop has {loaded:,} rows; starting capture; {console_line(self._config)}")
        self._books.open()
        self._programs.start(CAPTURE, "run", "--config", config_file)
        first_row_s, loaded_s = self._load_existing_rows()
        captured = self._monitor.status().capture.seq or 0
        kills_at, filled_at = self._change_and_kill()
        assert self._started is not None
        seconds = time.monotonic() - self._started
        self._followed.rest()
        self._programs.stop(NAIVE)
        last_lsn = self._workload.stop()
        captured = (self._monitor.status().capture.seq or 0) - captured
        self._screen.say(f"workload stopped at {format_lsn(last_lsn)}, {self._workload.rows:,} row changes committed")
        caught_up_s = self._applied("catching up", last_lsn, self._catch_up_s_max, tuple(self._config.sinks))
        self._await_views("catching up")
        self._followed.read_warehouse()
        if filled_at is not None:
            loaded_s[self._options.bootstrap] = filled_at - self._started
        figures = Figures(
            seconds=seconds,
            committed_rows=self._workload.rows,
            transactions=self._workload.transactions,
            captured_rows=captured,
            first_row_s=first_row_s,
            loaded_s=loaded_s,
            caught_up_s=caught_up_s,
            freshness={store: self._freshness(store, kills_at, filled_at) for store in STORES},
            memory_mib=self._memory_max,
        )
        self._hold()
        return self._judge(figures)

    def _judge(self, figures: Figures) -> int:
        """Compares everything, and prints the result. Returns the exit code."""
        results = self._compare()
        balance = self._books.balance()
        results += self._views.compared() if self._views else []
        self._screen.close()
        console = self._screen.console
        print_results(console, results)
        print_balance(console, balance)
        print_drift(console, naive.drift(self._config, self._dsn))
        print_figures(console, figures, self._chart)
        if self._views:
            alerts = self._views.alerts
            self._screen.say(
                f"alerts: {alerts.started:,} started and {alerts.stopped:,} stopped while they were watched"
            )
        text, is_equal = verdict(results)
        self._say_verdict(text, is_equal)
        wrong = f"the books differ from PostgreSQL: {'; '.join(balance.problems)}" if balance.problems else ""
        self._say_verdict(wrong or "the books, kept from events alone, are equal to PostgreSQL", not wrong)
        if self._options.keep:
            keeping = Keeping(self._config, self._config_file, console)
            keeping.show()
            keeping.wait(_enter_was_pressed, self._programs.check)
        return 0 if is_equal and not wrong else 1

    def _say_verdict(self, text: str, is_good: bool) -> None:
        self._screen.say(text, style="bold green" if is_good else "bold red")

    # ---- acts

    def _load_existing_rows(self) -> tuple[float, dict[str, float]]:
        """Waits for the existing rows. Returns the seconds from the demo's start to the first row in a store, and for
        each store the seconds from capture's start until it had all rows.
        """
        self._monitor.start()
        began, phase = time.monotonic(), "loading existing rows"

        def first() -> SinkStatus | None:
            return next((sink for sink in self._monitor.status().sinks if sink.written), None)

        self._wait("waiting for the first row", first, self._load_s_max, lambda: "no store shows a row")
        first_row_s, sink = time.monotonic() - self._began, first()
        self._screen.say(f"first synced row {first_row_s:.1f} s after the start, in {sink and sink.sink}", style="bold")
        self._wait(phase, self._are_published, self._load_s_max, lambda: "not all rows are in the topics")
        # Existing rows are published beside the stream, so an earlier confirmed position does not include them.
        lsn = flushed_lsn(self._dsn)
        base = tuple(sink for sink in self._early if sink == BASE)
        loaded_s = self._applied(phase, lsn, self._load_s_max, base, began)
        if self._options.views:  # which are filled while the stores are
            from watershed.demo.view_watch import ViewWatch  # what parses queries takes half a second to import

            self._programs.start(VIEWS, "view", "run", "--config", str(self._config_file))
            self._views = ViewWatch(self._config)
            self._closing.callback(self._views.close)
        loaded_s |= self._applied(phase, lsn, self._load_s_max, [one for one in self._early if one != BASE], began)
        self._await_views("filling the views")
        return first_row_s, loaded_s

    def _are_published(self) -> bool:
        """Returns whether the first snapshot of each table is done. The outbox has none."""
        tables = self._monitor.status().tables
        done = {table.table for table in tables if table.snapshot is not None and table.snapshot.status == "done"}
        return done.issuperset(map(str, self._config.source.stored_table_ids))

    def _change_and_kill(self) -> tuple[list[float], float | None]:
        """Runs the workload, and fills the new store beside it. Returns when processes were killed, and when the store
        was filled.
        """
        options = self._options
        killed = (CAPTURE, SINKS, *((VIEWS,) if self._views else ()))
        schedule = kill_schedule(killed, options.seconds) if options.chaos else []
        searches = [(1 / 4, NEW_SEARCH), (2 / 5, NARROWED_SEARCH)] if self._views else []  # share of the run
        kills_at: list[float] = []
        filled_at: list[float] = []
        self._screen.say(f"workload: {options.rate:g} row changes a second for {options.seconds:g} s")
        started = self._started = time.monotonic()
        self._workload.start()
        self._followed.start()
        self._programs.start(NAIVE, *self._naive, command=(sys.executable, "-m", naive.__name__))
        if options.bootstrap:
            self._bootstrap()

        def is_over() -> bool:
            elapsed = time.monotonic() - started
            while schedule and schedule[0].at_s <= elapsed:
                kills_at.append(time.monotonic())
                self._kill(schedule.pop(0))
            while searches and searches[0][0] <= elapsed / options.seconds:
                statement = searches.pop(0)[1]
                execute(self._dsn, statement)
                self._screen.say(f"a saved search changes: {statement}", style="bold")
            if options.bootstrap and not filled_at and self._is_filled():
                filled_at.append(time.monotonic())
                self._screen.say(f"{options.bootstrap} is filled after {duration(elapsed)}", style="bold")
            return elapsed >= options.seconds and not schedule and len(filled_at) == bool(options.bootstrap)

        limit_s = options.seconds + self._catch_up_s_max + (self._load_s_max if options.bootstrap else 0.0)
        self._wait("workload", is_over, limit_s, lambda: f"{options.bootstrap} is not filled", options.seconds)
        return kills_at, filled_at[0] if filled_at else None

    def _bootstrap(self) -> None:
        """Starts to fill a store as a user would, from fresh rows of the source, while they change."""
        words = ["snapshot", "start", "--sink", self._options.bootstrap, "--fresh", "--keep-running"]
        self._screen.say(f"{self._options.bootstrap} does not exist yet: cdc {' '.join(words)}", style="bold")
        self._programs.start(BOOTSTRAP, *words, "--json", "--config", str(self._config_file))

    def _is_filled(self) -> bool:
        """Returns whether the command that fills the store says so."""
        lines = self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []
        return any('"what": "sink"' in line and '"status": "done"' in line for line in lines)

    def _kill(self, kill: Kill) -> None:
        assert self._started is not None, "processes are killed while the workload runs"
        self._chart.kill(Kill(time.monotonic() - self._started, kill.process))
        killed = self._programs.kill(kill.process)
        jobs = f" ({', '.join(STORES)} jobs)" if kill.process == SINKS else ""
        pid = self._programs.restart(kill.process)
        self._screen.say(f"kill -9 {kill.process}{jobs}, process {killed}; started again as {pid}", style="bold yellow")
        if kill.process == CAPTURE:
            self._programs.kill(NAIVE)
            self._programs.restart(NAIVE)
            self._screen.say("the application that writes its database and its cache is killed and started, too")
            self._books.start_over()
            self._screen.say("the consumer of events reads their topic again, from its beginning", style="bold yellow")

    def _freshness(self, store: str, kills_at: Sequence[float], filled_at: float | None) -> dict[str, Spread]:
        """Returns part of the run → freshness of the order's changes that were committed in it."""
        spread = self._followed.freshness.spread
        if store == self._options.bootstrap and filled_at is not None:
            return {"since it was filled": spread(store, since=filled_at)}
        if not kills_at:
            return {"whole run": spread(store)}
        first = kills_at[0]
        return {"before the kills": spread(store, until=first), "from the first kill on": spread(store, since=first)}

    def _hold(self) -> None:
        """Waits while the user changes a value in a store by hand."""
        hold_s = self._options.hold_s
        if not hold_s:
            return
        self._screen.say(f"holding {hold_s:g} s: change a value in a store now, and the demo will report it")
        self._screen.say(f"the stores' addresses are in {self._config_file}; press Enter to go on")
        until = time.monotonic() + hold_s
        self._wait("holding", lambda: time.monotonic() >= until or _enter_was_pressed(), hold_s + 60, str, hold_s)

    def _compare(self) -> list[TableResult]:
        """Compares every row and column of each store, as `cdc verify` does. Returns the results by store."""
        self._screen.say("comparing every row and column")
        began = time.monotonic()

        def show(sink: str, table: object, step: str, *_: int) -> None:
            self._screen.show(View(f"{step} {table}{f' in {sink}' if sink else ''}", time.monotonic() - began))

        wanted = Selection(source_share=1.0, is_strict=True)
        with (
            PipelineReader(self._config, self._catch_up_s_max) as world,
            Verifier(self._config, wanted, world, show) as verifier,
        ):
            results = list(verifier.run())
        return sorted(results, key=lambda one: list(self._config.sinks).index(one.sink))

    # ---- waiting

    def _await_views(self, phase: str) -> None:
        """Waits until the views have everything that their base has."""
        if self._views:
            began, missing = time.monotonic(), "the views have not written all changes; see cdc view status"
            self._wait(phase, self._views.are_current, self._catch_up_s_max, lambda: missing)
            self._screen.say(f"the views have everything after {duration(time.monotonic() - began)} more")

    def _applied(
        self, phase: str, lsn: Lsn, limit_s: float, sinks: Sequence[str], began: float | None = None
    ) -> dict[str, float]:
        """Waits until each of these sinks has applied `lsn`. Returns the seconds that each took since `began` (now)."""
        began = time.monotonic() if began is None else began
        took: dict[str, float] = {}

        def positions() -> dict[str, Lsn]:
            return {sink.sink: parse_lsn(sink.applied_lsn) for sink in self._monitor.status().sinks}

        def all_have_it() -> bool:
            at = positions()
            for name in sinks:
                if name not in took and at.get(name, 0) >= lsn:
                    took[name] = time.monotonic() - began
                    self._screen.say(f"{name} has everything up to {format_lsn(lsn)} after {duration(took[name])}")
            return len(took) == len(sinks)

        def behind() -> str:
            late = [f"{name} is at {format_lsn(at)}" for name, at in positions().items() if at < lsn]
            return f"{'; '.join(late)}; the source's end is {format_lsn(lsn)}"

        self._wait(phase, all_have_it, limit_s, behind)
        return took

    def _wait(
        self,
        phase: str,
        done: Callable[[], object],
        limit_s: float,
        missing: Callable[[], str],
        total_s: float | None = None,
    ) -> None:
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
                raise WatershedError(f"{phase}: not done after {limit_s:.0f} s: {missing()}", logs)
            self._screen.show(self._look(phase, elapsed, total_s))
            time.sleep(TICK_S)

    def _look(self, phase: str, elapsed_s: float, total_s: float | None) -> View:
        """Reads what has changed, and returns what the screen shows."""
        now, status = time.monotonic(), self._monitor.status()
        self._books.read()
        if self._views:
            self._views.read()
        self._committed.observe(now, self._workload.rows)
        self._captured.observe(now, status.capture.seq or 0)
        self._observe(status, now)
        return View(
            phase,
            elapsed_s,
            total_s,
            status,
            (self._workload.rows, self._committed.per_s(now)),
            self._captured.per_s(now),
            self._books.ledger,
            dict(self._followed.places) if self._followed.places["row"] else {},
            {store: self._followed.freshness.spread(store, now - RECENT_S) for store in STORES},
            self._chart,
            self._views.now if self._views else None,
            self._memory,
        )

    def _observe(self, status: Status, now: float) -> None:
        sinks = {sink.sink: sink for sink in status.sinks}
        if self._started is not None:
            lags = {name: sink.lag_seconds for name, sink in sinks.items() if sink.lag_seconds is not None}
            self._chart.observe(now - self._started, lags)
        if (warehouse := sinks.get("warehouse")) and warehouse.applied_lsn != self._warehouse_at:
            self._warehouse_at = warehouse.applied_lsn
            self._followed.read_warehouse()
        if now >= self._memory_at + MEMORY_INTERVAL_S:
            self._memory_at = now
            servers = {one.service: one.pid for one in self._servers.status() if one.pid}
            self._memory = {name: tree_mib(pid) for name, pid in (self._programs.pids() | servers).items()}
            self._memory_max |= {name: max(mib, self._memory_max.get(name, 0)) for name, mib in self._memory.items()}


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


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Makes SIGTERM end the demo like Ctrl-C: through every `finally`."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
