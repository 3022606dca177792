"""A Redis Cluster of real servers on this machine."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from tests.support.http_server import free_port
from tests.support.waiting import eventually
from watershed.devstack.instance import HOST, package_folder
from watershed.devstack.redis import PACKAGE

SLOTS = 16_384
# The port of the nodes' own connections is 10,000 above the clients' port.
PORT_MAX = 55_000


@dataclass
class Cluster:
    """`ports`: of the primaries, then of the replicas, in order of their start."""

    folder: Path
    ports: list[int] = field(default_factory=list)
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'{HOST}:{port}' for port in self.ports)}"

    def client(self, port: int) -> redis.Redis:
        return redis.Redis(HOST, port, decode_responses=True)

    def ask(self, port: int, *command: Any) -> Any:
        with self.client(port) as client:
            return client.execute_command(*command)

    def start(self, port: int, timeout_ms: int, **more: Any) -> None:
        """Starts a node. `more`: settings, with underscores in the place of hyphens."""
        folder = self.folder / str(port)
        folder.mkdir(parents=True, exist_ok=True)
        options = {
            "port": port,
            "bind": HOST,
            "dir": folder,
            "save": "",
            "cluster-enabled": "yes",
            "cluster-node-timeout": timeout_ms,
            "cluster-replica-validity-factor": 0,  # a replica may always be promoted
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        with (folder / "log").open("wb") as log:
            program = str(package_folder(PACKAGE) / "bin" / "redis-server")
            self.processes[port] = subprocess.Popen([program, *words], stdout=log, stderr=log)
        self.ports += [port] if port not in self.ports else []
        eventually(lambda: self._answers(port), 20, f"the node at port {port} answers")

    def node_id(self, port: int) -> str:
        return str(self.ask(port, "CLUSTER", "MYID"))

    def owner(self, key: str) -> int:
        """The port of the primary that has the key's slot."""
        slot = self.ask(self.ports[0], "CLUSTER", "KEYSLOT", key)
        for first, last, primary, *_ in self.ask(self.ports[0], "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return int(primary[1])
        raise AssertionError(f"slot {slot} has no node")

    def move(self, key: str, keys_at_once: int = 1) -> Iterator[None]:
        """Moves the slot of a key to another node in steps. After the first `next` the slot is being moved, after each
        other one more keys have gone; at the end the slot belongs to the other node.
        """
        source = self.owner(key)
        target = next(port for port in self.ports if port != source)
        slot = self.ask(source, "CLUSTER", "KEYSLOT", key)
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(target))
        yield
        while names := self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, keys_at_once):
            self.ask(source, "MIGRATE", HOST, target, "", 0, 5000, "KEYS", *names)
            yield
        for port in (target, *self.ports):
            self.ask(port, "CLUSTER", "SETSLOT", slot, "NODE", self.node_id(target))

    def kill(self, port: int) -> None:
        process = self.processes.pop(port)
        process.kill()
        process.wait()

    def _answers(self, port: int) -> bool:
        with suppress(redis.ConnectionError):
            return bool(self.ask(port, "PING"))
        return False

    def _is_whole(self) -> bool:
        infos = [self.ask(port, "CLUSTER", "INFO") for port in self.ports]
        wanted = f"cluster_known_nodes:{len(self.ports)}\r"
        return all("cluster_state:ok\r" in info and wanted in info for info in infos)

    def join(self, primaries: Sequence[int], replicas: Sequence[int]) -> None:
        """Lets the nodes meet. The primaries get the slots in equal ranges, each replica follows one of them."""
        for number, port in enumerate(primaries):
            first, last = number * SLOTS // len(primaries), (number + 1) * SLOTS // len(primaries)
            self.ask(port, "CLUSTER", "ADDSLOTS", *range(first, last))
        for number, port in enumerate(self.ports):
            self.ask(port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self.ask(port, "CLUSTER", "MEET", HOST, primaries[0])
        eventually(self._is_whole, 60, "the nodes know each other, and an owner of each slot")
        for port, primary in zip(replicas, primaries, strict=False):
            self.ask(port, "CLUSTER", "REPLICATE", self.node_id(primary))
        eventually(lambda: all(map(self._follows, replicas)), 60, "the replicas follow their primaries")

    def _follows(self, port: int) -> bool:
        with self.client(port) as client:
            return bool(client.info("replication").get("master_link_status") == "up")

    def stop(self) -> None:
        for port in list(self.processes):
            self.kill(port)


def cluster_client(url: str, *, decode: bool = False) -> Any:
    """A reader's client, which knows nothing of the sink."""
    host, _, port = url.partition("://")[2].partition(",")[0].partition(":")
    return redis.RedisCluster(host, int(port), decode_responses=decode)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, for nodes."""
    ports: set[int] = set()
    while len(ports) < count:
        port = free_port()
        if port < PORT_MAX:
            ports.add(port)
    return sorted(ports)


@contextmanager
def redis_cluster(folder: Path, primaries: int = 3, replicas: int = 0, *, timeout_ms: int = 2_000) -> Iterator[Cluster]:
    """A cluster with all slots; its nodes are killed at the end."""
    cluster = Cluster(folder)
    try:
        ports = free_ports(primaries + replicas)
        for port in ports:
            cluster.start(port, timeout_ms)
        cluster.join(ports[:primaries], ports[primaries:])
        yield cluster
    finally:
        cluster.stop()
