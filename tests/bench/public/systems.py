"""The systems that are measured: capture, and Debezium in Kafka Connect."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from cdc.model.errors import StackError
from spark_jobs.jars.java import spark_java
from spark_jobs.jars.resolver import resolve
from tests.bench.public.evaluation import CONTROL, DEBEZIUM, DEFAULTS, WATERSHED
from tests.support.captured import Captured
from tests.support.waiting import eventually
from watershed.devstack.instance import PortClaims, choose_ports

START_S_MAX: Final = 120.0
POLL_S: Final = 0.02
LOG_TAIL: Final = 3000
# What is set for both, because the broker is one process on this machine.
PARTITIONS: Final = 1

CONNECT_HEAP: Final = "-Xmx1g"
CONNECTOR: Final[Mapping[str, str]] = {
    "name": "bench",
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "topic.creation.default.partitions": str(PARTITIONS),
    "topic.creation.default.replication.factor": "1",
}
# Larger batches all the way: the best rates that were found for it.
FOR_RATE: Final[Mapping[str, str]] = {
    "max.batch.size": "16384",
    "max.queue.size": "65536",
    "poll.interval.ms": "10",
    "producer.override.compression.type": "lz4",
    "producer.override.linger.ms": "10",
    "producer.override.batch.size": "262144",
}
# Its default polls every 500 ms, which is its latency.
FOR_LATENCY: Final[Mapping[str, str]] = {"poll.interval.ms": "10", "producer.override.linger.ms": "0"}
WORKER: Final[Mapping[str, str]] = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "connector.client.config.override.policy": "All",
    "plugin.discovery": "hybrid_warn",
}
# Offsets are written each second instead of each minute: fewer duplicates after a crash.
FOR_RESTART: Final[Mapping[str, str]] = {"offset.flush.interval.ms": "1000"}


class System(Protocol):
    """One system on one slot and one set of topics."""

    def prepare(self) -> None:
        """Creates the slot: what is committed from now on is published after `start`."""

    def prepare_first_start(self) -> None:
        """Creates what a first start needs that reads the existing rows: then `start` creates the slot."""

    def start(self) -> None:
        """Starts the process, and returns at once."""

    def wait_streaming(self) -> None:
        """Returns when it reads the log."""

    def request_snapshot(self, table: str) -> None:
        """Has the existing rows of a table read, beside the stream."""

    def check(self) -> None:
        """Raises StackError with the end of its log if it has ended."""

    def kill(self) -> None:
        """Ends it by SIGKILL."""

    def remove(self) -> None:
        """Ends it, and removes slot and topics."""

    def topic(self, table: str) -> str: ...

    @property
    def slot(self) -> str: ...

    @property
    def pid(self) -> int: ...


@dataclass
class Watershed:
    """`cdc run`."""

    captured: Captured

    def prepare(self) -> None:
        self.start()
        self.wait_streaming()
        self.kill()

    def prepare_first_start(self) -> None:
        """Nothing: `cdc run` creates publication and topics."""

    def start(self) -> None:
        self.captured.start(is_forked=False)

    def wait_streaming(self) -> None:
        self.captured.running().await_said(" streaming", START_S_MAX)

    def request_snapshot(self, table: str) -> None:
        self.captured.ask("snapshot", tables=[f"public.{table}"])

    def check(self) -> None:
        self.captured.running()

    def kill(self) -> None:
        self.captured.running().kill()

    def remove(self) -> None:
        self.captured.end()
        self.captured.drop_slot()
        delete_topics(self.captured.bootstrap_servers, f"{self.captured.name}.")

    def topic(self, table: str) -> str:
        return f"{self.captured.name}.public.{table}"

    @property
    def slot(self) -> str:
        return self.captured.name

    @property
    def pid(self) -> int:
        return self.captured.running().pid


@dataclass
class Debezium:
    """Debezium's connector in a standalone worker of Kafka Connect. `settings`: of the connector, `worker`: of the
    worker, in addition to CONNECTOR and WORKER. `jars`: sets of the lock file beside Debezium's.
    """

    captured: Captured  # addresses, names and folder; it is not started
    settings: Mapping[str, str]
    worker: Mapping[str, str] = field(default_factory=dict)
    jars: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        self.prepare_first_start()
        self.captured.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self.captured.name)

    def prepare_first_start(self) -> None:
        captured = self.captured
        captured.query(
            sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(
                sql.Identifier(captured.name),
                sql.SQL(", ").join(sql.Identifier(*table.split(".")) for table in captured.tables),
            )
        )
        admin = AdminClient({"bootstrap.servers": captured.bootstrap_servers, "log_level": 0})
        new = [NewTopic(f"{captured.name}.{table}", PARTITIONS, 1) for table in captured.tables]
        for created in admin.create_topics(new).values():
            created.result(START_S_MAX)

    def start(self) -> None:
        with PortClaims() as claims:
            (port,) = choose_ports(1, claims)
        folder = self.captured.folder
        connector = {**CONNECTOR, **self._source(), **self.settings}
        worker = {
            **WORKER,
            "bootstrap.servers": self.captured.bootstrap_servers,
            "listeners": f"http://127.0.0.1:{port}",
            "offset.storage.file.filename": str(folder / "offsets"),
            **self.worker,
        }
        files = []
        for name, values in (("worker", worker), ("connector", connector)):
            files.append(folder / f"{name}.properties")
            files[-1].write_text("".join(f"{key}={value}\n" for key, value in values.items()), encoding="utf-8")
        log = "-Dorg.slf4j.simpleLogger."
        command = [
            *(str(spark_java() / "bin" / "java"), "-Xms256m", CONNECT_HEAP, "-XX:+UseG1GC", "-Djava.awt.headless=true"),
            *(f"{log}defaultLogLevel=warn", f"{log}showDateTime=true", f"{log}log.io.debezium=info"),
            *("-cp", ":".join(str(jar) for name in ("debezium", *self.jars) for jar in resolve(name))),
            *("org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files)),
        ]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder
            )

    def _source(self) -> dict[str, str]:
        captured = self.captured
        address = conninfo_to_dict(captured.dsn)
        return {
            "database.hostname": str(address["host"]),
            "database.port": str(address["port"]),
            "database.user": str(address["user"]),
            "database.password": "none",
            "database.dbname": str(address["dbname"]),
            "slot.name": captured.name,
            "publication.name": captured.name,
            "topic.prefix": captured.name,
            "table.include.list": ",".join(captured.tables),
        }

    @property
    def log(self) -> Path:
        return self.captured.folder / "connect.log"

    def wait_streaming(self) -> None:
        def streams() -> bool:
            self.check()
            return "Processing messages" in self._said()

        eventually(streams, START_S_MAX, lambda: f"Debezium streams; it said:\n{self._said()[-LOG_TAIL:]}")

    def request_snapshot(self, table: str) -> None:
        data = f'{{"data-collections": ["public.{table}"], "type": "incremental"}}'
        self.captured.query(
            "INSERT INTO debezium_signal VALUES (%s, 'execute-snapshot', %s)", f"bench{time.time_ns()}", data
        )

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def check(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise StackError(f"Kafka Connect ended:\n{self._said()[-LOG_TAIL:]}", f"see {self.log}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        self.kill()
        self.captured.drop_slot()
        self.captured.query(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(self.captured.name)))
        delete_topics(self.captured.bootstrap_servers, f"{self.captured.name}.")

    def topic(self, table: str) -> str:
        return f"{self.captured.name}.public.{table}"

    @property
    def slot(self) -> str:
        return self.captured.name

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid


def delete_topics(bootstrap_servers: str, prefix: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    names = [name for name in admin.list_topics(timeout=20).topics if name.startswith(prefix)]
    for deleted in admin.delete_topics(names).values() if names else ():
        deleted.result(START_S_MAX)


class Committed:
    """How many offsets of a topic with one partition a `read_committed` consumer may read. The records that end Kafka's
    transactions count too: one of some thousand.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "bench-committed",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        self._partition = TopicPartition(topic, 0)

    def __call__(self) -> int:
        """Returns 0 while there is no topic."""
        try:
            found = self._consumer.get_watermark_offsets(self._partition, timeout=10, cached=False)
        except KafkaException:
            return 0
        return int(found[1]) if found else 0

    def count(self) -> int:
        """Returns the number of records, by reading them."""
        count = 0
        self._consumer.assign([TopicPartition(self._partition.topic, 0, 0)])
        while True:
            for message in self._consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    count += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    return count
                else:
                    raise KafkaException(error)

    def close(self) -> None:
        self._consumer.close()


def system_of(
    arm: str,
    captured: Captured,
    settings: Mapping[str, Any],
    tuning: Mapping[str, str],
    worker: Mapping[str, str],
) -> System:
    """`settings`: sections of capture's configuration; `tuning` and `worker`: of Debezium."""
    if arm == DEBEZIUM:
        return Debezium(captured, tuning, worker)
    assert arm in (WATERSHED, CONTROL, DEFAULTS)
    own = {"source": {"publication": captured.name}, "topics": {"partitions": PARTITIONS}}
    captured.settings = {**own, **settings}
    return Watershed(captured)


def tables_of(names: Sequence[str]) -> list[str]:
    return [f"public.{name}" for name in names]
