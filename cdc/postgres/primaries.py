"""Finds the primary among several servers of source.dsn (`host=a,b,c`).

libpq takes the first that calls itself a primary. After a failover an old primary may still do that, and each of our
connections could then reach another one. So capture asks all servers for their timelines, chooses one of them
(cdc/tables/timelines.py), and connects only to that one until the session ends. Meanwhile it looks for a primary on a
higher timeline, because an old primary that does not know of it continues to send changes.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

import structlog

from cdc.config.settings import SourceConfig
from cdc.model.control import PositionRecord
from cdc.model.errors import ConnectionLost, SourceError, UnreachableError
from cdc.postgres.connection import name_of, single_hosts
from cdc.postgres.replication import ReplicationConnection, StandbyError, SystemIdentity
from cdc.tables.timelines import Branch, Primary, choose

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S: Final = 2.0  # at the other servers, while one of them streams


def find_primary(source: SourceConfig, position: PositionRecord | None) -> tuple[SourceConfig, Sequence[SourceConfig]]:
    """Returns the source with the primary alone, and with each other server alone. With one server, it is not asked.
    Raises UnreachableError if none is a primary, or if two can't be told apart."""
    servers = single_hosts(source)
    if len(servers) == 1:
        return source, ()
    by_name = {name_of(server): server for server in servers}
    with ThreadPoolExecutor(len(servers)) as pool:
        answers = dict(zip(by_name, pool.map(_ask, servers), strict=True))
    primaries = [_primary(name, found) for name, found in answers.items() if isinstance(found, SystemIdentity)]
    if not primaries:
        said = "; ".join(f"{name}: {_words(found)}" for name, found in answers.items())
        raise UnreachableError(
            f"no server of source.dsn is a primary: {said}", "promote a standby, or start the primary: capture waits"
        )
    chosen = choose(primaries, position)
    for other in primaries:
        if other is not chosen:
            log.error(
                "two servers of source.dsn are primaries: this one is not read from",
                server=other.name,
                timeline=other.branch.timeline,
                primary=chosen.name,
                primary_timeline=chosen.branch.timeline,
                next=f"shut {other.name} down: what is written to it is lost",
            )
    log.info("primary found", server=chosen.name, timeline=chosen.branch.timeline)
    return by_name[chosen.name], [server for name, server in by_name.items() if name != chosen.name]


class PrimaryWatch:
    """Looks at the other servers in a thread. `check` raises ConnectionLost as soon as one of them is a primary of the
    same database server on a higher timeline."""

    def __init__(self, others: Sequence[SourceConfig], identity: SystemIdentity) -> None:
        """`identity`: of the server that streams."""
        self._others = others
        self._identity = identity
        self._found = ""
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="primaries", daemon=True)
        if others:
            self._thread.start()

    def check(self) -> None:
        if self._found:
            raise ConnectionLost(self._found)

    def close(self) -> None:
        """Idempotent. Does not wait for an answer."""
        self._is_closed.set()

    def _look(self) -> None:
        while not self._is_closed.wait(LOOK_INTERVAL_S) and not self._found:
            for other in self._others:
                seen = _ask(other)
                if (
                    isinstance(seen, SystemIdentity)
                    and seen.system_identifier == self._identity.system_identifier
                    and seen.timeline > self._identity.timeline
                ):
                    self._found = f"{name_of(other)} was promoted (timeline {seen.timeline})"
                    if not self._identity.is_standby:
                        self._found += (
                            f", and the server that streams, on timeline {self._identity.timeline}, still calls itself "
                            "a primary: shut that one down"
                        )


def _ask(server: SourceConfig) -> SystemIdentity | Exception:
    try:
        with closing(ReplicationConnection(server)) as connection:
            return connection.identify()
    except (SourceError, UnreachableError, ConnectionLost) as error:
        return error


def _primary(name: str, identity: SystemIdentity) -> Primary:
    return Primary(name, identity.system_identifier, Branch(identity.timeline, identity.ended))


def _words(found: SystemIdentity | Exception) -> str:
    return "a standby" if isinstance(found, StandbyError) else str(getattr(found, "message", found))
