"""Calls to Redis. Failures that can pass are retried; all others are raised as SinkError without values or secrets."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from cdc.config.store_shapes import StoreTls
from sinks.cache.scripts import Script
from sinks.cache.sentinel import SentinelPlace, sentinel_place
from sinks.errors import FullError, SinkError
from sinks.retries import Retries

CONNECT_TIMEOUT_S = 5
# A script of 200 keys takes a millisecond; the timeout is for a server that saves, swaps or is stopped.
ANSWER_TIMEOUT_S = 30

_CODES = re.compile(r"\b(OOM|READONLY|MASTERDOWN|WRONGTYPE|MISCONF|NOREPLICAS|CROSSSLOT|MOVED|BUSY|NOPROTO)\b")

ADDRESSES: Final = (  # the next step after another address
    "write redis://host:6379/0, rediss:// for TLS, redis+sentinel://host:26379,host:26379/service/0, or "
    "redis+cluster://host:6379,host:6379"
)
CONNECTION_OPTIONS: Final[Mapping[str, Any]] = {
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_timeout": ANSWER_TIMEOUT_S,
    "client_name": "watershed",
}
SCAN_COUNT: Final = 1000

T = TypeVar("T")
Command = tuple[Any, ...]


class RedisServer:
    """A connection to one Redis or Valkey server."""

    in_cluster: ClassVar[bool] = False

    def __init__(self, url: str, retries: Retries, tls: StoreTls | None = None) -> None:
        # Only `Retries` retries, so that one limit applies.
        options = {**CONNECTION_OPTIONS, "retry": Retry(NoBackoff(), 0)}
        try:
            place = sentinel_place(url)
            files = tls_options(urlsplit(url).scheme == "rediss", tls)
            if place is None:
                self._client = redis.Redis.from_url(url, **options, **files)
            else:
                self._client = _by_sentinel(place, options)
        except ValueError as error:
            raise SinkError("the sink's url is not a Redis address", ADDRESSES) from error
        self.name = _name(url) if place is None else place.name
        self._retries = retries

    def run(self, *command: Any) -> Any:
        """Sends one command and returns its answer."""
        return self.run_all([command])[0]

    def run_all(self, commands: Sequence[Command], scripts: Sequence[Script] = ()) -> list[Any]:
        """Sends commands together and returns their answers. All commands are repeated when the connection is lost in
        between, so each must be idempotent. `scripts`: those that EVALSHA commands among them call; they are loaded on
        demand. Raises SinkError.
        """

        def once() -> list[Any]:
            answers = self._send(commands)
            if any(isinstance(answer, NoScriptError) for answer in answers):
                self._load(scripts)
                answers = self._send(commands)
            for answer in answers:
                if isinstance(answer, ResponseError):
                    raise answer
            return answers

        return self._guarded(once)

    def infos(self, section: str) -> dict[str, dict[str, Any]]:
        """Returns a section of INFO for each server, by its place."""
        answer: dict[str, Any] = self._guarded(lambda: self._client.info(section))
        return {self.name: answer}

    def place(self, key: str) -> str:
        """Returns the place of the server that has this key."""
        del key
        return self.name

    def fields(self, key: str) -> Iterator[dict[bytes, bytes]]:
        """Yields the fields of a hash, some hundreds at a time. When Redis shrinks the hash, some come again."""
        return self._pages(key, lambda cursor: ("HSCAN", key, cursor, "COUNT", SCAN_COUNT))

    def names(self, near: str, pattern: str, *options: str) -> Iterator[list[bytes]]:
        """Yields the names of keys, some at a time; not necessarily once. `near`: a key in the same hash slot."""
        return self._pages(near, lambda cursor: ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, *options))

    def close(self) -> None:
        self._client.close()

    def _pages(self, near: str, command: Callable[[int], Command]) -> Iterator[Any]:
        """Yields what a command with a cursor finds. A cursor is not valid on another server process."""
        del near
        cursor = 0
        while True:
            cursor, found = self.run(*command(cursor))
            if found:
                yield found
            if int(cursor) == 0:
                return

    def _load(self, scripts: Sequence[Script]) -> None:
        self._send([("SCRIPT LOAD", script.source) for script in scripts])

    def _send(self, commands: Sequence[Command]) -> list[Any]:
        pipeline: Any = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        # raise_on_error would put the command, values included, into the message.
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        return answers

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return self._retries.call(work, _is_transient)
        except (RedisError, OSError) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> SinkError:
        where = f"Redis at {self.name}"
        match error:
            case NoPermissionError():
                return SinkError(
                    f"{where} does not permit this user {_command(error)}",
                    "ACL SETUSER <user> ~* &* +@read +@write +@scripting +@pubsub +@connection +info",
                )
            case AuthenticationError() | AuthorizationError():
                return SinkError(f"{where} refuses this user", "check user, password and ACL of the sink's url")
            case BusyLoadingError():
                return SinkError(
                    f"{where} is still loading its data", "nothing to do: the sink starts again when it is ready"
                )
            case ResponseError():
                match code := _code(error):
                    case "OOM":
                        hint = "raise its maxmemory; the sink tries again by itself"
                        return FullError(f"{where} is full and refuses writes", hint)
                    case "READONLY":
                        hint = "give the primary's address in the sink's url"
                        return SinkError(f"{where} is a read-only replica", hint)
                return SinkError(f"{where} refuses a command ({code})", "see the server's log for this error")
            case _:
                return SinkError(
                    f"{where} does not answer ({type(error).__name__})",
                    "check that it is running and that the sink's url is right; the sink tries again by itself",
                )


def _by_sentinel(place: SentinelPlace, options: Mapping[str, Any]) -> redis.Redis:
    """Returns a client that asks Sentinel for the primary at each new connection."""
    library: Any = Sentinel  # the library's function has no types
    sentinel = library(place.sentinels, socket_connect_timeout=CONNECT_TIMEOUT_S, socket_timeout=CONNECT_TIMEOUT_S)
    client: redis.Redis = sentinel.master_for(
        place.service, db=place.database, username=place.user, password=place.password, **options
    )
    return client


def _is_transient(error: Exception) -> bool:
    match error:
        case AuthenticationError() | AuthorizationError() | MaxConnectionsError():
            return False
        case redis.ConnectionError() | redis.TimeoutError() | OSError():
            return True
        case ResponseError():
            # A replica is promoted, a primary comes back: the same address may take writes in a moment.
            return _code(error) in ("READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN")
        case _:
            return False


def _code(error: ResponseError) -> str:
    """Returns the error's code. Before version 7, Redis puts it into the middle of the sentence for an error inside a
    script, and the client removes it where it has an exception class for it. The sentence itself is not used, because
    it can contain arguments.
    """
    match error:
        case OutOfMemoryError():
            return "OOM"
        case ReadOnlyError():
            return "READONLY"
        case TryAgainError():
            return "TRYAGAIN"
        case MasterDownError():
            return "MASTERDOWN"
        case ClusterDownError():
            return "CLUSTERDOWN"
    found = _CODES.search(str(error))
    return found[0] if found else "ERR"


def _command(error: ResponseError) -> str:
    """The command that was refused, from a sentence that does not hold its arguments."""
    found = re.search(r"run the '([a-z|]+)' command", str(error))
    return f"the command {found[1].upper()}" if found else "a command, a key or a channel"


def tls_options(has_tls: bool, tls: StoreTls | None) -> dict[str, str]:
    """Returns the client's options for these files. Raises SinkError for a file that can't be read: the client itself
    would only report that the server does not answer.
    """
    if tls is None:
        return {}
    if not has_tls:
        hint = "begin sinks.cache.url with rediss:// or rediss+cluster://"
        raise SinkError("sinks.cache.tls requires an address with TLS", hint)
    named = {"ssl_ca_certs": tls.ca_file, "ssl_certfile": tls.certificate_file, "ssl_keyfile": tls.key_file}
    files = {option: name for option, name in named.items() if name is not None}
    for name in files.values():
        if not os.access(name, os.R_OK):
            raise SinkError(f"sinks.cache.tls: file {name} can't be read", "check its name and its permissions")
    return files


def _name(url: str) -> str:
    """Returns host and port of the address, or the socket's path; without user and password."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
