"""One machine that runs `cdc sink run`, with the processes of its job, and what the jobs of all machines publish."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from cdc.model.events import TableSchema
from cdc.model.sink_records import SinkRecord, newest
from sinks.contract import StoredRow
from sinks.registry import make_sink
from tests.support.sink_job import SinkJob
from tests.support.stores import stored_rows
from tests.support.waiting import eventually
from watershed.devstack.processes import Process, identify, send, with_descendants

DAEMON: Final = "spark worker"  # the name of the daemon's process and of its workers
PLANNER: Final = "spark python_st"  # the first 15 characters
HELPER: Final = "spark "  # every name of Spark's Python processes begins so
FORK_SERVER: Final = b"-m\0spark_jobs.fork_server"
JVM: Final = b"org.apache.spark.deploy.SparkSubmit"
EXECUTOR: Final = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
BUSY_TICKS: Final = 2  # of the processor's clock, which ticks a hundred times a second: workers that wait use none
RECORDS_MAX: Final = 1000
SAID_S_MAX: Final = 180.0


class Machine:
    """Runs one job at a time, and keeps the logs of all of them."""

    def __init__(self, config: Path, sinks: Sequence[str]) -> None:
        self.jobs: list[SinkJob] = []
        self._path = config
        self._sinks = sinks

    @property
    def config(self) -> Config:
        return self.job.config

    @property
    def job(self) -> SinkJob:
        return self.jobs[-1]

    @property
    def exit_code(self) -> int | None:
        return self.job.process.poll()

    def start(self) -> None:
        self.jobs.append(SinkJob(self._path, *self._sinks).__enter__())

    def kill(self) -> None:
        """SIGKILL to all processes of the job, whether they are stopped or not."""
        if self.jobs and self.exit_code is None:
            family = self.family()
            self.job.kill()
            self.send(signal.SIGKILL, *family)

    def terminate(self) -> tuple[int, float]:
        return self.job.terminate()

    def said(self) -> str:
        return self.job.said()

    def has_said(self, text: str) -> bool:
        """About each sink."""
        return self.said().count(text) >= len(self._sinks)

    def await_said(self, text: str) -> None:
        """About each sink, or until the job has ended."""
        eventually(
            lambda: self.has_said(text) or self.exit_code is not None, SAID_S_MAX, lambda: f"{text}\n{self.said()}"
        )

    def complaints(self) -> list[str]:
        """What no log of a job may hold."""
        return [
            f"{job.log}: a traceback: {message[max(0, at - 500) : at + 2500]}"
            for job in self.jobs
            if (at := (message := job.said()).find("Traceback")) >= 0
        ]

    def rows(self, store: str, schema: TableSchema) -> list[StoredRow]:
        """As a reader sees them. Nothing is prepared. Raises SinkError."""
        section = self.config.sinks[store]
        if isinstance(section, WarehouseConfig):
            return stored_rows(self.config, store, schema)
        sink = make_sink(store, section, self.config.topics.prefix)
        try:
            sink.attach(schema)
            return list(sink.rows(schema.table))
        finally:
            sink.close()

    # ---- processes

    def driver(self) -> Process:
        found = identify(self.job.process.pid)
        assert found is not None, f"the driver has ended with exit code {self.exit_code}:\n{self.said()}"
        return found

    def family(self) -> list[Process]:
        """The driver and all that it has started, also what has lost its parent and goes on."""
        driver = self.driver()
        lost = [identify(pid) for pid in psutil.pids() if _is_orphan(pid, driver.pid)]
        return [member for head in (driver, *filter(None, lost)) for member in with_descendants(head)]

    def jvms(self) -> list[Process]:
        return [process for process in self.family() if JVM in _command(process)]

    def executors(self) -> list[Process]:
        """Java processes of their own, where the job runs on a cluster; Python's workers are theirs."""
        return [process for process in self._family() if EXECUTOR in _command(process)]

    def daemons(self) -> list[Process]:
        """Whose children the workers are."""
        return [process for process in self._python() if _leads_group(process)]

    def workers(self) -> list[Process]:
        """Of a daemon that was killed, too: the JVM goes on using them."""
        return [process for process in self._python() if not _leads_group(process)]

    def await_busy_worker(self, deadline_s: float) -> Process | None:
        """Returns a worker as soon as it computes: it is in the middle of a piece. None: none did, or the job ended."""
        used: dict[Process, int] = {}

        def busy() -> list[Process | None]:
            """A list, so that a job which has ended counts as an answer."""
            if self.exit_code is not None:
                return [None]
            for process in self.workers():
                if _ticks(process) - used.setdefault(process, _ticks(process)) >= BUSY_TICKS:
                    return [process]
            return []

        with suppress(AssertionError):
            return eventually(busy, deadline_s)[0]
        return None

    def planners(self) -> list[Process]:
        """One for each sink's query."""
        return [process for process in self._family() if _name(process) == PLANNER]

    def helpers(self) -> list[Process]:
        """Spark's Python processes that run no task, the planners among them."""
        found = [process for process in self._family() if _name(process).startswith(HELPER)]
        return [process for process in found if _name(process) != DAEMON]

    def fork_servers(self) -> list[Process]:
        """From which the others are forked: they have the same command line, and names of their own."""
        found = [process for process in self._family() if FORK_SERVER in _command(process)]
        return [process for process in found if not _name(process).startswith(HELPER)]

    def _python(self) -> list[Process]:
        return [process for process in self._family() if _name(process) == DAEMON]

    def _family(self) -> list[Process]:
        """None of a job that has ended."""
        return [] if self.exit_code is not None else self.family()

    def send(self, number: signal.Signals, *processes: Process) -> None:
        for process in processes:
            send(process, number)


