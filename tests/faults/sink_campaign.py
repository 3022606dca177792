"""Sinks under kill -9, frozen processes and outages of everything that they consist of and rely on.

    python -m tests.faults.sink_campaign --minutes 60 --stores search cache sql warehouse

It is made of episodes, each a seed with topics and stores of its own, and with batches of some length. Small and large
transactions are published while `cdc sink run` runs and the faults hit Spark's Python workers (some in the middle of a
piece), their daemon, the processes that plan batches, the JVM, the driver, Redis, OpenSearch, PostgreSQL or Kafka; in
every third episode Spark has executors, which are processes, too, and are hit. A driver that ended is started again.
Checked are, meanwhile: that no store lacks what its applied LSN covers, that this LSN never goes back, that no job ends
without a reason and a next step; and at the end every row and version of every store. Each episode is a line in
`episodes.jsonl`; a run that is started again goes on behind the last one. `--seed 17` repeats one;
`--kinds kill_jvm kill_driver` chooses only these faults. At the end a table
shows of this run how often each fault came, the kills, and the complaints.
"""

import argparse
import random
import secrets
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pyspark
from confluent_kafka import KafkaException
from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchException
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

import spark_jobs
from cdc.model.errors import StackError
from cdc.model.events import TableSchema
from sinks.contract import StoredRow
from sinks.errors import SinkError
from spark_jobs.class_archive import JAR_SETS
from spark_jobs.jars.resolver import resolve_sets
from tests.conftest import INTERPRETED
from tests.faults.episodes import run_episodes
from tests.support.captured import frozen
from tests.support.feed import Feed
from tests.support.sink_job import write_config
from tests.support.sink_machine import Machine, Positions
from tests.support.sink_workload import COMPLAINTS_MAX, SinkWorkload
from tests.support.stores import sinks_section, stored_rows
from tests.support.waiting import eventually
from watershed.devstack.endpoints import Endpoints
from watershed.devstack.processes import Process
from watershed.devstack.stack import Stack

STORES: Final = ("search", "cache", "sql", "warehouse")
SERVERS: Final = {"search": "opensearch", "cache": "redis", "sql": "postgres"}
LIVE_BATCHES_S: Final = (1, 1, 4, 30)  # of these an episode has one: short ones end as often as faults happen
EXECUTORS_EVERY: Final = 3  # episodes
# Two, each with as many slots as the queries need while the other one starts again.
EXECUTORS: Final = {"spark.master": "local-cluster[2,6,1024]", "spark.executor.memory": "512m"}
FAULTS: Final = 12  # of an episode, unless --faults says another number
CATCH_UP_SHARE: Final = 0.2  # how often the stores catch up between two faults
APPLIED_S_MAX: Final = 240.0
STALLED_S_MAX: Final = 60.0  # without any progress; `eventually` is patient, and makes it four times as long
APPLIED_S_LIMIT: Final = 1200.0
ENDED_S_MAX: Final = 60.0
FROZEN_S: Final = (0.5, 6.0)
BUSY_S_MAX: Final = 10.0
KILLS: Final = ("kill", "replace")
ANOTHER_JOB: Final = "another job writes to this store now"
JVM_ENDED: Final = "Spark"  # either its Java process ended by itself, or Spark did not start


