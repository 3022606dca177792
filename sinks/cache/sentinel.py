"""Addresses by Redis Sentinel, which tells which of several servers is the primary now. Pure."""

from dataclasses import dataclass
from urllib.parse import unquote

SCHEME = "redis+sentinel://"
PORT = 26_379


@dataclass(frozen=True, slots=True)
class SentinelPlace:
    """`redis+sentinel://user:password@host:26379,other:26379/service/0`. User and password are the Redis servers'."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    user: str | None
    password: str | None

    @property
    def name(self) -> str:
        """For messages: no user, no password."""
        return f"{self.service} of Sentinel {', '.join(f'{host}:{port}' for host, port in self.sentinels)}"


def sentinel_place(url: str) -> SentinelPlace | None:
    """None for another kind of address. Raises ValueError for one that lacks a part."""
    if not url.startswith(SCHEME):
        return None
    account, _, address = url.removeprefix(SCHEME).rpartition("@")
    hosts, _, path = address.partition("/")
    service, _, database = path.partition("/")
    user, _, password = map(unquote, account.partition(":"))
    sentinels = tuple(_host_and_port(host) for host in hosts.split(","))
    if not service or not all(host for host, _ in sentinels):
        raise ValueError("an address by Sentinel names hosts and a service")
    return SentinelPlace(sentinels, unquote(service), int(database or 0), user or None, password or None)


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    return (host, int(port)) if colon else (port, PORT)
