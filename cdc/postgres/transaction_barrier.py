"""The transaction barrier: waits until every transaction of this database that runs now has ended.

Their changes may have been received from the log already, and not be visible yet.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, LiteralString

import psycopg
import structlog

from cdc.config.settings import SourceConfig
from cdc.model.errors import WatershedError
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.postgres.connection import connect, read_row

log = structlog.get_logger(__name__)

POLL_S: Final = 0.05
QUIET_S: Final = 2.0  # most transactions end within this time
REPORT_INTERVAL_S: Final = 30.0

# Every transaction with an id holds a lock on it until it is visible. Locks name no database, sessions and prepared
# transactions do; a lock without a session belongs to a prepared transaction, or its session has ended since. `since`
# needs pg_read_all_stats for sessions of other roles.
_TRANSACTIONS: LiteralString = """
SELECT l.transactionid::text::int8, 'pid ' || l.pid, nullif(a.datid, 0) <> d.oid, a.xact_start::text
  FROM pg_locks l
  JOIN pg_database d ON d.datname = current_database()
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS NOT NULL
UNION ALL
SELECT transaction::text::int8, 'prepared transaction ' || gid, database <> current_database(), prepared::text
  FROM pg_prepared_xacts
"""


@dataclass(frozen=True, slots=True)
class _Transaction:
    holder: str
    is_elsewhere: bool | None  # belongs to another database; None: not known
    since: str | None


def pass_barrier(connection: psycopg.Connection, closing: threading.Event) -> TransactionSnapshot | None:
    """Returns a transaction snapshot that sees all of them; None if `closing` was set meanwhile. Transactions of other
    databases are not waited for, since they can't have written our tables. Raises psycopg.Error."""
    report_at = time.monotonic() + QUIET_S
    # A snapshot lists no transaction above the newest one that has ended: a running one may have a higher id. So a
    # transaction of our own begins and ends after all of them.
    (barrier,) = read_row(connection, "SELECT pg_current_xact_id()::text::int8")
    snapshot = _current(connection)
    assert snapshot.sees(barrier), "our own has ended"
    waited_for = frozenset(xid for xid in snapshot.in_progress if xid < barrier)
    ours = frozenset[int]()
    while True:
        waited_for = frozenset(xid for xid in waited_for if not snapshot.sees(xid))
        is_due = time.monotonic() >= report_at
        if is_due or not waited_for <= ours:
            found = _transactions(connection)
            ours = frozenset(xid for xid in waited_for if _is_elsewhere(found, xid) is False)
            waited_for = frozenset(xid for xid in waited_for if not _is_elsewhere(found, xid))
            if is_due and waited_for:
                report_at = time.monotonic() + REPORT_INTERVAL_S
                known = [found[_short(xid)] for xid in waited_for if _short(xid) in found]
                log.info("waiting for transactions that began earlier", **_summary(known))
        if not waited_for:
            return snapshot
        if closing.wait(POLL_S):
            return None
        snapshot = _current(connection)


class Wait:
    """Waits for a condition beside other work, in a thread and with a connection of its own, which start at once."""

    def __init__(
        self, source: SourceConfig, name: str, wait: Callable[[psycopg.Connection, threading.Event], bool]
    ) -> None:
        """`wait`: returns True when the condition holds, False if the event was set meanwhile."""
        self._source = source
        self._name = name
        self._wait = wait
        self._is_passed = False
        self._closing = threading.Event()
        self._over = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """True if the condition held, or waiting failed."""
        return self._over.is_set()

    def is_passed(self, timeout_s: float) -> bool:
        """Returns whether the condition holds within `timeout_s` seconds."""
        self._over.wait(timeout_s)
        return self._is_passed

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        try:
            with connect(self._source, application=self._name) as connection:
                self._is_passed = self._wait(connection, self._closing)
        except (WatershedError, psycopg.Error) as error:
            log.warning("waiting failed", name=self._name, error=" ".join(str(error).split()))
        finally:
            self._over.set()


def barrier_wait(source: SourceConfig) -> Wait:
    return Wait(source, "watershed barrier", lambda connection, closing: pass_barrier(connection, closing) is not None)


def running(connection: psycopg.Connection) -> dict[str, object]:
    """Returns, for a log message, the number of transactions of all databases that may write, the oldest one, and since
    when it runs. Raises psycopg.Error."""
    return _summary(_transactions(connection).values())


def _summary(transactions: Collection[_Transaction]) -> dict[str, object]:
    oldest = min(transactions, key=lambda one: one.since or "~", default=None)
    return {
        "transactions": len(transactions),
        "oldest": oldest.holder if oldest else None,
        "since": oldest.since if oldest else None,
    }


def _is_elsewhere(found: Mapping[int, _Transaction], xid: int) -> bool | None:
    known = found.get(_short(xid))
    return known.is_elsewhere if known else None


def _current(connection: psycopg.Connection) -> TransactionSnapshot:
    return TransactionSnapshot.parse(read_row(connection, "SELECT pg_current_snapshot()::text")[0])


def _transactions(connection: psycopg.Connection) -> dict[int, _Transaction]:
    """Returns the transactions by the lower 32 bits of their ids, which is what locks show."""
    return {xid: _Transaction(*rest) for xid, *rest in connection.execute(_TRANSACTIONS)}


def _short(xid: int) -> int:
    return xid % (1 << 32)