class SinkEpisode:
    """One seed: two machines on which the same sinks may run, and what happens to them."""

    def __init__(self, seed: int, stack: Stack, endpoints: Endpoints, folder: Path, stores: Sequence[str]) -> None:
        self.chance = random.Random(seed)
        self.faults: list[str] = []
        self.complaints: list[str] = []
        self._log = folder / "faults.log"
        self._refills = Counter[str]()  # how often a store may have been filled again
        self._stack = stack
        self._stores = stores
        self._prefix = f"k{seed}_{secrets.token_hex(3)}"
        addresses = endpoints.addresses  # of the servers that the stores need
        self._opensearch = addresses.get("opensearch", "")
        self._work = set(executor_folders())
        section = sinks_section(folder, self._opensearch, addresses.get("redis", ""))
        if "sql" in stores:
            section["sql"] = {"type": "sql", "url": new_sql_store(endpoints, self._prefix)}
        sinks = {store: section[store] for store in stores}
        live_s = random.Random(f"batches {seed}").choice(LIVE_BATCHES_S)
        self._has_executors = seed % EXECUTORS_EVERY == 0
        options = INTERPRETED | (executors(stores) if self._has_executors else {})
        brokers = endpoints.bootstrap_servers
        # Each with checkpoints of its own: the lock beside them keeps two jobs of one machine apart.
        self._machines: list[Machine] = []
        for name in ("first", "second"):
            (folder / name).mkdir(parents=True)
            config = write_config(folder / name, brokers, self._prefix, sinks, live_batch_s=live_s, options=options)
            self._machines.append(Machine(config, [*sinks]))
        self._running = 0  # which machine's job keeps the stores in step
        self._feed = Feed(brokers, self._prefix)
        self._workload = SinkWorkload(self._feed, seed)
        self._positions = Positions(brokers, f"{self._prefix}.progress")

    @property
    def machine(self) -> Machine:
        return self._machines[self._running]

    def nemesis(self) -> dict[str, tuple[Callable[[], None], int]]:
        """Name → the fault, and how often it is chosen."""
        faults: dict[str, tuple[Callable[[], None], int]] = {
            "kill_worker": (self.kill_worker, 8),
            "kill_workers": (self.kill_workers, 5),
            "kill_daemon": (self.kill_daemon, 5),
            "kill_planner": (self.kill_planner, 5),
            "kill_helpers": (self.kill_helpers, 2),
            "kill_fork_server": (self.kill_fork_server, 2),
            "freeze_worker": (self.freeze_worker, 4),
            "freeze_in_piece": (self.freeze_in_piece, 5),
            "kill_in_piece": (self.kill_in_piece, 5),
            "kill_beside_frozen": (self.kill_beside_frozen, 4),
            "kill_jvm": (self.kill_jvm, 4),
            "kill_driver": (self.kill_driver, 4),
            "kill_all": (self.kill_all, 4),
            "stop_job": (self.stop_job, 1),
            "freeze_driver": (self.freeze_driver, 3),
            "freeze_all": (self.freeze_all, 2),
            "replace_frozen": (self.replace_frozen, 3),
            "kill_kafka": (self.kill_kafka, 2),
            "freeze_kafka": (self.freeze_kafka, 2),
        }
        if self._has_executors:
            faults["kill_executor"] = (self.kill_executor, 8)
            faults["freeze_executor"] = (self.freeze_executor, 4)
        for store in self._stores:
            if store in SERVERS:
                faults[f"kill_{SERVERS[store]}"] = (partial(self.kill_server, SERVERS[store]), 3)
                faults[f"freeze_{SERVERS[store]}"] = (partial(self.freeze_server, SERVERS[store]), 2)
        return faults

    def run(self, count: int = FAULTS, kinds: Collection[str] = ()) -> dict[str, Any]:
        """So many faults of the seed, of these kinds if any are named; how it went."""
        began = time.monotonic()
        nemesis = {name: fault for name, fault in self.nemesis().items() if not kinds or name in kinds}
        names = self.chance.choices([*nemesis], [weight for _, weight in nemesis.values()], k=count)
        try:
            with self._workload:
                self.machine.start()
                for name in names:
                    self.live()
                    self._begin(name)
                    nemesis[name][0]()
                    self.sample()
                self.live()
            self.settle()
        except (AssertionError, KafkaException, StackError) as error:
            self.complaints.append(f"after {self.faults[-3:]}: {type(error).__name__}: {error}")
        finally:
            for machine in self._machines:
                machine.kill()
            self._positions.close()
            self._delete_indexes()
            for left in set(executor_folders()) - self._work:
                shutil.rmtree(left, ignore_errors=True)
        self.complaints += self._positions.complaints
        self.complaints += [reported for machine in self._machines for reported in machine.complaints()]
        kinds = {name: self.faults.count(name) for name in sorted({*self.faults})}
        return {
            "transactions": self._workload.committed,
            "kills": sum(name.startswith(KILLS) for name in self.faults),
            "faults": kinds,
            "seconds": round(time.monotonic() - began),
            "complaints": self.complaints,
        }

    def _delete_indexes(self) -> None:
        """A search server that is killed in a later episode would replay the translogs of these before it is ready."""
        if not self._opensearch:
            return
        with suppress(OpenSearchException), OpenSearch(self._opensearch) as client:
            client.indices.delete(index=f"{self._prefix}.*")

    def _begin(self, fault: str) -> None:
        self.faults.append(fault)
        for store in self._stores:
            # A cache is filled again after each restart of Redis; a job may be killed before it publishes its first
            # position.
            was_restarted = store == "cache" and fault == "kill_redis"
            self._refills[store] += was_restarted or self._positions.generation(store) == 0
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat()} {fault}; LSN {self._feed.lsn}\n")

    # ---- between the faults

    def live(self) -> None:
        """Some transactions are published, at times until the stores have caught up; the job runs afterwards."""
        self._workload.await_transactions(self.chance.randrange(1, 60))
        self.go_on()
        if self.chance.random() < CATCH_UP_SHARE:
            self.catch_up(self._workload.final_lsn())
        self.sample()

    def go_on(self) -> None:
        """A job that ended by itself is a complaint, and is started again."""
        if (code := self.machine.exit_code) is not None:
            message = self.machine.said()[-1500:]
            self.complaints.append(f"after {self.faults[-1:]} the job ended with exit code {code}: {message}")
            self.machine.start()

    def catch_up(self, lsn: int) -> None:
        """Every store has applied the LSN, by the job that runs."""

        def applied() -> bool:
            self.go_on()
            return all(self._positions.applied(store) >= lsn for store in self._stores)

        def seen() -> str:
            reached = {store: self._positions.applied(store) for store in self._stores}
            return f"LSN {lsn} applied after {self.faults[-1:]}; seen: {reached}\n{self.machine.said()[-3000:]}"

        ended, reached = time.monotonic() + APPLIED_S_LIMIT, self._reached()
        while not self._is_soon(applied):
            before, reached = reached, self._reached()
            assert before != reached, f"no progress any more: {seen()}"
            assert time.monotonic() < ended, f"{APPLIED_S_LIMIT:.0f} s were not enough: {seen()}"

    @staticmethod
    def _is_soon(condition: Callable[[], bool]) -> bool:
        with suppress(AssertionError):
            eventually(condition, STALLED_S_MAX)
            return True
        return False

    def _reached(self) -> list[object]:
        """What changes while the stores are filled, however slow the machine is."""
        records = [self._positions.newest(store) for store in self._stores]
        return [record and (record.generation, record.applied_lsn, record.end_offsets) for record in records]

    def sample(self) -> None:
        """One table of each store shows what the store is said to have applied."""
        for store in self._stores:
            table = self.chance.choice([*self._workload.histories])
            lsn = self._positions.applied(store)
            if lsn == 0:  # a reader would create the catalog before its job does
                continue
            with suppress(SinkError):  # the table may not be prepared yet
                shown = self._machines[0].rows(store, self._feed.schemas[table])
                found = self._workload.complaints(table, shown, lsn)
                self.complaints += [f"{store}, {table}, after {self.faults[-3:]}: {reported}" for reported in found]

    def settle(self) -> None:
        """Nothing is published any more: every store shows the last state of every key."""
        self._workload.check()
        self.catch_up(self._workload.final_lsn())
        for store in self._stores:
            for table, history in self._workload.histories.items():
                found = [*history.differences(self._shown(store, self._feed.schemas[table]))]
                self.complaints += [f"at the end, {store}, {table}: {reported}" for reported in found[:COMPLAINTS_MAX]]
            generation, expected = self._positions.generation(store), 1 + self._refills[store]
            if generation > expected:
                self.complaints.append(f"{store} is in generation {generation}; at most {expected} have a reason")
        code, took_s = self.machine.terminate()
        if code != 0:
            self.complaints.append(f"told to stop, the job ended with exit code {code} after {took_s:.0f} s")

    def _shown(self, store: str, schema: TableSchema) -> list[StoredRow]:
        return stored_rows(self.machine.config, store, schema)

    # ---- faults of the job

    def kill_worker(self) -> None:
        self.machine.send(signal.SIGKILL, self.chance.choice(self._await_workers()))

    def kill_workers(self) -> None:
        self.machine.send(signal.SIGKILL, *self._await_workers())

    def kill_daemon(self) -> None:
        self._await_workers()
        self.machine.send(signal.SIGKILL, *self.machine.daemons())

    def kill_planner(self) -> None:
        """The process that plans the batches of a sink."""
        self.machine.send(signal.SIGKILL, self.chance.choice(self._await(self.machine.planners, "planners")))

    def kill_helpers(self) -> None:
        """The planners of all sinks, and Spark's other processes with Python's code."""
        self._await(self.machine.planners, "planners")
        self.machine.send(signal.SIGKILL, *self.machine.helpers())

    def kill_fork_server(self) -> None:
        """Alone, or with a planner, which then needs a new interpreter."""
        servers = self._await(self.machine.fork_servers, "the fork server")
        planners = self._await(self.machine.planners, "planners") if self.chance.random() < 0.5 else []
        self.machine.send(signal.SIGKILL, *servers, *planners)

    def freeze_worker(self) -> None:
        """Some, perhaps in the middle of a piece; the other tasks of the batch go on."""
        workers = self._await_workers()
        stopped = self.chance.sample(workers, self.chance.randint(1, len(workers)))
        self.machine.send(signal.SIGSTOP, *stopped)
        self._workload.rest(self.chance.uniform(*FROZEN_S))
        self.machine.send(signal.SIGCONT, *stopped)

    def freeze_in_piece(self) -> None:
        """A worker stands still while it computes, in the middle of a piece."""
        if (stopped := self._busy_worker()) is not None:
            self.machine.send(signal.SIGSTOP, stopped)
            self._workload.rest(self.chance.uniform(*FROZEN_S))
            self.machine.send(signal.SIGCONT, stopped)

    def kill_in_piece(self) -> None:
        if (worker := self._busy_worker()) is not None:
            self.machine.send(signal.SIGKILL, worker)

    def _busy_worker(self) -> Process | None:
        self._await_workers()
        self._workload.ask_for_large()
        busy = self.machine.await_busy_worker(BUSY_S_MAX)
        if busy is None:  # of a job that ends, or on a machine without a processor to spare
            self.faults[-1] = "no_busy_worker"
        return busy

    def kill_executor(self) -> None:
        """Spark starts another one, and tries its tasks again; its Python workers end by themselves, or write on."""
        self.machine.send(signal.SIGKILL, self.chance.choice(self._await(self.machine.executors, "executors")))

    def freeze_executor(self) -> None:
        """Its Python workers go on, as far as they can without it."""
        stopped = self.chance.choice(self._await(self.machine.executors, "executors"))
        self.machine.send(signal.SIGSTOP, stopped)
        self._workload.rest(self.chance.uniform(*FROZEN_S))
        self.machine.send(signal.SIGCONT, stopped)

    def kill_beside_frozen(self) -> None:
        """The workers of a job that was killed write on when its successor has taken over."""
        stopped = self._await_workers()
        self.machine.send(signal.SIGSTOP, *stopped)
        self.machine.send(signal.SIGKILL, *self.machine.jvms(), self.machine.driver())
        eventually(lambda: self.machine.exit_code is not None, ENDED_S_MAX)
        self.machine.start()
        if self.chance.random() < 0.7:
            self.machine.await_said("sink starts")
        self._workload.rest(self.chance.uniform(0, 4))
        self.machine.send(signal.SIGCONT, *stopped)

    def kill_jvm(self) -> None:
        """The driver says what happened, and ends."""
        eventually(self._jvms, ENDED_S_MAX, "the JVM runs")
        self.machine.send(signal.SIGKILL, *self._jvms())
        self._await_end(self.machine, JVM_ENDED)
        self.machine.start()

    def kill_driver(self) -> None:
        """The JVM and its tasks end soon after; the next driver does not wait for that."""
        self.machine.send(signal.SIGKILL, self.machine.driver())
        eventually(lambda: self.machine.exit_code is not None, ENDED_S_MAX)
        self.machine.start()

    def kill_all(self) -> None:
        self.machine.kill()
        self.machine.start()

    def stop_job(self) -> None:
        self.machine.await_said("sink starts")
        code, took_s = self.machine.terminate()
        if code != 0 or took_s > 15:
            self.complaints.append(f"told to stop, the job ended with exit code {code} after {took_s:.0f} s")
        self.machine.start()

    def freeze_driver(self) -> None:
        self._freeze(whole=False)

    def freeze_all(self) -> None:
        self._freeze(whole=True)

    def _freeze(self, *, whole: bool) -> None:
        stopped = self.machine.family() if whole else [self.machine.driver()]
        self.machine.send(signal.SIGSTOP, *stopped)
        self._workload.rest(self.chance.uniform(*FROZEN_S))
        self.machine.send(signal.SIGCONT, *stopped)

    def replace_frozen(self) -> None:
        """The later job goes on; the earlier one stops with a sentence when it is thawed."""
        frozen_one = self.machine
        if self.chance.random() < 0.8:
            frozen_one.await_said("sink starts")
        stopped = frozen_one.family() if self.chance.random() < 0.5 else [frozen_one.driver()]
        before = {store: self._positions.job(store) for store in self._stores}
        frozen_one.send(signal.SIGSTOP, *stopped)
        self._running = 1 - self._running
        self.machine.start()

        def taken_over() -> bool:
            self.go_on()
            return all(self._positions.job(store) > before[store] for store in self._stores)

        eventually(taken_over, APPLIED_S_MAX, lambda: f"the later job publishes\n{self.machine.said()[-3000:]}")
        self._workload.rest(self.chance.uniform(0, 2))
        frozen_one.send(signal.SIGCONT, *stopped)
        if frozen_one.has_said("sink starts"):
            self._await_end(frozen_one, ANOTHER_JOB)
        else:  # it had not begun: it would take over from the later one in turn
            frozen_one.kill()

    # ---- faults of the servers

    def kill_kafka(self) -> None:
        with self._workload.paused():
            self._stack.kill("kafka")
            self._workload.rest(self.chance.uniform(0, 3))
            self._stack.restart("kafka")

    def freeze_kafka(self) -> None:
        with self._workload.paused():
            self.freeze_server("kafka")

    def kill_server(self, service: str) -> None:
        self._stack.kill(service)
        self._workload.rest(self.chance.uniform(0, 5))
        self._stack.restart(service)

    def freeze_server(self, service: str) -> None:
        with frozen(self._stack, service):
            self._workload.rest(self.chance.uniform(*FROZEN_S))

    # ---- waiting for the job

    def _jvms(self) -> list[Any]:
        return self.machine.jvms()

    def _await_workers(self) -> list[Any]:
        return self._await(self.machine.workers, "Python workers")

    def _await(self, found: Callable[[], list[Any]], what: str) -> list[Any]:
        """Processes of the job, as soon as there are any."""

        def processes() -> list[Any]:
            self.go_on()
            return found()

        return eventually(processes, APPLIED_S_MAX, lambda: f"{what} run\n{self.machine.said()[-3000:]}")

    def _await_end(self, machine: Machine, because: str) -> None:
        """The job ends by itself, with this reason and a next step."""
        name = self.faults[-1]
        try:
            eventually(lambda: machine.exit_code is not None, ENDED_S_MAX)
        except AssertionError:
            self.complaints.append(f"{name}: the job goes on after {ENDED_S_MAX:.0f} s\n{machine.said()[-1500:]}")
            machine.kill()
            return
        message = machine.said()
        if machine.exit_code != 1 or because not in message or "next" not in message:
            self.complaints.append(f"{name}: the job ended with {machine.exit_code}:\n{message[-1500:]}")


