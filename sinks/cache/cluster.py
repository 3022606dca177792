"""Calls to a Redis Cluster. All keys of one table are in one hash slot (sinks/cache/keys.py), so that each script runs
on one node, and the tables are spread over the nodes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    MovedError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from cdc.config.store_shapes import StoreTls
from cdc.config.stores import CLUSTER_SCHEMES, CacheConfig
from sinks.cache.keys import hash_tag
from sinks.cache.scripts import Script
from sinks.cache.server import ADDRESSES, CONNECTION_OPTIONS, Command, RedisServer, T, tls_options
from sinks.errors import SinkError
from sinks.retries import Retries

PORT: Final = 6379
# Each script call names one key more, which never exists. Redis therefore refuses the call (ASK, then TRYAGAIN) while
# the hash slot moves from node to node: a script that runs in between finds only some of its keys. A key without a hash
# tag is alone in its script, which therefore finds all or nothing.
_ABSENT: Final = "\0"
_RIGHTS: Final = "+@read +@write +@scripting +@pubsub +@connection +info +cluster|slots +asking"


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """The address `redis+cluster://user:password@host:6379,other:6379`; `rediss+cluster://` for TLS. The nodes that it
    names tell the addresses of all nodes.
    """

    nodes: tuple[tuple[str, int], ...]
    user: str | None
    password: str | None
    has_tls: bool

    @property
    def name(self) -> str:
        """The nodes, for messages; without user and password."""
        return f"cluster {', '.join(f'{host}:{port}' for host, port in self.nodes)}"


def cluster_place(url: str) -> ClusterPlace:
    """Returns the parts of an address of a cluster. Raises ValueError for another kind of address, or one that lacks a
    part.
    """
    scheme, _, rest = url.partition("://")
    account, _, address = rest.rpartition("@")
    hosts, _, database = address.partition("/")
    user, _, password = map(unquote, account.partition(":"))
    nodes = tuple(_host_and_port(host) for host in hosts.split(","))
    if scheme not in CLUSTER_SCHEMES or database not in ("", "0") or not all(host for host, _ in nodes):
        raise ValueError("an address of a cluster names hosts, and only database 0")
    return ClusterPlace(nodes, user or None, password or None, scheme == "rediss+cluster")


def connected(config: CacheConfig, retries: Retries | None = None) -> RedisServer:
    """Returns the connection to the server or the cluster of this section."""
    connection = ClusterServer if config.in_cluster else RedisServer
    return connection(config.url.get_secret_value(), retries or Retries(), config.tls)


class ClusterServer(RedisServer):
    """A connection to a Redis Cluster: one to each primary of which it needs a key.

    The library knows which node has which hash slot, and follows a slot that has moved. A node that fails is asked
    again by `Retries`, after the cluster was asked for its nodes; by then a replica may have been promoted.
    """

    in_cluster: ClassVar[bool] = True

    def __init__(self, url: str, retries: Retries, tls: StoreTls | None = None) -> None:
        try:
            place = cluster_place(url)
        except ValueError as error:
            raise SinkError("the sink's url is not a Redis address", ADDRESSES) from error
        self.name = place.name
        self._retries = retries
        self._place = place
        account = {"username": place.user, "password": place.password}
        self._options = {**CONNECTION_OPTIONS, **account, **tls_options(place.has_tls, tls), "ssl": place.has_tls}
        self._cluster: RedisCluster | None = None
        self._is_stale = False  # the nodes may have other roles or slots than at the last connection

    def infos(self, section: str) -> dict[str, dict[str, Any]]:
        def once() -> dict[str, dict[str, Any]]:
            cluster = self._fresh()
            primaries = cluster.get_primaries()  # type: ignore[no-untyped-call]
            return {node.name: _node(cluster, node).info(section) for node in primaries}

        return self._guarded(once)

    def place(self, key: str) -> str:
        def once() -> str:
            name: str = _owner(self._connected(), key).name
            return name

        return self._guarded(once)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def _send(self, commands: Sequence[Command]) -> list[Any]:
        """Sends the commands to their nodes, one node after the other. INFO server goes to all primaries, and its
        answer is that of one of them with the `run_id` of all.
        """
        cluster = self._connected()
        by_node: defaultdict[str, list[tuple[int, Command]]] = defaultdict(list)
        nodes: dict[str, ClusterNode] = {}
        for position, command in enumerate(commands):
            for node, sent in _routed(cluster, command):
                nodes[node.name] = node
                by_node[node.name].append((position, sent))
        answers: list[list[Any]] = [[] for _ in commands]
        for name, numbered in by_node.items():
            pipeline: Any = _node(cluster, nodes[name]).pipeline(transaction=False)
            for _, sent in numbered:
                pipeline.execute_command(*sent)
            for (position, sent), answer in zip(numbered, pipeline.execute(raise_on_error=False), strict=True):
                is_moved = isinstance(answer, AskError)
                answers[position].append(_redirected(cluster, sent, answer) if is_moved else answer)
        return [_of_all(of) for of in answers]

    def _load(self, scripts: Sequence[Script]) -> None:
        cluster = self._connected()
        for node in cluster.get_primaries():  # type: ignore[no-untyped-call]
            for script in scripts:
                _node(cluster, node).execute_command("SCRIPT LOAD", script.source)

    def _pages(self, near: str, command: Callable[[int], Command]) -> Iterator[Any]:
        """Yields the pages that one node has. A cursor is valid on this node only, and only while no key moves away:
        before the first page and after the last, no slot of `near` may be on its way.
        """

        settled = ("EXISTS", near, near + _ABSENT)

        def begin() -> Any:
            cluster = self._fresh()
            node = _node(cluster, _owner(cluster, near))
            try:
                node.execute_command(*settled)
            except AskError as error:
                raise TryAgainError from error
            return node

        node = self._guarded(begin)
        cursor = 0
        while True:
            cursor, found = self._guarded(partial(node.execute_command, *command(cursor)))
            if found:
                yield found
            if int(cursor) == 0:
                self._guarded(partial(node.execute_command, *settled))
                return

    def _explained(self, error: Exception) -> SinkError:
        where = f"Redis at {self.name}"
        match error:
            case TryAgainError() | AskError():
                return SinkError(
                    f"{where} is moving keys to another node",
                    "nothing to do: the sink continues when their hash slot is moved",
                )
            case ClusterDownError():
                hint = "CLUSTER INFO and CLUSTER NODES say which node is missing; the sink tries again by itself"
                return SinkError(f"{where} does not serve all hash slots", hint)
            case NoPermissionError():
                return SinkError(super()._explained(error).message, f"ACL SETUSER <user> ~* &* {_RIGHTS}")
            case ResponseError() if "cluster support disabled" in str(error):
                return SinkError(f"{where} is not a cluster", "write redis://host:port/0 in the sink's url")
        return super()._explained(error)

    def _guarded(self, work: Callable[[], T]) -> T:
        """Does what RedisServer does. Before `work` is repeated, the cluster is asked for its nodes."""

        def once() -> T:
            try:
                return work()
            except (RedisError, OSError):
                self._is_stale = True
                raise
            except (RedisClusterException, IndexError) as error:  # the library's answers to a cluster without slots
                self._is_stale = True
                raise _reason(error) from error

        return super()._guarded(once)

    def _connected(self) -> RedisCluster:
        if self._cluster is not None and not self._is_stale:
            return self._cluster
        return self._fresh()

    def _fresh(self) -> RedisCluster:
        """Returns the client after it has asked for the cluster's nodes. If none of those that it knows answers, the
        next call begins with the nodes of the address.
        """
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            cluster = RedisCluster(
                startup_nodes=[ClusterNode(*place) for place in self._place.nodes],  # type: ignore[no-untyped-call]
                retry=Retry(NoBackoff(), 0),  # only `Retries` retries
                require_full_coverage=False,
                reinitialize_steps=1,
                **self._options,
            )
        else:
            cluster.nodes_manager.initialize()
        self._cluster, self._is_stale = cluster, False
        return cluster


def _owner(cluster: RedisCluster, key: Any) -> ClusterNode:
    node: ClusterNode = cluster.get_node_from_key(key)  # type: ignore[no-untyped-call]
    return node


def _node(cluster: RedisCluster, node: ClusterNode) -> Any:
    """Returns the client of one node; the library's functions have no types."""
    return cluster.get_redis_connection(node)


