"""Views over the whole pipeline under kill -9: source, capture, the base's sink, `cdc view run`, targets of each kind.

    python -m tests.faults.view_kill_campaign --minutes 60
    python -m tests.faults.view_kill_campaign --seed 7 --faults 40 --warehouse

It is made of episodes, each a seed with databases and topics of its own. Two clients change the source at random:
updates, deletes, other keys, TRUNCATE, late and duplicated events, transactions of several tables. One `cdc view run`
keeps every recipe of the documentation and every query of the tests; which target a view has depends on the seed.
Processes and servers are killed meanwhile, queries change, and the sink applies all records again because its
checkpoints are deleted, at times with the whole base.
After every few faults the clients pause, and each view in its target is compared with the result of its SQL over the
source. Each episode is a line in `episodes.jsonl`; a run that is started again goes on behind the last one. `--seed 7`
repeats one.
"""

import argparse
import json
import random
import secrets
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchException

from cdc.config.config_file import load_config
from cdc.config.stores import SqlConfig
from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.faults.episodes import run_episodes
from tests.support.captured import Captured, CaptureProcess, under_capture
from tests.support.folds import documented
from tests.support.lost_base import drop_base, holds_tables
from tests.support.sink_job import sink_record
from tests.support.sink_machine import Machine
from tests.support.view_process import ViewProcess
from tests.support.view_queries import VIEWS
from tests.support.view_source import SourceClient, schema
from tests.support.view_tables import ALL, Query, recipes
from tests.support.view_truth import compare_view
from tests.support.views import BASE_SHAPES
from tests.support.waiting import eventually
from tests.support.workload import Workload
from watershed.devstack.endpoints import Endpoints, ServerStack
from watershed.devstack.stack import Stack
from watershed.verify.model import DriftKind, TableResult

BASE: Final = "base"
TARGETS: Final = ("sql", "search", "cache", "topic")
FAULTS: Final = 24
FAULTS_PER_ROUND: Final = 6  # after which the views are compared
CLIENTS: Final = 2
PAUSE_S: Final = 0.06  # of a client after each transaction
CATCH_UP_S_MAX: Final = 300.0
# A view whose triggers are gone is noticed by the job's next step, and filled: its status says nothing of it before.
NOTICED_S_MAX: Final = 60.0
EXAMPLES_MAX: Final = 5
ACCOUNT_EVENTS: Final = "SELECT e.account_id, e.no, e.kind, e.amount, e.owner FROM account_events e"
VIEWS_CONNECTIONS: Final = "watershed views"


