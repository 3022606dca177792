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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from rich.console import Console

from cdc.config.config_file import Config, load_config
from cdc.model.errors import WatershedError
from cdc.model.lsn import Lsn, format_lsn
from watershed.client.outbox_migrations import Names, migrate
from watershed.demo.beside import Beside
from watershed.demo.books import Balance, Books
from watershed.demo.comparing import compare_stores
from watershed.demo.existing_rows import Filling, FirstSnapshots
from watershed.demo.figures import Kill, Rows, duration, kill_schedule
from watershed.demo.keeping import Keeping, console_line
from watershed.demo.monitor import Figures, Monitor
from watershed.demo.place import demo_folder, write_config
from watershed.demo.programs import Programs
from watershed.demo.report import Run, print_balance, print_differences, print_figures, print_lags, print_side_by_side
from watershed.demo.rows import Stock
from watershed.demo.screen import Screen, View
from watershed.demo.shop_views import create_base
from watershed.demo.stores import STORES, Probe, cache_probe, search_probe
from watershed.demo.workload import CommittedSample, Workload, create_shop, flushed_lsn_of
from watershed.devstack.stack import Stack
from watershed.status.fill_progress import FillProgress
from watershed.verify.model import TableResult

TICK_S = 0.25
START_S_MAX = 300.0  # for Spark's start, several times what a busy machine of two cores takes
ROWS_PER_S_MIN = 500.0  # the least rate at which the slowest store applies rows, once it runs
SEED = 20260101
CAPTURE, SINKS, BOOTSTRAP = "capture", "sinks", "bootstrap"
DEFAULT_FOLDER = Path(".watershed/demo")


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float = 120.0
    rows: int = 50_000
    rate: float = 300.0  # committed row changes a second
    chaos: bool = True
    hold_s: float = 0.0  # pause before the comparison
    folder: Path = DEFAULT_FOLDER
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
        screen = closing.enter_context(Screen(console))
        screen.say("starting PostgreSQL, Kafka, OpenSearch and Redis")
        began = time.monotonic()
        # The demo starts its own servers even if the environment names others, since it fills and empties them.
        servers = closing.enter_context(Stack(folder / "servers", temporary=True, progress=console, given={}))
        closing.callback(_keep_logs, servers, folder / "logs")
        servers.start()
        screen.say(f"servers are ready after {time.monotonic() - began:.1f} s; starting the sinks")
        programs = closing.enter_context(Programs(folder, folder / "logs"))
        return _Demo(options, folder, screen, servers, programs, closing, began).run(console)


