"""How long `/readyz` takes to turn red after each fault, and green again after its end, as a table.

    python -m tests.faults.readiness_campaign --folder .watershed/readiness-campaign

The server of the process that answers for the broken part is asked four times a second at least; a process that does
not answer within a second is red, as it is for an orchestrator. The exit code is 1 if one took longer than RED_S_MAX to
turn red.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from tests.conftest import KafkaBroker, PostgresServer
from tests.faults.episodes import servers
from tests.support.captured import Captured
from tests.support.checked import execute
from tests.support.drift import Background
from tests.support.http_server import RED_S_MAX, HttpServer
from tests.support.pipeline import ITEMS, Pipeline, pipeline_of
from tests.support.waiting import eventually
from watershed.devstack.processes import identify, send, with_descendants
from watershed.devstack.stack import Stack

ANSWER_S: Final = 1.0
SEEN_S_MAX: Final = 60.0
ROWS_OF_WAL: Final = 1_000_000  # about 70 MB
SEGMENT_MB: Final = 16


@dataclass(frozen=True)
class Fault:
    """A fault, its end, and the process that must report it, with its words."""

    name: str
    server: str  # capture or sink
    begin: Callable[[], None]
    end: Callable[[], None]
    says: str


@dataclass(frozen=True)
class Measured:
    name: str
    server: str
    red_s: float
    reason: str
    green_s: float


class Load(Background):
    """Changes all the time: without any, nothing stands still."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            try:
                with psycopg.connect(self._dsn, autocommit=True, connect_timeout=2) as connection:
                    while not self._ended.wait(0.1):
                        connection.execute("UPDATE items SET name = 'load ' || random() WHERE id <= 20")
            except psycopg.OperationalError:
                continue  # the source was stopped


