"""One database under capture: runs `cdc run` as a process, and reads the state, topics and source around it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc.config.settings import KafkaConfig
from cdc.kafka.record_decoding import record_reader
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.topics import Topics
from tests.checker.history import fold
from tests.checker.journal import Keys, install_journal, read_rows
from tests.checker.judge import Report, gather, judge, require_true, table_topic
from tests.checker.positions import sweeps_of
from tests.checker.records import Change, Record, changes_of, key_text, parse, read_topics
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.config_files import replace_text
from tests.support.forked import CDC, Forked, run, start
from tests.support.waiting import eventually
from watershed.client.signal_sender import await_answer, send_signal
from watershed.devstack.endpoints import ServerStack
from watershed.devstack.stack import Stack

NAIVE = "tests.support.naive_capture"
ENDS_S_MAX = 20.0
DIES_S_MAX = 60.0


class CaptureProcess:
    """`cdc run`."""

    def __init__(
        self,
        config: Path,
        log: Path,
        *,
        environment: Mapping[str, str],
        arguments: Sequence[str] = (),
        module: str = CDC,
        is_forked: bool = True,
    ) -> None:
        self.log = log
        words = ["run", "--config", str(config), *arguments]
        whole = {**os.environ, **environment}
        self._process: Forked | subprocess.Popen[bytes]
        with log.open("ab") as output:
            if is_forked:
                self._process = start(words, output, output, module=module, environment=whole)
            else:
                command = [sys.executable, "-m", module, *words]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=whole
                )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def is_frozen(self) -> bool:
        """A signal stopped it."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def await_said(self, text: str, deadline_s: float = 90.0, times: int = 1) -> None:
        """Wait for a line with this text. Fails early when the process ends without it."""

        def is_there() -> bool:
            ended = self.exit_code is not None
            if self.said().count(text) >= times:
                return True
            assert not ended, f"capture ended with {self.exit_code} and did not say {text!r}:\n{self.said()}"
            return False

        eventually(is_there, deadline_s, lambda: f"capture says {text!r}; it said:\n{self.said()}")

    def await_end(self, deadline_s: float = ENDS_S_MAX) -> int:
        """The exit code; minus the signal's number if one ended it."""
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"capture did not end in {deadline_s:g} s; it said:\n{self.said()}") from None

    def await_refusal(self, deadline_s: float = 90.0) -> str:
        """Why it publishes nothing any more: what it said when it ended with exit code 1, or when it found a gap, in
        which it stays. One line."""
        eventually(
            lambda: self.exit_code is not None or "state GAP" in self.said(),
            deadline_s,
            lambda: f"capture refuses to go on; it said:\n{self.said()}",
        )
        message = self.said()
        assert "Traceback" not in message
        if self.exit_code is None:
            assert message.count("state GAP") == 1
            assert "next=" in message
            return message[message.index("state GAP") :].replace("\\'", "'")
        assert self.exit_code == 1
        assert message.count("error: ") == 1
        assert "\n  next: " in message
        return " ".join(message[message.index("error: ") :].split())

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def terminate(self) -> int:
        self.signal(signal.SIGTERM)
        return self.await_end()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Captured:
    """A database, a prefix of topics, and a configuration file for them."""

    dsn: str
    superuser_dsn: str  # in the same database
    bootstrap_servers: str
    name: str  # prefix and slot
    tables: Sequence[str]
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)  # sections that go before ours
    keys: Keys = field(default_factory=dict)
    slot_dsn: str = ""  # of the superuser, on the server that has the slot; "": the same
    _processes: list[CaptureProcess] = field(default_factory=list)

    def config(self) -> Path:
        """The configuration file, written again."""
        sections: dict[str, dict[str, Any]] = {
            "source": {"dsn": self.dsn, "tables": list(self.tables), "slot": self.name, "key_columns": dict(self.keys)},
            "kafka": {"bootstrap_servers": self.bootstrap_servers},
            "topics": {"prefix": self.name},
            "http": {"port": None, "sink_port": None, "view_port": None},
        }
        for section, values in self.settings.items():
            sections[section] = {**sections.get(section, {}), **values}
        return replace_text(self.folder / "watershed.yml", yaml.safe_dump(sections, allow_unicode=True))

    def start(
        self,
        *,
        failpoint: str | None = None,
        arguments: Sequence[str] = (),
        module: str = CDC,
        is_forked: bool = True,
    ) -> CaptureProcess:
        """Start capture; it ends with the test at the latest. Not forked it is the command that a user types."""
        environment = {"CDC_FAILPOINT": failpoint} if failpoint else {}
        path = self.folder / f"capture-{len(self._processes)}.log"
        process = CaptureProcess(
            self.config(), path, environment=environment, arguments=arguments, module=module, is_forked=is_forked
        )
        self._processes.append(process)
        return process

    def start_and_die(self, failpoint: str) -> None:
        """Start capture, and wait until it has killed itself there."""
        process = self.start(failpoint=failpoint)
        assert process.await_end(DIES_S_MAX) == -signal.SIGKILL, process.said()

    def run_once(self, command: str = "run", deadline_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """`cdc run` or `cdc check` that is expected to end by itself."""
        return run([command, "--config", str(self.config())], deadline_s=deadline_s)

    def running(self) -> CaptureProcess:
        """The one that was started last."""
        assert self._processes and self._processes[-1].exit_code is None, self._said()
        return self._processes[-1]

    def cdc(self, *words: str) -> str:
        """What a command says that succeeds."""
        done = run([*words, "--config", str(self.config())], deadline_s=120.0)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def end(self) -> None:
        for process in self._processes:
            if process.exit_code is None:
                process.signal(signal.SIGCONT)
                process.kill()

    # ---- the source

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            yield connection

    def query(self, statement: LiteralString | sql.Composed, *parameters: Any) -> list[tuple[Any, ...]]:
        """By the superuser, in the captured database."""
        return _query(self.superuser_dsn, statement, *parameters)

    def log_end(self) -> int:
        """Where the source's log ends now."""
        return int(self.query("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")[0][0])

    def confirmed(self) -> int | None:
        """The slot's confirmed LSN; None without a slot."""
        rows = _query(
            self.slot_dsn or self.superuser_dsn,
            "SELECT (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots WHERE slot_name = %s",
            self.name,
        )
        return rows[0][0] if rows else None

    def await_caught_up(self, deadline_s: float = 120.0) -> None:
        """Every existing row is published; then all that is committed now is published, recorded and confirmed, and its
        progress told: capture streams, which the slot alone does not say, since a new one begins at the log's end."""
        eventually(
            lambda: self.progress() and not self.unfinished(),
            deadline_s,
            lambda: f"existing rows are published; left are {self.unfinished()}; it said:\n{self._said()}",
        )
        end = self.log_end()
        eventually(
            lambda: (self.confirmed() or 0) >= end and self.progress() >= end,
            deadline_s,
            lambda: f"capture confirms {end}, is at {self.confirmed()}; it said:\n{self._said()}",
        )

    def drop_slot(self) -> None:
        """As soon as the server has noticed that nobody reads from it."""
        slot = "FROM pg_replication_slots WHERE slot_name = %s"
        eventually(lambda: not self.query(f"SELECT 1 {slot} AND active", self.name), 90.0, "the slot is free")
        self.query(f"SELECT pg_drop_replication_slot(slot_name) {slot}", self.name)

    def records(self, topic: str) -> list[Record]:
        """Of `<prefix>.<topic>`."""
        return read_topics(self.bootstrap_servers, [f"{self.name}.{topic}"])[0]

    def progress(self) -> int:
        """The LSN of the last progress record, 0 without any."""
        reported = [record.value for record in self.records("progress") if record.key == b"progress"]
        return int(parse(reported[-1] or b"")["lsn"]) if reported else 0

    def snapshots(self) -> dict[str, dict[str, Any]]:
        """The snapshot record of each table."""
        return self._latest(b"snapshot/")

    def states(self) -> dict[str, dict[str, Any]]:
        """Whether each table is captured, and why not."""
        return self._latest(b"table/")

    def _latest(self, kind: bytes) -> dict[str, dict[str, Any]]:
        values = {record.key: record.value for record in self.records("state") if record.key.startswith(kind)}
        found = [parse(value) for value in values.values() if value is not None]
        return {f"{record['table_schema']}.{record['table_name']}": dict(record) for record in found}

    def unfinished(self) -> list[str]:
        """Tables of which rows are being read, or are to be."""
        return sorted({*(table for table, r in self.snapshots().items() if r["status"] == "running"), *self.holed()})

    def holed(self) -> list[str]:
        """Tables with rows that went out without large values, and that are still to be read again."""
        found = {r.key: parse(r.value or b"") for r in self.records("state") if r.key.startswith(b"holes/")}
        return [f"{r['table_schema']}.{r['table_name']}" for r in found.values() if r["keys"] or r["is_whole"]]

    def changes(self) -> list[Change]:
        """Of all tables, in the order of publication."""
        topics = [table_topic(self.name, table) for table in self.tables]
        kafka = {"bootstrap_servers": self.bootstrap_servers, **self.settings.get("kafka", {})}
        plain = record_reader(KafkaConfig.model_validate(kafka)).plain
        records = [
            replace(record, key=plain(record.key) or b"", value=plain(record.value))
            for record in read_topics(self.bootstrap_servers, topics)[0]
        ]
        return sorted(changes_of(records), key=lambda change: change.version)

    def unlike(self, tables: Sequence[str]) -> dict[str, str]:
        """Of each table that is not in its topic as it is in the source, some difference. A column that a record lacks
        is NULL."""
        ours = fold(self.changes(), sweeps_of(self.records("control")))
        with self.connect() as connection:
            source = read_rows(connection, tables)
        found = {}
        for table in tables:
            rows = {key_text(key): row for key, row in source[table]}
            held = ours.get(table, {})
            for key in rows.keys() | held.keys():
                row, here = rows.get(key), held.get(key)
                if row is None or here is None or row != dict.fromkeys(row) | dict(here):
                    found[table] = f"{key}: {row} in the source, {here} in the topic"
                    break
        return found

    def signal(self, action: str, **fields: object) -> str:
        """Send capture a signal; its id."""
        record = SignalRecord.model_validate({"action": action, "requested_us": time.time_ns() // 1000} | fields)
        return send_signal(KafkaConfig(bootstrap_servers=self.bootstrap_servers), Topics(self.name), record)

    def ask(self, action: str, deadline_s: float = 90.0, **fields: object) -> SignalAnswer:
        """A signal, and capture's answer."""
        kafka = KafkaConfig(bootstrap_servers=self.bootstrap_servers)
        return await_answer(kafka, Topics(self.name), self.signal(action, **fields), deadline_s)

    def answer(self, identity: str, deadline_s: float = 90.0) -> SignalAnswer:
        """Capture's answer to that signal."""
        return await_answer(
            KafkaConfig(bootstrap_servers=self.bootstrap_servers), Topics(self.name), identity, deadline_s
        )

    def epoch(self) -> int:
        """Of the last position record."""
        positions = [record.value for record in self.records("state") if record.key == b"position"]
        return int(parse(positions[-1] or b"")["epoch"])

    def complaints(self) -> Sequence[str]:
        """Of the judge."""
        return judge(gather(self.bootstrap_servers, self.name, self.dsn, self.tables)).complaints

    def judge(self) -> Report:
        """Everything, held against the source. Raises AssertionError with the judge's complaints."""
        try:
            return require_true(gather(self.bootstrap_servers, self.name, self.dsn, self.tables, self.keys))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._said()}") from None

    def _said(self) -> str:
        return "\n".join(f"--- {p.log.name}, exit code {p.exit_code}\n{p.said()}" for p in self._processes)

    # ---- Kafka

    def topics(self) -> set[str]:
        """Names of the prefix's topics."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        beats = f"__debezium-heartbeat.{self.name}"
        names = admin.list_topics(timeout=10).topics
        return {name for name in names if name.startswith(f"{self.name}.") or name == beats}

    def delete_topics(self) -> None:
        """So that the broker does not collect the topics of hundreds of tests."""
        topics = list(self.topics())
        if topics:
            admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
            for future in admin.delete_topics(topics).values():
                try:
                    future.result(10)
                except KafkaException:
                    continue


def _query(dsn: str, statement: LiteralString | sql.Composed, *parameters: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def under_capture(
    server: PostgresServer,
    kafka: KafkaBroker,
    dsn: str,
    name: str,
    folder: Path,
    schema: LiteralString | sql.Composed,
    tables: Sequence[str],
    keys: Keys | None = None,
) -> Iterator[Captured]:
    """The database of `dsn` with these tables, journaled; capture is not started. Whatever was, ends."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(schema)
        install_journal(connection, tables, keys)
    made = Captured(
        dsn=dsn,
        superuser_dsn=make_conninfo(server.superuser_dsn, dbname=str(conninfo_to_dict(dsn)["dbname"])),
        bootstrap_servers=kafka.bootstrap_servers,
        name=name,
        tables=tables,
        folder=folder,
        keys=keys or {},
    )
    try:
        yield made
    finally:
        made.end()
        made.delete_topics()


@contextmanager
def frozen(servers: ServerStack, service: str) -> Iterator[None]:
    """The server takes connections and answers nothing."""
    if not isinstance(servers, Stack):
        pytest.skip("only a native server can be frozen")
    pid = servers.pid(service)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