def executors(stores: Sequence[str]) -> dict[str, str]:
    """The options with which Spark's tasks run in processes of their own."""
    options = EXECUTORS | {"spark.executorEnv.PYTHONPATH": str(Path(spark_jobs.__file__).parents[1])}
    if "warehouse" in stores:  # its statements run there, too
        jars = [jar for found in resolve_sets(JAR_SETS).values() for jar in found]
        options["spark.executor.extraClassPath"] = ":".join(map(str, jars))
    return options


def executor_folders() -> list[Path]:
    """Where Spark's local cluster puts the folders of its applications, whatever is configured."""
    return [*Path(pyspark.__file__).parent.glob("work/app-*")]


def table_of(episodes: Sequence[Mapping[str, Any]]) -> str:
    """What the campaign did, and what it found."""
    faults = Counter[str]()
    for reported in episodes:
        faults += reported.get("faults", {})
    totals = {
        "episodes": len(episodes),
        "transactions": sum(reported.get("transactions", 0) for reported in episodes),
        "faults": faults.total(),
        "kills": sum(count for name, count in faults.items() if name.startswith(KILLS)),
        "complaints": sum(len(reported.get("complaints", ())) for reported in episodes),
    }
    return "\n".join(f"{name:24} {count:6}" for name, count in [*faults.most_common(), *totals.items()])