def _is_orphan(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session and psutil.Process(pid).ppid() == 1
    except (OSError, psutil.Error):
        return False


def _leads_group(process: Process) -> bool:
    try:
        return os.getpgid(process.pid) == process.pid
    except OSError:
        return False


def _ticks(process: Process) -> int:
    """Of processor time that the process itself has used."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _command(process: Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _name(process: Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class Positions:
    """Reads every record that sinks publish, and checks that no position goes back."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.complaints: list[str] = []
        self._records: dict[str, SinkRecord] = {}  # by key
        self._late: set[tuple[str, int]] = set()  # (key, job) that published after a later job
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "positions",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def applied(self, sink: str) -> int:
        """The applied LSN of the newest generation; 0 if there is none."""
        record = self.newest(sink)
        return record.applied_lsn if record else 0

    def generation(self, sink: str) -> int:
        record = self.newest(sink)
        return record.generation if record else 0

    def job(self, sink: str) -> int:
        record = self.newest(sink)
        return record.job[0] if record else 0

    def close(self) -> None:
        self._read()
        self._consumer.close()

    def newest(self, sink: str) -> SinkRecord | None:
        """The record of the serving generation."""
        self._read()
        own = [record for record in self._records.values() if record.sink == sink]
        return newest(own, sink)

    def _read(self) -> None:
        messages = self._consumer.consume(RECORDS_MAX, 0.1)
        while messages:
            for message in messages:
                key, value = (message.key() or b"").decode(), message.value()
                if message.error() is None and value is not None and key.startswith("sink/"):
                    self._take(key, SinkRecord.decode(value, key))
            messages = self._consumer.consume(RECORDS_MAX, 0)

    def _take(self, key: str, record: SinkRecord) -> None:
        before = self._records.get(key)
        if before is not None:
            was, now = (before.epoch, before.applied_lsn), (record.epoch, record.applied_lsn)
            if now < was:
                self.complaints.append(f"{key}: applied {now} of job {record.job} after {was} of job {before.job}")
            elif record.job < before.job and (key, record.job[0]) in self._late:
                self.complaints.append(f"{key}: job {record.job} publishes after job {before.job} has taken over")
            if record.job < before.job:
                # Once is possible: it was frozen between its check for a later job and its publication.
                self._late.add((key, record.job[0]))
        self._records[key] = record
