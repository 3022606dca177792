"""Keeps views and loads event logs: one thread for each, until the process is to end. What `cdc view run` runs."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from cdc.config.config_file import Config
from cdc.config.event_logs import SCHEMA_OF_LOGS
from cdc.config.stores import WarehouseConfig
from cdc.config.views import ViewConfig
from cdc.daemon.conditions import Conditions
from cdc.model.condition import Condition
from cdc.model.errors import WatershedError
from sinks.errors import SinkError
from watershed.client.source_reader import PostgresSourceReader
from watershed.client.waiting import Waiter, WaitTimeoutError
from watershed.views.clock import ClockSupervisor, bases_with_clock
from watershed.views.event_log import EventLogSupervisor, wait_for_log
from watershed.views.parsing import named_tables
from watershed.views.supervisor import ViewSupervisor
from watershed.views.target import TargetGenerations
from watershed.views.targets import gathering, open_base, open_target, target_generations

if TYPE_CHECKING:  # brings Spark, which most views do not need
    from spark_jobs.view_targets import WarehouseTargets

BASE_WAIT_S: Final = 600.0
WAIT_STEP_S: Final = 2.0
POLL_S: Final = 1.0  # for the end of Spark's Java process


def run_views(
    settings: Config,
    views: Mapping[str, ViewConfig],
    logs: Sequence[str],
    conditions: Conditions,
    say: Callable[[str], None],
) -> bool:
    """Runs until KeyboardInterrupt, or until every view and log has failed. Returns whether any has failed. `say`:
    prints a line for the operator. Raises SinkError, StackError if Spark, which a target needs, can't run."""
    ending = threading.Event()
    clocks = bases_with_clock(settings, [*views])
    with (
        _warehouses(settings, views) as warehouses,
        ThreadPoolExecutor(len(views) + len(logs) + len(clocks), thread_name_prefix="view") as pool,
    ):
        jobs = {pool.submit(_supervisor(settings, name, ending, warehouses).run, ending): name for name in views}
        jobs |= {pool.submit(EventLogSupervisor(settings, name).run, ending): name for name in logs}
        jobs |= {pool.submit(ClockSupervisor(settings, base).run, ending): f"the clock of {base}" for base in clocks}
        try:
            _report(jobs, conditions, warehouses, say)
        except KeyboardInterrupt:
            say("stopping")
        finally:
            ending.set()
    return any(job.exception() for job in jobs)


def _stopped(view: str, error: BaseException) -> Condition:
    if isinstance(error, WatershedError):
        return Condition("view", view, "stopped", error.message, error.hint, is_failure=True)
    what = f"{type(error).__name__}: {error}"
    return Condition("view", view, "stopped", what, f"start `cdc view run {view}` again", is_failure=True)


@contextmanager
def _warehouses(settings: Config, chosen: Mapping[str, ViewConfig]) -> Iterator["WarehouseTargets | None"]:
    """Yields the Spark session for targets in a warehouse, or None if there is none. Raises SinkError, StackError."""
    names = [name for name, section in chosen.items() if isinstance(section.target, WarehouseConfig)]
    if not names:
        yield None
        return
    if find_spec("pyspark") is None or find_spec("pyiceberg") is None:
        raise SinkError(
            f"the target of view {names[0]} is written by Spark, whose Python packages are not installed",
            "pip install 'watershed-cdc[warehouse,spark]'",
        )
    from spark_jobs.view_targets import WarehouseTargets

    with closing(WarehouseTargets.start(settings, len(names))) as warehouses:
        yield warehouses


def _supervisor(
    settings: Config, name: str, ending: threading.Event, warehouses: "WarehouseTargets | None"
) -> ViewSupervisor:
    section = settings.views[name]
    return ViewSupervisor(
        name,
        section,
        partial(open_base, settings, name),
        partial(open_target, settings, name, warehouses.open if warehouses else None),
        partial(_wait_for, settings, name, ending.is_set),
        gathering(settings, name),
        _generations(settings, name, warehouses),
    )


def _generations(settings: Config, name: str, warehouses: "WarehouseTargets | None") -> TargetGenerations | None:
    """Returns the generations of this view's target; None if the target holds only one."""
    target = settings.views[name].target
    if warehouses is None or not isinstance(target, WarehouseConfig) or target.no_rebuild is not None:
        return target_generations(settings, name)
    return TargetGenerations(partial(warehouses.slots, name, target), partial(warehouses.open, name, target))


def _report(
    jobs: Mapping[Future[None], str],
    conditions: Conditions,
    warehouses: "WarehouseTargets | None",
    say: Callable[[str], None],
) -> None:
    """Waits until all jobs have ended, and reports the error of each. Raises SinkError when Spark's Java process has
    ended, because this process can't start another one."""
    waiting = set(jobs)
    while waiting:
        ended, waiting = wait_for_futures(waiting, POLL_S if warehouses else None, FIRST_COMPLETED)
        for job in ended:
            if (error := job.exception()) is not None:
                say(f"error: {error}")
                conditions.report(_stopped(jobs[job], error))
        if warehouses and (failure := warehouses.failure()) is not None:
            raise failure


def _wait_for(settings: Config, name: str, is_ending: Callable[[], bool]) -> None:
    """Waits until the base shows what the source has committed by now, and the event logs that the view reads hold
    what is now in their topics. Raises WaitTimeoutError, SinkError."""
    section, deadline = settings.views[name], time.monotonic() + BASE_WAIT_S
    tables = named_tables(name, section.sql)
    for table in tables:
        if table.schema == SCHEMA_OF_LOGS and table.name in settings.event_logs:
            wait_for_log(settings, table.name, lambda: is_ending() or time.monotonic() > deadline)
    if all(table.schema == SCHEMA_OF_LOGS for table in tables):
        return
    with closing(PostgresSourceReader(settings.source)) as source:
        lsn = source.read_end().insert_lsn
    names = [str(table) for table in tables if table.schema != SCHEMA_OF_LOGS]
    with Waiter(settings) as waiter:
        while True:
            try:
                # Rows that the base has rejected, or that come later, reach the view when they reach the base.
                waiter.wait_for(section.base, lsn, WAIT_STEP_S, tables=names, accepts_rejected=True)
            except WaitTimeoutError:
                if is_ending() or time.monotonic() > deadline:
                    raise
            else:
                return