def new_sql_store(endpoints: Endpoints, name: str) -> str:
    """Creates a database; its URL."""
    owner = conninfo_to_dict(endpoints.dsn)
    with psycopg.connect(endpoints.superuser_dsn or "", autocommit=True) as connection:
        created = sql.SQL("CREATE DATABASE {} OWNER {}").format(
            sql.Identifier(name), sql.Identifier(str(owner["user"]))
        )
        connection.execute(created)
    return f"postgresql://{owner['user']}@{owner['host']}:{owner['port']}/{name}"


def sink_episode(
    stores: Sequence[str], faults: int, kinds: Collection[str], seed: int, stack: Stack, folder: Path
) -> dict[str, Any]:
    """Run one, and say how it went. Its folder stays when something is wrong."""
    endpoints = stack.start("kafka", *(SERVERS[store] for store in stores if store in SERVERS))
    folder.mkdir(parents=True, exist_ok=True)
    reported = SinkEpisode(seed, stack, endpoints, folder, stores).run(faults, kinds)
    if not reported["complaints"]:
        shutil.rmtree(folder)
    return {"seed": seed, **reported}


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--stores", nargs="+", default=STORES)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--kinds", nargs="+", default=(), help="of faults: the names in the table, with their weights")
    asked, others = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that processes and servers are ended
    episodes: list[dict[str, Any]] = []

    def episode(seed: int, stack: Stack, folder: Path) -> dict[str, Any]:
        episodes.append(sink_episode(asked.stores, asked.faults, asked.kinds, seed, stack, folder))
        return episodes[-1]

    try:
        return run_episodes(__doc__, "sink-campaign", episode, lambda reported: not reported["complaints"], others)
    finally:
        print(table_of(episodes), flush=True)


if __name__ == "__main__":
    sys.exit(main())