class ViewEpisode:
    """One seed: the pipeline, what happens to it, and what the views hold after each round of faults."""

    def __init__(self, seed: int, servers: ServerStack, captured: Captured, queries: Mapping[str, Query]) -> None:
        self.chance = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.failures: list[str] = []
        self.rows: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.noticed_later: list[str] = []
        self.transactions = 0
        self._seed = seed
        self._servers = servers
        self._captured = captured
        self._queries = queries
        self._config = load_config(captured.config())
        self._base_url = captured.settings["sinks"][BASE]["url"]
        self._machine = Machine(captured.config(), [BASE])
        self._capture: CaptureProcess | None = None
        self._view: ViewProcess | None = None
        self._clients: Workload | None = None

    def nemesis(self) -> dict[str, tuple[Callable[[], None], int]]:
        """Name → the fault, and how often it is chosen."""
        return {
            "kill_view": (self.kill_view, 12),
            "freeze_view": (self.freeze_view, 3),
            "rebuild_view": (self.rebuild_view, 2),
            "change_view": (self.change_view, 3),
            "cut_base": (self.cut_base, 4),
            "kill_sink": (self.kill_sink, 3),
            "kill_sink_java": (self.kill_sink_java, 1),
            "kill_sink_worker": (self.kill_sink_worker, 2),
            "replay": (self.replay, 2),
            "drop_base": (self.drop_base, 1),
            "kill_capture": (self.kill_capture, 4),
            **{f"kill_{name}": (partial(self.kill_server, name), 1) for name in ("opensearch", "redis", "kafka")},
            "kill_postgres": (partial(self.kill_server, "postgres"), 1),
        }

    def run(self, faults: Sequence[str]) -> None:
        """These faults, in rounds; the episode ends at the first round with a failure."""
        nemesis = self.nemesis()
        try:
            self.go_on()
            for start in range(0, len(faults), FAULTS_PER_ROUND):
                with Workload(
                    self._captured.dsn,
                    seed=self._seed + start,
                    clients=CLIENTS,
                    pause_s=PAUSE_S,
                    outlives_server=True,
                    client=SourceClient,
                ) as self._clients:
                    for name in faults[start : start + FAULTS_PER_ROUND]:
                        self.live()
                        self.faults[name] += 1
                        nemesis[name][0]()
                        self.go_on()
                    self.live()
                self.transactions += self._clients.committed
                self.settle()
                if self.failures:
                    break
        except AssertionError as error:
            self.failures.append(f"after {dict(self.faults)}: {error}"[:6000])
        finally:
            self._machine.kill()
            if self._view is not None:
                self._view.kill()
        self.failures += self._tracebacks()

    # ---- between the faults

    def live(self) -> None:
        """Some transactions are committed."""
        assert self._clients is not None
        clients, until = self._clients, self._clients.committed + self.chance.randrange(1, 200)
        eventually(lambda: clients.committed > until, CATCH_UP_S_MAX, f"{until} transactions are committed")

    def go_on(self) -> None:
        """Starts what does not run. A view's process or a sink's job that ended by itself is a failure."""
        if self._capture is None or self._capture.exit_code is not None:
            self._capture = self._captured.start()
        if not self._machine.jobs or self._machine.exit_code is not None:
            if self._machine.jobs:
                self.failures.append(f"the sink's job ended with {self._machine.exit_code}: {self._sink_said()}")
            self._machine.start()
        if self._view is None or self._view.exit_code is not None:
            if self._view is not None:
                self.failures.append(f"cdc view run ended with {self._view.exit_code}: {self._view.said()[-2000:]}")
            self._view = ViewProcess(self._captured, is_forked=False)

    def settle(self) -> None:
        """Nothing is committed any more: every view is compared as soon as the status says that it is current."""
        with psycopg.connect(self._captured.dsn, autocommit=True) as connection:
            SourceClient(connection, self.chance.randrange(1_000_000)).fill()
        self.go_on()
        self._captured.await_caught_up(CATCH_UP_S_MAX)
        lsn = self._captured.progress()

        def is_applied() -> bool:
            self.go_on()
            record = sink_record(self._config, BASE)
            return record is not None and record.applied_lsn >= lsn

        eventually(is_applied, CATCH_UP_S_MAX, lambda: f"the base shows LSN {lsn}\n{self._sink_said()}")
        status: list[dict[str, Any]] = []

        def are_current() -> bool:
            self.go_on()
            status[:] = self._status()
            return all((one["state"], one["changes"], one["keys"]) == ("serving", 0, 0) for one in status)

        def others() -> str:
            busy = [one for one in status if (one["state"], one["changes"], one["keys"]) != ("serving", 0, 0)]
            return f"all views are current: {busy}"

        eventually(are_current, CATCH_UP_S_MAX, others)
        for one in status:
            self._compare(one["name"], one["rejected"])

    def _status(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._captured.cdc("view", "status", "--json").splitlines()]

    def _compare(self, name: str, rejected: int) -> None:
        """`rejected`: the rows that the target can't hold, according to the status. They are missing, and no others: a
        warehouse has no infinite times."""
        found: list[TableResult] = []

        def is_equal() -> bool:
            found.append(compare_view(self._config, name, self._queries[name]))
            return found[-1].counts[DriftKind.MISSING] == found[-1].drift == rejected

        with suppress(AssertionError):  # the difference is told below
            eventually(is_equal, NOTICED_S_MAX)
        last, target = found[-1], self._config.views[name].target.type
        is_reported = last.counts[DriftKind.MISSING] == last.drift == rejected and (
            not rejected or target == "warehouse"
        )
        if len(found) > 1 and is_reported:
            self.noticed_later.append(name)
        self.rows[name] += last.source_rows
        self.rejected[name] += rejected
        if not is_reported:
            self.failures.append(f"{name} in {target}: {last.remark}; {rejected=} {list(last.lines(EXAMPLES_MAX))}")

    def _sink_said(self) -> str:
        return self._machine.said()[-2000:]

    def _tracebacks(self) -> list[str]:
        message = self._view.said() if self._view is not None else ""
        at = message.find("Traceback")
        found = [f"cdc view run: {message[max(0, at - 500) : at + 2500]}"] if at >= 0 else []
        return [*found, *self._machine.complaints()]

    # ---- faults of the views' process

    def kill_view(self) -> None:
        """Often a second time, soon after it was started again."""
        for _ in range(self.chance.choice((1, 1, 2))):
            assert self._view is not None
            self._view.kill()
            self._view = ViewProcess(self._captured, is_forked=False)
            if self.chance.random() < 0.5:
                self._rest(8)

    def freeze_view(self) -> None:
        """It loses its locks, and goes on while another process keeps the views."""
        assert self._view is not None
        frozen = self._view
        frozen.send(signal.SIGSTOP)
        self._terminate(f"application_name = '{VIEWS_CONNECTIONS}'")
        self._view = ViewProcess(self._captured, is_forked=False)
        self.live()
        frozen.send(signal.SIGCONT)
        self.live()
        frozen.kill()

    def rebuild_view(self) -> None:
        """Its filling is interrupted, too."""
        assert self._view is not None
        begun = [one["name"] for one in self._status() if one["state"] != "never run"]
        for name in self.chance.sample(begun, min(4, len(begun))):
            self._captured.cdc("view", "rebuild", name)
        self._rest(2)
        if self.chance.random() < 0.5:
            self._view.kill()
            self._view = ViewProcess(self._captured, is_forked=False)

    def change_view(self) -> None:
        """The text of some queries, so that these views are filled beside the rows that readers see."""
        assert self._view is not None
        self._view.kill()
        sections = self._captured.settings["views"]
        for name in self.chance.sample([*self._queries], 4):
            sections[name]["sql"] = f"{self._queries[name].text}\n-- {self.faults.total()}"
        self._view = ViewProcess(self._captured, is_forked=False)
        self._config = load_config(self._captured.config())
        self._rest(12)
        if self.chance.random() < 0.5:
            self._view.kill()
            self._view = ViewProcess(self._captured, is_forked=False)

    # ---- faults of the base, its sink and capture

    def cut_base(self) -> None:
        """Some of its connections, or all of the views'."""
        half = f"random() < 0.5 OR application_name <> '{VIEWS_CONNECTIONS}'"
        self._terminate(self.chance.choice((half, f"application_name = '{VIEWS_CONNECTIONS}'")))

    def _terminate(self, which: str) -> None:
        with psycopg.connect(self._base_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                f"AND pid <> pg_backend_pid() AND ({which})".encode()
            )

    def kill_sink(self) -> None:
        self._machine.kill()
        self._machine.start()

    def kill_sink_java(self) -> None:
        """The driver says what happened, and ends."""
        machine = self._machine
        jvms = eventually(machine.jvms, CATCH_UP_S_MAX, lambda: f"the job's Java runs\n{self._sink_said()}")
        machine.send(signal.SIGKILL, *jvms)
        eventually(lambda: machine.exit_code is not None, CATCH_UP_S_MAX, "the driver ends")
        machine.start()

    def kill_sink_worker(self) -> None:
        workers = eventually(self._machine.workers, CATCH_UP_S_MAX, lambda: f"Python workers run\n{self._sink_said()}")
        self._machine.send(signal.SIGKILL, self.chance.choice(workers))

    def replay(self) -> None:
        """The sink has lost its checkpoints: it applies all records of the topics again."""
        self._machine.kill()
        shutil.rmtree(self._captured.folder / "checkpoints", ignore_errors=True)
        self._machine.start()

    def drop_base(self) -> None:
        """Everything that sink and views have in the base is lost, and is made again from the topics."""
        assert self._view is not None
        base, prefix = self._config.sinks[BASE], self._config.topics.prefix
        assert isinstance(base, SqlConfig)
        eventually(lambda: holds_tables(base, prefix), CATCH_UP_S_MAX, lambda: f"a base\n{self._sink_said()}")
        self._machine.kill()
        if self.chance.random() < 0.5:
            self._view.kill()
            self._view = ViewProcess(self._captured, is_forked=False)
        drop_base(base, prefix)
        self.replay()

    def kill_capture(self) -> None:
        assert self._capture is not None
        self._capture.kill()
        self._capture = self._captured.start()

    # ---- faults of the servers

    def kill_server(self, service: str) -> None:
        self._servers.kill(service)
        self._rest(3)
        self._servers.restart(service)

    def _rest(self, seconds_max: float) -> None:
        """The clients go on meanwhile, unless the source is away."""
        until = time.monotonic() + self.chance.uniform(0, seconds_max)
        eventually(lambda: time.monotonic() > until)