def _routed(cluster: RedisCluster, command: Command) -> Iterator[tuple[ClusterNode, Command]]:
    """Yields the nodes that get this command, each with what is sent."""
    match command[0]:
        case "INFO":  # server
            for node in cluster.get_primaries():  # type: ignore[no-untyped-call]
                yield node, command
                yield node, ("INFO", "replication")
        case "EVALSHA":
            _, sha, count, first = command[:4]
            keys = list(command[3 : 3 + count])
            if hash_tag(first) is not None:
                keys.append(f"{first}{_ABSENT}")
            yield _owner(cluster, first), ("EVALSHA", sha, len(keys), *keys, *command[3 + count :])
        case "EVAL":
            yield _owner(cluster, command[3]), command
        case _:
            yield _owner(cluster, command[1]), command


def _redirected(cluster: RedisCluster, command: Command, refusal: AskError) -> Any:
    """Returns the answer of the node to which the key of a command has moved, or is moving."""
    if command[0] == "EVALSHA" and not isinstance(refusal, MovedError):
        return TryAgainError(str(refusal))
    execute: Any = cluster.execute_command
    try:
        return execute(*command)
    except ResponseError as error:
        return error
    except ClusterError as error:  # it has moved again and again
        return TryAgainError(str(error))


def _of_all(answers: Sequence[Any]) -> Any:
    """Returns the answer to a command from those of its nodes."""
    failed = next((answer for answer in answers if isinstance(answer, RedisError)), None)
    if failed is not None or len(answers) == 1:
        return answers[0] if failed is None else failed
    about, replication = answers[::2], answers[1::2]
    if any(answer["role"] != "master" for answer in replication):
        return ClusterDownError("a primary has become a replica")
    return about[0] | {"run_id": ",".join(sorted(answer["run_id"] for answer in about))}


def _reason(error: Exception) -> RedisError:
    """Returns the error of the connection or the server behind one that the library raises for a whole cluster."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, RedisError):
        found = found.__cause__ or found.__context__
    return ClusterDownError(str(error)) if found is None else found


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    return (host, int(port)) if colon else (port, PORT)
