"""Kafka 4.3 as one KRaft broker and controller, with transactions, sized for a development machine."""

import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cdc.model.errors import StackError
from spark_jobs.jars.resolver import resolve
from watershed.devstack import startup_cache
from watershed.devstack.instance import HOST, ServerInstance
from watershed.devstack.java import JVM_OPTIONS, Jvm, server_java
from watershed.devstack.keeper import Command
from watershed.devstack.server import base_environment, see_log

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.index.size.max.bytes": "1048576",
    "initial.broker.registration.timeout.ms": "20000",
    "controlled.shutdown.enable": "false",
    # After kill -9 the broker can only register again when its old session has expired: after 9 s by default. With a
    # shorter time than this, sessions of live brokers expire on a busy machine, and their partitions go offline.
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "4000",
}


@dataclass(frozen=True, slots=True)
class Kafka:
    record: Path | None = None  # the file for the list of loaded classes

    name: ClassVar[str] = "kafka"
    title: ClassVar[str] = "Kafka"
    port_names: ClassVar[tuple[str, ...]] = ("kafka", "controller")
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout_s: ClassVar[float] = 180.0  # a loaded machine takes ten times as long as an idle one
    jar_sets: ClassVar[tuple[str, ...]] = ("kafka",)

    def prepare(self, instance: ServerInstance) -> Command:
        instance.folder.mkdir(parents=True, exist_ok=True)
        configuration = instance.folder / "server.properties"
        configuration.write_text(self.properties(instance), encoding="utf-8")
        jvm = self.jvm(instance)
        self._format(jvm.argv(*startup_cache.options(self.name, jvm, instance)), configuration, instance)
        return Command(
            [
                *jvm.argv(*startup_cache.options(self.name, jvm, instance, self.record)),
                "kafka.Kafka",
                str(configuration),
            ],
            cwd=instance.folder,
            log=instance.log,
            env=base_environment(instance.folder),
        )

    def properties(self, instance: ServerInstance) -> str:
        """Returns the broker's configuration."""
        return properties(instance)

    def client(self, servers: str) -> "AdminClient":
        """Returns a client that may list topics."""
        return _client(servers)

    def jvm(self, instance: ServerInstance) -> Jvm:
        return Jvm(
            server_java().home,
            ("-Xms128m", "-Xmx512m", *JVM_OPTIONS),
            ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",),
            tuple(resolve("kafka", instance.cache)),
        )

    def recording(self, file: Path) -> "Kafka":
        return Kafka(record=file)

    def _format(self, java: Sequence[str], configuration: Path, instance: ServerInstance) -> None:
        """Formats the data folder once, with the stack's identity as the cluster id. The marker file is written
        last.
        """
        marker = instance.folder / "formatted"
        if marker.exists():
            return
        shutil.rmtree(instance.folder / "data", ignore_errors=True)
        tool = ["kafka.tools.StorageTool", "format", "-t", instance.identity, "-c", str(configuration)]
        with instance.log.open("a", encoding="utf-8") as log:
            done = subprocess.run(
                [*java, *tool],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=instance.folder,
                env=base_environment(instance.folder),
                check=False,
            )
        if done.returncode:
            raise StackError(f"Kafka's storage tool ended with exit code {done.returncode}", see_log(instance.log))
        marker.touch()

    def answering_pid(self, instance: ServerInstance) -> int | None:
        metadata = self.client(bootstrap_servers(instance)).list_topics(timeout=2)
        if not metadata.brokers:
            return None
        if metadata.cluster_id != instance.identity:
            raise StackError(
                f"another Kafka (cluster id {metadata.cluster_id}) answers on port {instance.ports['kafka']}",
                "stop it, then start the stack again",
            )
        return 0  # a broker does not report its pid, but the cluster id is unique to this place


def has_brokers(servers: str) -> bool:
    """Returns whether a broker answers. Raises the client library's errors if none does."""
    return bool(_client(servers).list_topics(timeout=2).brokers)


def bootstrap_servers(instance: ServerInstance) -> str:
    return f"{HOST}:{instance.ports['kafka']}"


@cache
def _client(servers: str) -> "AdminClient":
    """Returns the client for a broker. It is kept, because each new client starts threads."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 200})


def properties(instance: ServerInstance) -> str:
    broker, controller = instance.ports["kafka"], instance.ports["controller"]
    settings = SETTINGS | {
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{broker}",
        "log.dirs": str(instance.folder / "data"),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