class _Demo:
    """One run, after the servers have started."""

    def __init__(
        self,
        options: Options,
        folder: Path,
        screen: Screen,
        servers: Stack,
        programs: Programs,
        closing: ExitStack,
        began: float,
    ) -> None:
        self._options = options
        self._screen = screen
        self._programs = programs
        self._began = began
        endpoints = servers.endpoints
        self._dsn = endpoints.dsn
        if options.views:
            create_base(self._dsn)
        self._config_file = write_config(folder, endpoints, has_views=options.views)
        self._config: Config = load_config(self._config_file)
        self._beside = Beside(self._config, str(self._config_file), self._dsn, programs, has_views=options.views)
        closing.callback(self._beside.stop)
        self._stock = Stock(SEED, options.rows)
        self._workload = Workload(self._dsn, self._stock, rate=options.rate, on_sample=self._sampled)
        self._probes: dict[str, Probe | None] = {
            "search": search_probe(self._config), "cache": cache_probe(self._config), "warehouse": None,
        } | dict.fromkeys(self._beside.sinks)  # fmt: skip
        self._monitor = Monitor(
            self._config,
            self._dsn,
            self._probes,
            lambda: self._loaded + self._workload.rows,
            lambda: self._programs.pids() | {status.service: status.pid for status in servers.status() if status.pid},
        )
        closing.callback(self._monitor.stop)
        closing.callback(self._workload.halt)
        self._first_snapshots = FirstSnapshots(self._config)
        closing.callback(self._first_snapshots.close)
        self._books = Books(endpoints.bootstrap_servers, self._dsn)
        closing.callback(self._books.stop)
        self._filling = Filling(folder / "logs" / f"{BOOTSTRAP}.log")
        self._sinks = (*STORES, *self._beside.sinks)
        self._early = tuple(sink for sink in self._sinks if sink != options.bootstrap)
        self._loaded = 0
        self._load_s_max = START_S_MAX + options.rows / ROWS_PER_S_MIN
        self._catch_up_s_max = START_S_MAX + options.seconds * options.rate / ROWS_PER_S_MIN
        self._committed = Rows()
        self._rates: list[float] = []
        self._existing: list[FillProgress] = []  # the progress of existing rows on the screen

    def run(self, console: Console) -> int:
        # The sinks wait for capture's tables. Spark starts while the shop's rows are loaded.
        self._programs.start(SINKS, "sink", "run", *self._early, "--config", str(self._config_file))
        self._loaded = create_shop(self._dsn, self._stock) + self._beside.create()
        migrate(self._config.source, Names())
        self._screen.say(f"the shop has {self._loaded:,} rows; starting capture; {console_line(self._config)}")
        self._books.open()
        first_row_s, loaded_s = self._initial_load()
        captured_before = self._monitor.figures().captured_rows
        started_at, seconds, kills_at, filled = self._change_and_kill()
        captured = self._monitor.figures
        self._beside.rest()
        last_lsn = self._workload.stop()
        self._screen.say(f"workload stopped at {format_lsn(last_lsn)}, {self._workload.rows:,} row changes committed")
        caught_up_s = self._applied("catching up", last_lsn, self._catch_up_s_max, time.monotonic(), self._sinks)
        self._await_views("catching up")
        ended_at = time.time()
        parts = {"whole run": (started_at, ended_at)}
        if kills_at:
            parts = {"before the kills": (started_at, kills_at[0]), "from the first kill on": (kills_at[0], ended_at)}
        spans = dict.fromkeys(self._sinks, parts)
        if filled is not None:
            loaded_s[self._options.bootstrap] = filled.took_s
            spans[self._options.bootstrap] = {"since it was filled": (filled.at, ended_at)}
        measured = Run(
            seconds=seconds,
            committed_rows=self._workload.rows,
            transactions=self._workload.transactions,
            captured_rows=captured().captured_rows - captured_before,
            first_row_s=first_row_s,
            loaded_s=loaded_s,
            caught_up_s=caught_up_s,
            freshness={
                store: {part: self._monitor.freshness(store, *span) for part, span in spans[store].items()}
                for store in self._sinks
            },
            by_position=frozenset(store for store, probe in self._probes.items() if probe is None),
            memory_mib=self._monitor.memory_mib_max(),
        )
        self._hold()
        self._screen.say("comparing every row and column")
        found = self._compare()
        balance = self._balance()
        self._screen.close()
        if self._options.views:
            found["views"] = self._beside.compared_views()
        differences = print_differences(console, found)
        print_balance(console, balance)
        print_side_by_side(console, self._beside.side_by_side())
        print_lags(console, self._beside.now())
        print_figures(console, measured)
        if alerts := self._beside.alerts():
            self._screen.say(alerts)
        verdict = f"{differences:,} rows differ" if differences else "0 differences"
        self._screen.say(f"{verdict} in {', '.join(found)}", style="bold red" if differences else "bold green")
        wrong = f"the books differ from PostgreSQL: {'; '.join(balance.problems)}" if balance.problems else ""
        verdict = wrong or "the books, kept from events alone, are equal to PostgreSQL"
        self._screen.say(verdict, style="bold red" if wrong else "bold green")
        if self._options.keep:
            keeping = Keeping(self._config, self._config_file, console)
            keeping.show()
            keeping.wait(_enter_was_pressed, self._programs.check)
        return 1 if differences or wrong else 0

    # ---- acts

    def _initial_load(self) -> tuple[float, dict[str, float]]:
        """Waits for the existing rows. Returns the seconds from the demo's start to the first row in a store, and for
        each store the seconds from capture's start until it had all rows.
        """
        lsn = flushed_lsn_of(self._dsn)
        self._programs.start(CAPTURE, "run", "--config", str(self._config_file))
        started = time.monotonic()
        self._monitor.start()
        first = CommittedSample("customers", {"id": 1}, time.time(), lsn)
        seen: list[str] = []

        def row_is_there() -> bool:
            seen.extend(name for name, probe in self._probes.items() if probe and probe([first]) == [True])
            return bool(seen)

        self._wait("waiting for the first row", row_is_there, self._load_s_max, lambda: "no store shows the first row")
        first_row_s = time.monotonic() - self._began
        self._screen.say(f"first synced row {first_row_s:.1f} s after the start, in {seen[0]}", style="bold")

        def are_published() -> bool:
            self._existing = self._first_snapshots.progress()
            return bool(self._existing) and all(table.status == "done" for table in self._existing)

        phase = "loading existing rows"
        self._wait(phase, are_published, self._load_s_max, lambda: "not all rows are in the topics")
        self._existing = []
        # Existing rows are published beside the stream, so an earlier confirmed position does not include them.
        lsn = flushed_lsn_of(self._dsn)
        loaded_s = self._applied(phase, lsn, self._load_s_max, started, self._beside.sinks)
        self._beside.keep_views()  # which are filled while the stores are
        others = [sink for sink in self._early if sink not in loaded_s]
        loaded_s |= self._applied(phase, lsn, self._load_s_max, started, others)
        self._await_views("filling the views")
        return first_row_s, loaded_s

    def _change_and_kill(self) -> tuple[float, float, list[float], "_Filled | None"]:
        """Runs the workload, and fills the new store beside it. Returns when it started (time.time()), how many seconds
        it took, when processes were killed, and how the store was filled.
        """
        options = self._options
        schedule = list(kill_schedule((CAPTURE, SINKS, *self._beside.killed), options.seconds)) if options.chaos else []
        kills_at: list[float] = []
        filled: list[_Filled] = []
        self._screen.say(f"workload: {options.rate:g} row changes a second for {options.seconds:g} s")
        self._workload.start()
        self._beside.start()
        started_at, started = time.time(), time.monotonic()
        if options.bootstrap:
            self._bootstrap()

        def is_over() -> bool:
            elapsed = time.monotonic() - started
            while schedule and schedule[0].at_s <= elapsed:
                kills_at.append(time.time())
                self._kill(schedule.pop(0))
            if statement := self._beside.at(elapsed / options.seconds):
                self._screen.say(f"a saved search changes: {statement}", style="bold")
            if options.bootstrap and not filled and self._check_filled():
                filled.append(_Filled(time.time(), elapsed))
                self._screen.say(f"{options.bootstrap} is filled after {duration(elapsed)}", style="bold")
            return elapsed >= options.seconds and not schedule and len(filled) == bool(options.bootstrap)

        limit_s = options.seconds + self._catch_up_s_max + (self._load_s_max if options.bootstrap else 0.0)
        not_yet = f"{options.bootstrap} is not filled"
        self._wait("workload", is_over, limit_s, lambda: not_yet, options.seconds)
        return started_at, time.monotonic() - started, kills_at, filled[0] if filled else None

    def _bootstrap(self) -> None:
        """Starts to fill a store as a user would, from fresh rows of the source, while they change."""
        store = self._options.bootstrap
        words = ["snapshot", "start", "--sink", store, "--fresh", "--keep-running"]
        self._screen.say(f"{store} does not exist yet: cdc {' '.join(words)}", style="bold")
        self._programs.start(BOOTSTRAP, *words, "--json", "--config", str(self._config_file))

    def _check_filled(self) -> bool:
        self._existing = self._filling.progress()
        if self._filling.is_filled:
            self._existing = []
        return self._filling.is_filled

    def _kill(self, kill: Kill) -> None:
        self._beside.kill(kill.process)
        killed = self._programs.kill(kill.process)
        jobs = f" ({', '.join(STORES)} jobs)" if kill.process == SINKS else ""
        pid = self._programs.restart(kill.process)
        self._screen.say(f"kill -9 {kill.process}{jobs}, process {killed}; started again as {pid}", style="bold yellow")
        if kill.process == CAPTURE:
            self._beside.kill_naive()
            self._screen.say("the application that writes its database and its cache is killed and started, too")
            self._books.start_over()
            self._screen.say("the consumer of events reads their topic again, from its beginning", style="bold yellow")

    def _hold(self) -> None:
        """Waits while the user changes a value in a store by hand."""
        hold_s = self._options.hold_s
        if not hold_s:
            return
        self._screen.say(f"holding {hold_s:g} s: change a value in a store now, and the demo will report it")
        self._screen.say(f"the stores' addresses are in {self._config_file}; press Enter to go on")
        until = time.monotonic() + hold_s
        self._wait("holding", lambda: time.monotonic() >= until or _enter_was_pressed(), hold_s + 60, str, hold_s)

    def _compare(self) -> dict[str, list[TableResult]]:
        began = time.monotonic()

        def show(phase: str) -> None:
            self._screen.show(View(phase, time.monotonic() - began, None, 0, 0.0, None, ()))

        return compare_stores(self._config, lambda: self._programs.see_log(CAPTURE), show)

    def _balance(self) -> Balance:
        """Returns the totals from events, after all events have been read, compared with SQL."""
        ends = self._books.ends()
        missing = "the consumer of events has not reached the end of their topic"
        self._wait("reading events", lambda: self._books.has_read(ends), self._catch_up_s_max, lambda: missing)
        return self._books.balance()

    # ---- waiting

    def _await_views(self, phase: str) -> None:
        """Waits until the views have everything that their base has."""
        if self._options.views:
            began, missing = time.monotonic(), "the views have not written all changes; see cdc view status"
            self._wait(phase, self._beside.views_are_current, self._catch_up_s_max, lambda: missing)
            self._screen.say(f"the views have everything after {duration(time.monotonic() - began)} more")

    def _applied(self, phase: str, lsn: Lsn, limit_s: float, began: float, stores: Sequence[str]) -> dict[str, float]:
        """Waits until each of these stores has applied `lsn`. Returns the seconds that each took since `began`."""
        took: dict[str, float] = {}

        def all_have_it() -> bool:
            figures = self._monitor.figures()
            for name in stores:
                if name not in took and figures.stores[name].applied_lsn >= lsn:
                    took[name] = time.monotonic() - began
                    self._screen.say(f"{name} has everything up to {format_lsn(lsn)} after {duration(took[name])}")
            return len(took) == len(stores)

        self._wait(phase, all_have_it, limit_s, lambda: self._behind(lsn))
        return took

    def _behind(self, lsn: Lsn) -> str:
        figures = self._monitor.figures()
        applied = {CAPTURE: figures.captured_lsn} | {name: s.applied_lsn for name, s in figures.stores.items()}
        late = [f"{name} is at {format_lsn(at)}" for name, at in applied.items() if at < lsn]
        return f"{'; '.join(late)}; the source's end is {format_lsn(lsn)}"

    def _wait(
        self,
        phase: str,
        done: Callable[[], bool],
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
            self._monitor.check()
            self._books.check()
            self._beside.check()
            if elapsed > limit_s:
                logs = "\n".join(self._programs.see_log(name) for name in self._programs.pids())
                raise WatershedError(f"{phase}: not done after {limit_s:.0f} s: {missing()}", logs)
            self._screen.show(self._view(phase, elapsed, total_s))
            time.sleep(TICK_S)

    def _view(self, phase: str, elapsed_s: float, total_s: float | None) -> View:
        now = time.time()
        figures: Figures = self._monitor.figures()
        self._committed.observe(now, 1, self._workload.rows)
        if len(self._rates) <= int(time.monotonic() - self._began):
            self._rates.append(figures.captured_rate)
        self._beside.observe(figures)
        return View(
            phase,
            elapsed_s,
            total_s,
            self._committed.total,
            self._committed.rate(now),
            figures,
            tuple(self._rates),
            tuple(self._existing),
            self._books.now(),
            self._beside.now(),
        )

    def _sampled(self, sample: CommittedSample) -> None:
        self._monitor.sample(sample)


class _Filled(NamedTuple):
    """The time at which the store that did not exist before was filled."""

    at: float  # time.time()
    took_s: float


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
