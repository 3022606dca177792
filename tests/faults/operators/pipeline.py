"""Capture and the sinks' job as an operator runs them, and what operators, brokers and stores do to them: the rules."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.faults.operators.mutants import MUTANT
from tests.faults.operators.source import TABLES, Source
from tests.faults.operators.stores import Copy, Store
from tests.support.captured import Captured
from tests.support.forked import CDC, run
from tests.support.http_server import HttpServer
from tests.support.kafka_logs import data_of, lose_last
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually
from watershed.devstack.stack import Stack

PROCESS: Final = "tests.faults.operators.process"  # `cdc`, with the episode's changes
COMMAND_S: Final = 60.0
GONE_S: Final = 30.0
ANSWER_S: Final = 10.0
ATTEMPTS: Final = 10
REPLICA_BEHIND_S: Final = (1.0, 8.0)
PARTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "whole": {},
    "where": {"where": "id % 2 = 0"},
    "range": {"after": ("5",), "up_to": ("20",)},
}


class BrokenCommandError(Exception):
    """A command failed with a traceback."""


def rest(seconds: float) -> None:
    """Lets everything else go on for this long."""
    threading.Event().wait(seconds)


class Pipeline:
    """One capture process and one job, or none of them at the moment."""

    def __init__(
        self,
        captured: Captured,
        source: Source,
        stores: dict[str, Store],
        ports: tuple[int, int],
        servers: Stack,
        chance: random.Random,
    ) -> None:
        self.captured = captured
        self.source = source
        self.stores = stores
        self.capture_http, self.sink_http = (HttpServer(port) for port in ports)
        self._servers = servers
        self.chance = chance
        self.job: SinkJob | None = None
        self.sinks_began_s = 0.0
        self.is_blind: set[str] = set()  # stores that were changed by others, of which nobody can know yet
        self.excluded: dict[str, list[str]] = {store: [] for store in stores}
        self._copies: dict[str, list[Copy]] = {store: [] for store in stores}
        self._admin = AdminClient({"bootstrap.servers": captured.bootstrap_servers})
        self._columns = 0
        self._logs: list[SinkJob] = []

    # ---- processes

    @property
    def captures(self) -> bool:
        return bool(self.captured._processes) and self.captured._processes[-1].exit_code is None

    def start_capture(self) -> bool:
        if self.captures:
            return False
        self.captured.start(module=PROCESS if os.environ.get(MUTANT) else CDC)
        return True

    def kill_capture(self) -> bool:
        if not self.captures:
            return False
        self.captured.running().kill()
        return True

    def freeze_capture(self) -> bool:
        if not self.captures:
            return False
        process = self.captured.running()
        process.signal(signal.SIGSTOP)
        rest(self.chance.uniform(0.5, 4.0))
        process.signal(signal.SIGCONT)
        return True

    def start_sinks(self) -> bool:
        if self.job is not None and self.job.process.poll() is None:
            return False
        self._write()
        self.job = SinkJob(self.captured.config(), *self.stores, log_level="info", module=PROCESS).__enter__()
        self._logs.append(self.job)
        self.sinks_began_s = time.monotonic()
        return True

    def kill_sinks(self) -> bool:
        if self.job is None or self.job.process.poll() is not None:
            return False
        self.job.kill()
        return True

    def stop_sinks(self) -> bool:
        if self.job is None or self.job.process.poll() is not None:
            return False
        self.job.terminate()
        return True

    def restart_all(self) -> None:
        self.kill_capture()
        self.kill_sinks()
        for start in self.chance.sample((self.start_capture, self.start_sinks), 2):
            start()

    def end(self) -> None:
        self.kill_sinks()
        self.captured.end()

    def said(self) -> str:
        logs = [
            *(process.said() for process in self.captured._processes[-2:]),
            *(job.said() for job in self._logs[-2:]),
        ]
        return "\n-----\n".join(log[-3000:] for log in logs)

    def _write(self) -> Path:
        for store in self.stores:
            self.captured.settings["sinks"][store]["exclude_tables"] = self.excluded[store]
        return self.captured.config()

    # ---- what operators say

    def signal_snapshot(self) -> bool:
        """Of all rows, some, or a range of keys."""
        self._read(self._table(), self.chance.choice([*PARTS]))
        return True

    def read_part_of_stopped_table(self) -> bool:
        """A table is stopped, and started again; while all its rows are owed, an operator asks for some of them."""
        if not self.captures:
            return False
        tables = (self.chance.choice([*self.captured.tables]),)
        self.captured.ask("stop_table", ANSWER_S, tables=tables)
        rest(self.chance.uniform(0.5, 4.0))
        self.captured.ask("start_table", ANSWER_S, tables=tables)
        part = PARTS[self.chance.choice(("where", "range"))]
        for _ in range(ATTEMPTS):  # until capture publishes the table
            if "not captured" not in self.captured.ask("snapshot", ANSWER_S, tables=tables, **part).message:
                break
        return True

    def _read(self, table: str, part: str) -> None:
        self.captured.signal("snapshot", tables=(f"public.{table}",), **PARTS[part])

    def alter_snapshot(self) -> bool:
        self.captured.signal(self.chance.choice(("pause", "resume", "cancel")), tables=(f"public.{self._table()}",))
        return True

    def heal(self) -> bool:
        self.captured.signal("heal")
        return True

    def stop_table(self) -> bool:
        self.captured.signal("stop_table", tables=(f"public.{self._table()}",))
        return True

    def start_table(self) -> bool:
        self.captured.signal("start_table", tables=(f"public.{self._table()}",))
        return True

    def remove_or_add_table(self) -> None:
        """And starts capture again, with the other configuration."""
        names = {f"public.{self._table()}"}
        self.captured.tables = sorted({*self.captured.tables} ^ names) or [f"public.{name}" for name in TABLES]
        self._restart_capture()

    def remove_table_with_topic(self) -> None:
        """As documented: removes a table, and deletes its topic, which nobody needs; it is added again later."""
        table = self._table()
        self.captured.tables = [f"public.{name}" for name in TABLES if name != table]
        self._restart_capture()
        with suppress(AssertionError):
            self.captured.running().await_said("no longer published", 5.0)
        self.kill_capture()
        self._delete(f"public.{table}")
        self.captured.tables = [f"public.{name}" for name in TABLES]
        self.start_capture()

    def tear_down(self) -> None:
        """`cdc teardown --topics`, then everything is set up again; the stores stay."""
        self.kill_sinks()
        self.kill_capture()
        self._cdc("teardown", "--topics", "--yes")
        self.start_capture()
        self.start_sinks()

    def exclude_or_include_table(self) -> None:
        """One sink holds a table no longer, or again."""
        store, name = self._store(), f"public.{self._table()}"
        self.excluded[store] = [] if self.excluded[store] else [name]
        self.kill_sinks()
        self.start_sinks()

    def rebuild(self) -> None:
        action = self.chance.choice(((), (), ("--rollback",), ("--drop-old",), ("--cancel",)))
        self._cdc("rebuild", "--sink", self._store(), "--no-wait", *action)

    def repair(self) -> None:
        self._cdc("repair", "--sink", self._store(), "--sink-timeout", "10")

    def replay_letters(self) -> None:
        self._cdc("dlq", "replay", "mirror", "--all")

    # ---- the source

    def write_rejected_row(self) -> None:
        self.source.write(rejected=True)

    def truncate(self) -> None:
        self.source.truncate()

    def add_column(self) -> bool:
        self._columns += 1
        self.source.add_column(f"c{self._columns}")
        return True

    # ---- brokers

    def delete_topic(self) -> bool:
        return self._delete(f"public.{self._table()}")

    def add_partition(self) -> bool:
        topic = f"{self.captured.name}.public.{self._table()}"
        with suppress(KafkaException):
            count = len(self._admin.list_topics(topic, timeout=10).topics[topic].partitions)
            if 0 < count < 4:
                self._admin.create_partitions([NewPartitions(topic, count + 1)])[topic].result(20)
                return True
        return False

    def delete_records(self) -> bool:
        topic = f"{self.captured.name}.public.{self._table()}"
        with suppress(KafkaException):
            of = TopicPartition(topic, 0, self.chance.randint(1, 60))
            self._admin.delete_records([of])[of].result(20)
            return True
        return False

    def freeze_kafka(self) -> None:
        os.kill(self._servers.pid("kafka"), signal.SIGSTOP)
        rest(self.chance.uniform(0.5, 12.0))
        os.kill(self._servers.pid("kafka"), signal.SIGCONT)

    def restart_kafka(self) -> None:
        self._servers.kill("kafka")
        self._servers.restart("kafka")

    def lose_last_records(self) -> None:
        """As after a power failure, or the election of a leader that was behind."""
        topic = f"{self.captured.name}.public.{self._table()}"
        self._servers.kill("kafka")
        with suppress(FileNotFoundError):
            lose_last(data_of(self._servers), (topic, 0), self.chance.choice((1, 2, 5, 20)))
        self._servers.restart("kafka")

    # ---- stores

    def copy_store(self) -> None:
        store = self._store()
        self._copies[store].append(self.stores[store].copied())

    def copy_stores(self) -> None:
        for name, store in self.stores.items():
            self._copies[name].append(store.copied())

    def restore_store(self) -> bool:
        store = self._store()
        if not self._copies[store]:
            return False
        self._change(store, lambda: self.stores[store].restore(self.chance.choice(self._copies[store])))
        return True

    def fail_over_store(self) -> None:
        """A replica takes over that lacks the last commits."""
        store = self._store()
        replica = self.stores[store].copied()
        rest(self.chance.uniform(*REPLICA_BEHIND_S))
        self._change(store, lambda: self.stores[store].restore(replica))

    def empty_store(self) -> None:
        store = self._store()
        self._change(store, self.stores[store].empty)

    def _change(self, store: str, act: Callable[[], None]) -> None:
        self.is_blind.add(store)
        act()

    # ---- parts

    def _store(self) -> str:
        return self.chance.choice([*self.stores])

    def _table(self) -> str:
        return self.chance.choice(TABLES)

    def _restart_capture(self) -> None:
        self.kill_capture()
        self.start_capture()

    def _delete(self, table: str) -> bool:
        topic = f"{self.captured.name}.{table}"
        try:
            self._admin.delete_topics([topic])[topic].result(20)
        except KafkaException:
            return False
        eventually(lambda: topic not in self.captured.topics(), GONE_S, f"{topic} is gone")
        return True

    def _cdc(self, *words: str) -> int:
        """Runs a command; it may refuse, but must not fail with a traceback."""
        done = run([*words, "--config", str(self._write())], deadline_s=COMMAND_S)
        if "Traceback" in done.stderr:
            raise BrokenCommandError(f"cdc {' '.join(words)}: {done.stderr[-1500:]}")
        return done.returncode


WEIGHTS: Final = {
    "start_capture": 1,
    "kill_capture": 2,
    "freeze_capture": 1,
    "start_sinks": 1,
    "kill_sinks": 2,
    "stop_sinks": 1,
    "restart_all": 1,
    "signal_snapshot": 3,
    "read_part_of_stopped_table": 2,
    "alter_snapshot": 2,
    "heal": 2,
    "stop_table": 1,
    "start_table": 1,
    "remove_or_add_table": 1,
    "remove_table_with_topic": 2,
    "tear_down": 1,
    "exclude_or_include_table": 1,
    "rebuild": 2,
    "repair": 1,
    "replay_letters": 1,
    "write_rejected_row": 1,
    "truncate": 2,
    "add_column": 1,
    "delete_topic": 2,
    "add_partition": 2,
    "delete_records": 1,
    "freeze_kafka": 1,
    "restart_kafka": 1,
    "lose_last_records": 1,
    "copy_store": 2,
    "restore_store": 2,
    "fail_over_store": 3,
    "empty_store": 1,
}
ALWAYS: Final = ("start_capture", "start_sinks", "heal", "start_table")
SHARE: Final = 0.5  # of the other rules that a seed uses: a few of them meet more often, and others leave them time
