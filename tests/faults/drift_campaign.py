"""The long run of drift: 17 differences of each kind in each store, beside 300 changes/s, found exactly and repaired.

    python -m tests.faults.drift_campaign --minutes 30 --folder .watershed/drift-campaign

It is made of episodes, each a seed with a database and topics of its own. An episode injects, compares, repairs and
compares again. Then it compares the stores up to CLEAN_RUNS times while nothing is wrong, also while capture and the
sinks' job stand still for a moment. Each is a line in `episodes.jsonl`; a run that is started again continues after the
last one.

The load changes rows so often that some of them may be undecided: that is counted, and no drift.
"""

import os
import random
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, LiteralString

from cdc.config.config_file import Config
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.engine import Engine
from spark_jobs.engine import SparkEngine
from spark_jobs.runner import started
from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.support import drift
from tests.support.captured import Captured, under_capture
from tests.support.sink_job import SinkJob
from tests.support.stores import ALL, sinks_section
from watershed.cli.exit_codes import PARTIAL
from watershed.devstack.stack import Stack

STORES: Final = (*ALL, "sql")
COUNT: Final = 17
CLEAN_RUNS: Final = 20
CLEAN_S_MAX: Final = 1800.0  # after which no further one of them is begun
LOAD_ROWS: Final = 10_000
COMMAND_S_MAX: Final = 600.0
WAIT_S: Final = 240.0

Shapes = Callable[[str], dict[str, Any]]
"""Makes the shapes of the cache from the prefix of its keys."""


class Stops(drift.Background):
    """Stops these processes for a moment now and then, one at a time, from entering to leaving."""

    def __init__(self, seed: int, *pids: int) -> None:
        super().__init__()
        self.count = 0
        self._chance = random.Random(seed)
        self._pids = pids

    def _run(self) -> None:
        while not self._ended.wait(self._chance.uniform(2.0, 8.0)):
            pid = self._chance.choice(self._pids)
            os.kill(pid, signal.SIGSTOP)
            self._ended.wait(self._chance.uniform(0.2, 2.0))
            os.kill(pid, signal.SIGCONT)
            self.count += 1


@dataclass(frozen=True)
class Pipeline:
    """Capture of a database, and a job that keeps four stores equal to it."""

    captured: Captured
    job: SinkJob
    dsn: str


@contextmanager
def pipeline(
    seed: int, stack: Stack, folder: Path, schema: LiteralString, tables: Sequence[str], shapes: Shapes
) -> Iterator[Pipeline]:
    """Starts one for these tables, which `schema` creates. The stores have everything when it is entered."""
    endpoints = stack.start("postgres", "kafka", "redis", "opensearch")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    folder.mkdir(parents=True)
    name = f"d{seed}_{secrets.token_hex(3)}"
    with (
        new_database(server) as target,
        new_database(server) as dsn,
        under_capture(server, kafka, dsn, name, folder, schema, tables) as captured,
    ):
        sections = sinks_section(folder, endpoints.opensearch_url, endpoints.redis_url)
        sections["cache"]["shapes"] = shapes(name)
        captured.settings = {
            "sinks": sections | {"sql": {"url": url_of(target)}},
            "spark": {
                "checkpoint_location": str(folder / "checkpoints"),
                "warehouse_trigger_ms": 500,
                "options": INTERPRETED,
            },
        }
        captured.start()
        captured.await_caught_up()
        with SinkJob(captured.config(), *STORES, log_level="info") as job:
            job.wait_applied(captured.progress(), *STORES, deadline_s=WAIT_S)
            yield Pipeline(captured, job, dsn)


