"""The programs and figures beside the shop's workload: the order that the screen follows, an application that writes
twice, the lag chart, and with `--views` the views.
"""

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdc.config.config_file import Config
from cdc.config.stores import CacheConfig
from watershed.demo import naive
from watershed.demo.drift import SideBySide, side_by_side
from watershed.demo.followed import FollowedNow, FollowedOrder
from watershed.demo.lag_chart import LagChart, LagLine
from watershed.demo.monitor import Figures
from watershed.demo.programs import Programs
from watershed.demo.shop_views import BASE, NARROWED_SEARCH, NEW_SEARCH, SAVED_SEARCHES, execute
from watershed.demo.view_figures import ViewsNow
from watershed.verify.model import TableResult

if TYPE_CHECKING:
    from watershed.demo.view_watch import ViewWatch

VIEWS: Final = "views"  # the name of the program
NAIVE: Final = "naive"


@dataclass(frozen=True, slots=True)
class BesideNow:
    """The figures for the screen at one moment."""

    followed: FollowedNow | None = None
    lag_title: str = ""
    lags: list[LagLine] = field(default_factory=list)
    marks: str = ""
    views: ViewsNow | None = None


class Beside:
    """Runs from create() to stop()."""

    def __init__(self, config: Config, config_file: str, dsn: str, programs: Programs, *, has_views: bool) -> None:
        self._config = config
        self._config_file = config_file
        self._dsn = dsn
        self._programs = programs
        self._chart = LagChart()
        self._began: float | None = None  # time.monotonic() of the workload's start
        self._followed = FollowedOrder(config, dsn)
        self._watch = _watch(config) if has_views else None
        self._searches = [(1 / 4, NEW_SEARCH), (2 / 5, NARROWED_SEARCH)] if has_views else []  # share of the run

    @property
    def killed(self) -> tuple[str, ...]:
        """The programs that are killed during the run, besides capture and the sinks."""
        return (VIEWS,) if self._watch else ()

    @property
    def sinks(self) -> tuple[str, ...]:
        """The sinks that run besides the stores."""
        return (BASE,) if self._watch else ()

    def create(self) -> int:
        """Inserts its rows into the shop, before capture starts. Returns their number."""
        if self._watch:
            execute(self._dsn, SAVED_SEARCHES)
        return self._followed.create() + naive.create(self._dsn, self._redis_url())

    def keep_views(self) -> None:
        """Starts the program that keeps the views, and watches them. The base may still be empty."""
        if self._watch:
            self._programs.start(VIEWS, "view", "run", "--config", self._config_file)
            self._watch.start()

    def start(self) -> None:
        """Starts the changes, with the workload."""
        self._began = time.monotonic()
        self._followed.start()
        module = (sys.executable, "-m", "watershed.demo.naive")
        self._programs.start(NAIVE, self._dsn, self._redis_url(), command=module)

    def at(self, share: float) -> str | None:
        """Changes a saved search when this share of the run is over. Returns the statement."""
        if not self._searches or share < self._searches[0][0]:
            return None
        _, statement = self._searches.pop(0)
        execute(self._dsn, statement)
        return statement

    def kill(self, process: str) -> None:
        """Marks the kill of a process; the application that writes twice is killed with capture."""
        assert self._began is not None, "processes are killed while the workload runs"
        self._chart.kill(time.monotonic() - self._began, process)

    def kill_naive(self) -> None:
        self._programs.kill(NAIVE)
        self._programs.restart(NAIVE)

    def rest(self) -> None:
        """Ends the changes. The order is still read in every place."""
        self._followed.rest()
        self._programs.end(NAIVE)

    def stop(self) -> None:
        self._followed.stop()
        if self._watch:
            self._watch.stop()

    def check(self) -> None:
        """Raises WatershedError if a part of it has failed."""
        self._followed.check()
        if self._watch:
            self._watch.check()

    def observe(self, figures: Figures) -> None:
        """Adds the stores' lags to the chart, from the workload's start on."""
        if self._began is not None:
            lags = {name: store.lag.seconds for name, store in figures.stores.items()}
            self._chart.observe(time.monotonic() - self._began, lags)

    def now(self) -> BesideNow:
        views = self._watch.now() if self._watch else None
        return BesideNow(self._followed.now(), self._chart.title(), self._chart.lines(), self._chart.marks(), views)

    # ---- the end

    def views_are_current(self) -> bool:
        """Returns whether the views have everything that their base has."""
        return self._watch is None or self._watch.are_current()

    def compared_views(self) -> list[TableResult]:
        """Compares every row of each view with its query over the source."""
        return self._watch.compared() if self._watch else []

    def alerts(self) -> str:
        """Returns how many alerts started and stopped while the shop was open; empty without views."""
        if not self._watch:
            return ""
        alerts = self._watch.alerts
        return f"alerts: {alerts.started:,} started and {alerts.stopped:,} stopped while they were watched"

    def side_by_side(self) -> SideBySide:
        return side_by_side(self._config, self._dsn)

    def _redis_url(self) -> str:
        section = self._config.sinks["cache"]
        assert isinstance(section, CacheConfig), "the demo has a cache"
        return section.url.get_secret_value()


def _watch(config: Config) -> "ViewWatch":
    """Imports what parses the queries of views only where there are any: it takes half a second."""
    from watershed.demo.view_watch import ViewWatch

    return ViewWatch(config)