def settings(seed: int, endpoints: Endpoints, base: str, folder: Path, *, has_warehouse: bool) -> dict[str, Any]:
    """Sections of the configuration. Which target a view has depends on the seed."""
    lake = {"catalog_uri": f"jdbc:sqlite:{folder}/lake/catalog.db", "location": f"{folder}/lake/tables"}
    targets = {
        "sql": {"type": "sql", "url": url_of(base)},
        "search": {"type": "search", "url": endpoints.opensearch_url},
        "cache": {"type": "cache", "url": endpoints.redis_url},
        "topic": {"type": "topic"},
        "warehouse": {"type": "warehouse", **lake},
    }
    kinds = [*TARGETS, "warehouse"] if has_warehouse else [*TARGETS]
    chance = random.Random(seed)
    folds = documented(folder)  # beside the configuration, from where `cdc view run` imports the functions
    return {
        "sinks": {BASE: {"type": "sql", "url": url_of(base), "shapes": BASE_SHAPES}},
        "views": {
            name: {
                "base": BASE,
                "sql": query.text,
                "key": query.key,
                **({"fold": folds[name]["fold"]} if name in folds else {}),
                "target": targets[kinds[(number + seed) % len(kinds)]],
                "keys_per_batch": chance.choice((3, 50)),
            }
            for number, (name, query) in enumerate(all_queries().items())
        },
        "spark": {
            "checkpoint_location": str(folder / "checkpoints"),
            "options": INTERPRETED,
            "warehouse_trigger_ms": 2000,
        },
    }


