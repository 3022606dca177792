"""Addresses by Redis Sentinel, which knows which of several servers is the primary. Pure."""

from dataclasses import dataclass
from urllib.parse import unquote

SCHEME = "redis+sentinel://"
PORT = 26_379


@dataclass(frozen=True, slots=True)
class SentinelPlace:
    """The address `redis+sentinel://user:password@host:26379,other:26379/service/0`. User and password are those of the
    Redis servers.
    """

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    user: str | None
    password: str | None

    @property
    def name(self) -> str:
        """The service and its Sentinels, for messages; without user and password."""
        return f"{self.service} of Sentinel {', '.join(f'{host}:{port}' for host, port in self.sentinels)}"


def sentinel_place(url: str) -> SentinelPlace | None:
    """Returns the parts of an address by Sentinel; None for another kind of address. Raises ValueError if a part is
    missing.
    """
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