def reasons(server: HttpServer) -> list[str]:
    """Why it is not ready; empty if it is."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/readyz", timeout=ANSWER_S):
            return []
    except urllib.error.HTTPError as refused:
        return [f"{one['part']} {one['name']}: {one['message']}" for one in json.loads(refused.read())["reasons"]]
    except OSError as error:
        return [f"no answer: {error}"]


def measure(server: HttpServer, fault: Fault) -> Measured:
    """Begins the fault, waits for red, ends it, waits for green."""
    eventually(lambda: not reasons(server), SEEN_S_MAX, lambda: f"ready before {fault.name}: {reasons(server)}")
    fault.begin()
    began = time.monotonic()
    message: list[str] = []

    def is_red() -> bool:
        message[:] = [reason for reason in reasons(server) if fault.says in reason]
        return bool(message)

    eventually(is_red, SEEN_S_MAX, lambda: f"{fault.name}: red because of {fault.says!r}: {reasons(server)}")
    red_s = time.monotonic() - began
    fault.end()
    ended = time.monotonic()
    eventually(lambda: not reasons(server), SEEN_S_MAX, lambda: f"{fault.name}: green again: {reasons(server)}")
    return Measured(fault.name, fault.server, red_s, message[0], time.monotonic() - ended)


def faults(pipeline: Pipeline, stack: Stack) -> list[Fault]:
    """All of them. Each is over, with everything ready, before the next begins."""
    items, job, budget = pipeline.items, pipeline.job, WalBudget(pipeline.items)

    def signalled(number: signal.Signals, pid: Callable[[], int]) -> Callable[[], None]:
        return lambda: os.kill(pid(), number)

    def frozen(name: str, server: str, pid: Callable[[], int], says: str) -> Fault:
        return Fault(name, server, signalled(signal.SIGSTOP, pid), signalled(signal.SIGCONT, pid), says)

    def jvm() -> int:
        driver = identify(job.process.pid)
        assert driver is not None
        return next(one.pid for one in with_descendants(driver) if _is_java(one.pid))

    def kill() -> None:
        items.running().kill()

    def restart() -> None:
        items.start()

    def table(action: str) -> Callable[[], None]:
        def ask() -> None:
            items.cdc("table", action, ITEMS)

        return ask

    return [
        frozen("capture stopped (SIGSTOP)", "capture", lambda: items.running().pid, "no answer"),
        Fault("capture stopped (kill -9)", "capture", kill, restart, "no answer"),
        Fault(
            "source away (SIGSTOP)",
            "capture",
            lambda: _to_all(stack.pid("postgres"), signal.SIGSTOP),
            lambda: _to_all(stack.pid("postgres"), signal.SIGCONT),
            "source",
        ),
        frozen("sink query dead (JVM stopped)", "sink", jvm, "cache makes no progress"),
        frozen("sink job dead (SIGSTOP)", "sink", lambda: job.process.pid, "no answer"),
        Fault(
            "one table stopped",
            "capture",
            table("stop"),
            table("start"),
            "an operator stopped it",
        ),
        frozen("brokers away (SIGSTOP)", "capture", lambda: stack.pid("kafka"), "brokers"),
        frozen("brokers away (SIGSTOP), sink", "sink", lambda: stack.pid("kafka"), "brokers"),
        frozen("store away (SIGSTOP)", "sink", lambda: stack.pid("redis"), "cache"),
        Fault("slot lost", "capture", lambda: _drop_slot(items), lambda: _heal(pipeline), "slot"),
        Fault("WAL budget below its limit", "capture", budget.exceed, budget.restore, "the WAL budget"),
    ]


def _to_all(pid: int, number: signal.Signals) -> None:
    """Signals the process and its children: a session of PostgreSQL is a process of its own."""
    process = identify(pid)
    assert process is not None
    for one in with_descendants(process):
        send(one, number)


def _drop_slot(items: Captured) -> None:
    """Also from the process that streams from it."""

    def is_dropped() -> bool:
        items.query(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", items.name
        )
        try:
            items.query("SELECT pg_drop_replication_slot(%s)", items.name)
        except psycopg.errors.ObjectInUse:
            return False
        return True

    eventually(is_dropped, 20.0, "the slot is dropped")


def _heal(pipeline: Pipeline) -> None:
    eventually(lambda: "state GAP" in str(reasons(pipeline.capture_http)), 60.0, "capture is in state GAP")
    pipeline.items.ask("heal")


class WalBudget:
    """The limit of the WAL that the slot may retain, set below what a transaction that is open makes it retain."""

    def __init__(self, items: Captured) -> None:
        self._items = items
        self._open: psycopg.Connection | None = None

    def exceed(self) -> None:
        self._open = psycopg.connect(self._items.dsn)
        self._open.execute("INSERT INTO other SELECT generate_series(1, %s)", (ROWS_OF_WAL,))
        ((retained_mb,),) = self._items.query(
            "SELECT ((pg_current_wal_lsn() - restart_lsn) / 1048576)::int FROM pg_replication_slots"
            " WHERE slot_name = %s",
            self._items.name,
        )
        self._keep(f"'{max(1, retained_mb - SEGMENT_MB)}MB'")

    def restore(self) -> None:
        self._keep("-1")
        if self._open is not None:
            self._open.close()

    def _keep(self, size: str) -> None:
        statement = f"ALTER SYSTEM SET max_slot_wal_keep_size = {size}"
        execute(self._items.superuser_dsn, f"{statement}; SELECT pg_reload_conf()")


def _is_java(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "java"


def run(stack: Stack, folder: Path, only: str) -> bool:
    """Measures all whose name has this text, prints the table. Returns whether each turned red in time."""
    endpoints = stack.start("postgres", "kafka", "redis")
    server = PostgresServer(endpoints.dsn, endpoints.superuser_dsn, stack)
    kafka = KafkaBroker(endpoints.bootstrap_servers, stack)
    found: list[Measured] = []
    missed: list[str] = []
    sinks = {"cache": {"url": endpoints.redis_url}}
    with pipeline_of(server, kafka, endpoints.redis_url, folder, sinks) as pipeline, Load(pipeline.items.dsn):
        for fault in faults(pipeline, stack):
            if only in fault.name:
                http = pipeline.capture_http if fault.server == "capture" else pipeline.sink_http
                try:
                    found.append(measure(http, fault))
                    print(_line(found[-1]), flush=True)
                except AssertionError as error:
                    fault.end()
                    print(f"{fault.name}: {error}", flush=True)
                    missed.append(fault.name)
    print("\n| fault | /readyz of | red after | green after its end | reason |\n|---|---|---|---|---|")
    for one in found:
        print(f"| {one.name} | {one.server} | {one.red_s:.1f} s | {one.green_s:.1f} s | {one.reason[:90]} |")
    return not missed and all(one.red_s <= RED_S_MAX for one in found)


def _line(one: Measured) -> str:
    return f"{one.name}: red after {one.red_s:.1f} s, green after {one.green_s:.1f} s: {one.reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="Faults whose name has this text.")
    parser.add_argument("--folder", type=Path, default=Path(".watershed/readiness-campaign"))
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o711)  # PostgreSQL may run under another account than ours
    with servers(folder / "stack") as stack:
        return 0 if run(stack, folder, asked.only) else 1


if __name__ == "__main__":
    sys.exit(main())