def all_queries() -> dict[str, Query]:
    """Every query of the tests and of the documentation; of a fold, that of its events."""
    return {**VIEWS, **recipes(), "accounts": Query(ACCOUNT_EVENTS, ["account_id"])}


def view_episode(
    server: PostgresServer,
    kafka: KafkaBroker,
    seed: int,
    folder: Path,
    faults: int | Sequence[str],
    *,
    has_warehouse: bool = False,
) -> dict[str, Any]:
    """Runs so many faults of the seed, or these. Returns how it went."""
    began, queries = time.monotonic(), all_queries()
    endpoints = server.stack.start("opensearch", "redis")
    name = f"v{seed}_{secrets.token_hex(3)}"
    tables = [str(kind.id) for kind in ALL]
    with (
        new_database(server) as base,
        new_database(server) as dsn,
        under_capture(server, kafka, dsn, name, folder, schema(), tables) as captured,
    ):
        sys.path.append(str(folder))  # for the comparison with a plain fold
        captured.settings = settings(seed, endpoints, base, folder, has_warehouse=has_warehouse)
        made = ViewEpisode(seed, server.stack, captured, queries)
        nemesis = made.nemesis()
        if isinstance(faults, int):
            faults = made.chance.choices([*nemesis], [weight for _, weight in nemesis.values()], k=faults)
        made.run(faults)
    with suppress(OpenSearchException), OpenSearch(endpoints.opensearch_url) as client:
        client.indices.delete(index=f"{name}_*")
    return {
        "seed": seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "transactions": made.transactions,
        "faults": dict(sorted(made.faults.items())),
        "rows_compared": sum(made.rows.values()),
        "rows": dict(sorted(made.rows.items())),
        "without_rows": sorted(name for name in queries if not made.rows[name]),
        "rejected": {name: count for name, count in made.rejected.items() if count},
        "noticed_later": made.noticed_later,
        "failures": made.failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--warehouse", action="store_true")
    asked, others = parser.parse_known_args()

    def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
        endpoints = stack.start("postgres", "kafka")
        server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
        kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
        folder.mkdir(parents=True)
        reported = view_episode(server, kafka, seed, folder, asked.faults, has_warehouse=asked.warehouse)
        if not reported["failures"]:
            shutil.rmtree(folder)
        return reported

    return run_episodes(__doc__, "view-kill-campaign", episode, lambda reported: not reported["failures"], others)


if __name__ == "__main__":
    sys.exit(main())
