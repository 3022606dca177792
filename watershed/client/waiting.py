"""Read your writes: wait until derived stores show everything up to an LSN.

with psycopg.connect(...) as connection:
    connection.execute("UPDATE ...")
    connection.commit()
    (lsn,) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
watershed.wait_for(Path("watershed.yml"), "search", lsn, timeout=10)
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cdc.config.settings import PipelineConfig, load_pipeline
from cdc.model.errors import NotInTimeError
from cdc.model.lsn import Lsn, format_lsn, parse_lsn
from watershed.client.applied import Positions, WaitError, WaitTarget, obstacle, tables_of, target_of
from watershed.client.pipeline_watch import CHECK_S, POLL_S, PipelineWatch
from watershed.client.source_reader import PostgresSourceReader

TIMEOUT_S: Final = 30.0


class WaitTimeoutError(NotInTimeError):
    """The stores did not show the LSN in time."""


def wait_for(
    config: PipelineConfig | Path,
    sink: str | Sequence[str] | None,
    lsn: str | int,
    timeout: float = TIMEOUT_S,
    timeline: int | None = None,
    *,
    tables: Collection[str] = (),
    accepts_rejected: bool = False,
    system_identifier: str | None = None,
) -> None:
    """Does what `Waiter.wait_for` does, with connections of its own."""
    with Waiter(config) as waiter:
        waiter.wait_for(
            sink,
            lsn,
            timeout,
            timeline,
            tables=tables,
            accepts_rejected=accepts_rejected,
            system_identifier=system_identifier,
        )


class Waiter:
    """Stays connected between waits. One thread at a time waits; others queue up."""

    def __init__(self, config: PipelineConfig | Path) -> None:
        loaded = load_pipeline(config) if isinstance(config, Path) else config
        self._source = PostgresSourceReader(loaded.source)
        self._watch = PipelineWatch.of(loaded)
        self._is_begun = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def wait_for(
        self,
        sink: str | Sequence[str] | None,
        lsn: str | int,
        timeout: float = TIMEOUT_S,
        timeline: int | None = None,
        *,
        tables: Collection[str] = (),
        accepts_rejected: bool = False,
        system_identifier: str | None = None,
    ) -> None:
        """Waits until stores show everything up to the LSN. `sink`: the name of one, of several, or None for all that
        have published a position. `lsn`: as PostgreSQL prints it, or a number. `timeout`: in seconds. `timeline`: the
        LSN's, if it is known. `system_identifier`: that of the LSN's server, if it is known; where the source was moved
        to another server, it tells LSNs of both apart. `tables`: as schema.table; by default all tables that a store
        holds. While capture still owes rows of one of them (its snapshot runs, it is stopped), or does not capture it,
        there is no answer. `accepts_rejected`: answer although rows are missing that the store or capture rejected.
        Raises WaitTimeoutError, which says what is missing; WaitError for a sink or an LSN that does not exist, for a
        table that the sink does not hold, and for rejected rows; GapError if changes may be missing from the topics;
        UnreachableError, BrokerError."""
        deadline = time.monotonic() + timeout
        with self._lock:
            if not self._is_begun:
                self._watch.read_to_end()
                self._is_begun = True
            self._watch.poll(0)
            end = self._source.read_end()
            target = target_of(read_lsn(lsn), end, self._watch.position(), timeline, system_identifier)
            asked = replace(target, tables=tables_of(tables), accepts_rejected=accepts_rejected)
            self._wait(sink, asked, deadline, timeout)

    def close(self) -> None:
        self._source.close()
        self._watch.close()

    def _wait(self, sink: str | Sequence[str] | None, target: WaitTarget, deadline: float, timeout_s: float) -> None:
        watch = self._watch
        looked = time.monotonic()
        while True:
            positions = watch.positions()
            late = obstacles(target, sink, positions)
            if not late:
                return
            now = time.monotonic()
            if now >= deadline:
                raise too_late(target, late, timeout_s)
            if now - looked > CHECK_S:
                looked = now
                watch.tail.require_answer()
            watch.poll(min(POLL_S, max(0.0, deadline - now)))


def obstacles(target: WaitTarget, sink: str | Sequence[str] | None, positions: Positions) -> dict[str, str]:
    """Returns, for each sink to wait for that does not show the target, the reason. Raises as `obstacle`."""
    names = sinks_of(sink, [record.sink for record in positions.sinks])
    found = {name: obstacle(target, name, positions) for name in names}
    return {name: reason for name, reason in found.items() if reason is not None}


def read_lsn(lsn: str | int) -> int:
    """Parses an LSN. Raises WaitError for other text."""
    try:
        return lsn if isinstance(lsn, int) else parse_lsn(lsn)
    except ValueError as error:
        raise WaitError(str(error), "write it as PostgreSQL prints it, for example 0/16B3748") from error


def sinks_of(sink: str | Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Returns the names of the sinks to wait for. Raises WaitError if none is known."""
    names = sorted(set(known)) if sink is None else [sink] if isinstance(sink, str) else list(sink)
    if not names:
        raise WaitError("no sink has published a position yet", "start one: cdc sink run NAME")
    return names


def too_late(target: WaitTarget, late: Mapping[str, str], timeout_s: float) -> WaitTimeoutError:
    """Returns the error of a wait that took too long. `late`: sink → what is missing."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in late.items())
    return WaitTimeoutError(
        f"LSN {format_lsn(Lsn(target.lsn))} was not shown in {timeout_s:g} s: {reasons}",
        "`cdc status` shows whether capture and sinks make progress; wait again or longer, or name the tables that you "
        "read: --table",
    )
