"""Part `catchup`: a backlog in the log, which each system publishes from the same position on."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, LiteralString

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql

from tests.bench.public.bench import Bench, Size, watched
from tests.bench.public.evaluation import CONTROL, DEBEZIUM, PRODUCER, READER, WATERSHED
from tests.bench.public.raw_data import RawData, Wanted, missing
from tests.bench.public.systems import FOR_RATE, Committed, System, delete_topics
from tests.bench.public.workloads import BACKLOGS, LARGE_TRANSACTION, Workload
from watershed.devstack.instance import package_folder
from watershed.devstack.postgres import INSTALLED, PACKAGE, VERSIONS

SYSTEMS: Final = (WATERSHED, DEBEZIUM, CONTROL)
ARMS: Final = (*SYSTEMS, READER)
SETTINGS: Final = {"snapshot": {"mode": "never"}}
PRODUCED_IN: Final = "narrow"  # the workload whose records the plain producer sends
PRODUCED_PER_TRANSACTION: Final = 20_000
RECORD: Final = b"x" * 600  # as many bytes as a narrow row's record has
READER_S_MAX: Final = 600.0
SLOT: LiteralString = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
FREE: LiteralString = "SELECT pg_drop_replication_slot(%s)"


def wanted(raw: RawData, rounds: int) -> list[Wanted]:
    arms = {one.name: (*ARMS, PRODUCER) if one.name == PRODUCED_IN else ARMS for one in BACKLOGS}
    return [run for case in arms for run in missing(raw, [case], arms[case], rounds)]


def measure(bench: Bench, raw: RawData, runs: Sequence[Wanted]) -> None:
    for workload in backlogs(bench.size):
        if own := [run for run in runs if run[0] == workload.name]:
            _measure(bench, raw, workload, own)


def backlogs(size: Size) -> list[Workload]:
    return [
        replace(one, rows=size.large_rows, rows_per_transaction=size.large_rows)
        if one.name == LARGE_TRANSACTION
        else one.scaled(size.scale)
        for one in BACKLOGS
    ]


def _measure(bench: Bench, raw: RawData, workload: Workload, runs: Sequence[Wanted]) -> None:
    """Creates a slot for each run before the backlog is written, so that all read the same part of the log."""
    bench.install()
    table = sql.Identifier(workload.table)
    if workload.changes:
        bench.query("CALL fill(%s, %s, %s, 10000)", workload.table, workload.row, workload.rows)
        bench.query(sql.SQL("VACUUM ANALYZE {}").format(table))
    if workload.is_full:
        bench.query(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table))
    bench.console.print(f"{workload.name}: {workload.rows:,} rows ({workload.title})", highlight=False)
    bench.query(sql.SQL("CREATE PUBLICATION reader FOR TABLE {}").format(table))
    systems: dict[tuple[str, int], System] = {}
    readers: dict[int, str] = {}
    try:
        for _, arm, number in runs:
            if arm in SYSTEMS:
                systems[arm, number] = bench.system(arm, [workload.table], FOR_RATE, settings=SETTINGS)
                systems[arm, number].prepare()
            elif arm == READER:
                readers[number] = f"reader{number}"
                bench.query(SLOT, readers[number])
        end = _write(bench, workload)
        for case, arm, number in runs:
            if arm == PRODUCER:
                raw.add(case, arm, number, produced(bench, workload.rows))
            elif arm == READER:
                raw.add(case, arm, number, _read(bench, readers.pop(number), workload.rows, end))
            else:
                system = systems.pop((arm, number))
                try:
                    raw.add(case, arm, number, _published(bench, system, workload))
                finally:
                    system.remove()
            bench.say(raw)
    finally:
        for system in systems.values():
            system.remove()
        for slot in readers.values():
            bench.query(FREE, slot)
        bench.query("DROP PUBLICATION reader")


def _write(bench: Bench, workload: Workload) -> str:
    """Writes the backlog, and returns the position of its end."""
    if workload.changes:
        statement: LiteralString = "CALL change(%s, %s, %s, %s)"
        what = workload.changes
    else:
        statement, what = "CALL fill(%s, %s, %s, %s)", workload.row
    bench.query(statement, workload.table, what, workload.rows, workload.rows_per_transaction)
    ((end,),) = bench.query("SELECT pg_current_wal_flush_lsn()::text")
    bench.query("SELECT pg_switch_wal()")  # pg_recvlogical ends when it sees something behind the end
    bench.query("SELECT pg_log_standby_snapshot()")
    bench.query("CHECKPOINT")
    return str(end)


def _published(bench: Bench, system: System, workload: Workload) -> dict[str, float | None]:
    began = time.monotonic()
    system.start()
    figures = watched(bench, system, workload.table, workload.rows, began)
    system.kill()
    committed = Committed(bench.endpoints.bootstrap_servers, system.topic(workload.table))
    try:
        count = committed.count()
    finally:
        committed.close()
    return {**figures, "surplus_records": float(count - workload.rows)}


# ---- the limits


def _read(bench: Bench, slot: str, rows: int, end: str) -> dict[str, float | None]:
    """Returns the rate of pg_recvlogical into /dev/null, its start included."""
    options = ["--start", "--file", "/dev/null", "--endpos", end, "--fsync-interval", "0"]
    options += ["--option", "proto_version=1", "--option", "publication_names=reader"]
    began = time.monotonic()
    with bench.meter(os.getpid()) as meter:
        subprocess.run(
            [str(reader()), "--dbname", bench.superuser_dsn, "--slot", slot, *options],
            check=True,
            timeout=READER_S_MAX,
            capture_output=True,
        )
        seconds = time.monotonic() - began
    bench.query(FREE, slot)
    return {"rows_per_s": round(rows / seconds), "foreign_share": meter.foreign_share}


def reader() -> Path:
    """Returns pg_recvlogical: that of the development stack's PostgreSQL, or an installed one."""
    own = package_folder(PACKAGE) / VERSIONS[18] / "bin" / "pg_recvlogical"
    installed = shutil.which("pg_recvlogical")
    found = [
        own,
        *sorted(INSTALLED.glob("*/bin/pg_recvlogical"), reverse=True),
        *([Path(installed)] if installed else []),
    ]
    return next(path for path in found if path.is_file())


def produced(bench: Bench, rows: int) -> dict[str, float | None]:
    """Returns the rate of a producer that sends one record, as large as a narrow row's, in Kafka transactions."""
    name = f"producer{time.monotonic_ns()}"
    servers = bench.endpoints.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})  # without a name it ends before its answer
    for created in admin.create_topics([NewTopic(name, 1, 1)]).values():
        created.result(30)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": name,
            "linger.ms": 10,
            "queue.buffering.max.messages": 2 * PRODUCED_PER_TRANSACTION,
            "delivery.report.only.error": True,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    began, processor = time.monotonic(), time.process_time()
    with bench.meter(os.getpid()) as meter:
        for first in range(0, rows, PRODUCED_PER_TRANSACTION):
            producer.begin_transaction()
            for number in range(first, min(first + PRODUCED_PER_TRANSACTION, rows)):
                producer.produce(name, RECORD, b'{"id":%d}' % number)
            producer.commit_transaction(30)
        seconds, processor_s = time.monotonic() - began, time.process_time() - processor
    delete_topics(servers, name)
    return {
        "rows_per_s": round(rows / seconds),
        "cpu_s_per_million": round(processor_s / rows * 1e6, 1),
        "foreign_share": meter.foreign_share,
    }