def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    reported: dict[str, Any] = {"seed": seed}
    with pipeline(seed, stack, folder, drift.SCHEMA, [drift.GOODS], drift.shapes) as run:
        run.captured.query(drift.FILL)
        run.captured.await_caught_up(WAIT_S)
        run.job.wait_applied(run.captured.progress(), *STORES, deadline_s=WAIT_S)
        with drift.Load(run.dsn, rows=LOAD_ROWS) as load:
            began = time.monotonic()
            reported |= _drift(run.captured)
            with Stops(seed, run.captured.running().pid, run.job.process.pid) as stops:
                reported |= _clean_runs(run.captured)
            reported |= {"stops": stops.count, "changes_per_s": round(load.changes / (time.monotonic() - began))}
    if is_true(reported):
        shutil.rmtree(folder)
    return reported


def _clean_runs(captured: Captured) -> dict[str, Any]:
    """Compare while nothing is wrong."""
    seconds: list[float] = []
    undecided: list[int] = []
    wrong: list[dict[str, Any]] = []
    ends = time.monotonic() + CLEAN_S_MAX
    while len(seconds) < CLEAN_RUNS and time.monotonic() < ends:
        began = time.monotonic()
        code, report = command(captured, "verify")
        seconds.append(round(time.monotonic() - began, 1))
        undecided.append(report["undecided"])
        if code not in (0, PARTIAL) or report["drift"] or not_compared(report):
            wrong.append(report)
        message = f"run {len(seconds)} without drift: {seconds[-1]} s, exit code {code}, drift {report['drift']}"
        print(f"{message}, undecided {report['undecided']}", flush=True)
    return {"clean_runs": len(seconds), "clean_s": seconds, "clean_undecided": undecided, "false_alarms": wrong}


def command(captured: Captured, *words: str) -> tuple[int, dict[str, Any]]:
    return drift.command(captured, *words, deadline_s=COMMAND_S_MAX)


def not_compared(report: dict[str, Any]) -> list[str]:
    return [table["not_compared"] for table in report["tables"] if table["not_compared"]]


def _drift(captured: Captured) -> dict[str, Any]:
    """Inject, compare, repair, compare."""
    config = drift.loaded(captured)
    ids = {store: drift.chosen(store, COUNT, STORES) for store in STORES}
    for store in STORES:
        drift.inject(store, config, ids[store], lambda: _engine(config))
    began = time.monotonic()
    print("differences are injected", flush=True)
    _, report = command(captured, "verify")
    verified = time.monotonic()
    print(f"compared in {verified - began:.0f} s: {report['drift']} rows differ", flush=True)
    found = {store: drift.found(report, store) for store in STORES}
    print({store: {kind: len(keys) for kind, keys in found[store].items()} for store in STORES}, flush=True)
    _, repaired = command(captured, "repair")
    done = time.monotonic()
    print(f"repaired in {done - verified:.0f} s", flush=True)
    print({table["sink"]: (table["repaired"], table["counts"]) for table in repaired["tables"]}, flush=True)
    _, after = command(captured, "verify")
    return {
        "found": {store: {kind: len(keys) for kind, keys in found[store].items()} for store in STORES},
        "found_wrongly": {s: found[s] for s in STORES if found[s] != drift.wanted(ids[s])},
        "repaired": {table["sink"]: table["repaired"] for table in repaired["tables"]},
        "left": [report for report in (repaired, after) if report["drift"] or not_compared(report)],
        "undecided_after": after["undecided"],
        "verify_s": round(verified - began, 1),
        "repair_s": round(done - verified, 1),
    }


def _engine(config: Config) -> Engine:
    section: Any = config.sinks["warehouse"]
    return SparkEngine(started(config, 1)[0], catalog_place(section, config.topics.prefix))


def is_true(reported: dict[str, Any]) -> bool:
    """Returns whether an episode that reported this found no fault."""
    is_whole = reported.get("repaired") == {store: COUNT * len(drift.chosen(store, COUNT, STORES)) for store in STORES}
    is_clean = not (reported["false_alarms"] or reported["found_wrongly"] or reported["left"])
    return is_whole and is_clean


if __name__ == "__main__":
    sys.exit(run_episodes(__doc__, "drift-campaign", episode, is_true))
