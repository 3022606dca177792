"""Read your writes: wait until derived stores show everything up to an LSN.

with psycopg.connect(...) as connection:
    connection.execute("UPDATE ...")
    connection.commit()
    (lsn,) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
watershed_client.wait_for(Path("watershed.yml"), "search", lsn, timeout=10)
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cdc.config.settings import PipelineConfig, load_pipeline
from cdc.model.errors import WatershedError
from cdc.model.lsn import format_lsn, parse_lsn
from cdc.model.sink_records import SinkRecord, newest
from watershed_client.applied import WaitError, is_shown, target_of
from watershed_client.pipeline_watch import CHECK_S, POLL_S, PipelineWatch
from watershed_client.source_reader import PostgresSourceReader

TIMEOUT_S: Final = 30.0


class WaitTimeoutError(WatershedError):
    """The stores did not show the LSN in time."""


def wait_for(
    config: PipelineConfig | Path,
    sink: str | Sequence[str] | None,
    lsn: str | int,
    timeout: float = TIMEOUT_S,
    timeline: int | None = None,
) -> None:
    """Does what `Waiter.wait_for` does, with connections of its own."""
    with Waiter(config) as waiter:
        waiter.wait_for(sink, lsn, timeout, timeline)


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
    ) -> None:
        """Waits until stores show everything up to the LSN. `sink`: the name of one, of several, or None for all that
        have published a position. `lsn`: as PostgreSQL prints it, or a number. `timeout`: in seconds. `timeline`: the
        LSN's, if it is known. Raises WaitTimeoutError; WaitError for a sink or an LSN that does not exist; GapError if
        changes may be missing from the topics; UnreachableError, BrokerError."""
        deadline = time.monotonic() + timeout
        with self._lock:
            self._wait(sink, read_lsn(lsn), deadline, timeout, timeline)

    def close(self) -> None:
        self._source.close()
        self._watch.close()

    def _wait(
        self, sink: str | Sequence[str] | None, lsn: int, deadline: float, timeout: float, timeline: int | None
    ) -> None:
        watch = self._watch
        if not self._is_begun:
            watch.read_to_end()
            self._is_begun = True
        watch.poll(0)
        target = target_of(lsn, self._source.read_end(), watch.position(), timeline)
        looked = time.monotonic()
        while True:
            sinks, position = watch.sinks(), watch.position()
            names = sinks_of(sink, [record.sink for record in sinks])
            late = [name for name in names if not is_shown(target, name, sinks, position)]
            if not late:
                return
            now = time.monotonic()
            if now >= deadline:
                raise WaitTimeoutError(*_too_late(late, sinks, target.lsn, timeout))
            if now - looked > CHECK_S:
                looked = now
                watch.tail.require_answer()
            watch.poll(min(POLL_S, max(0.0, deadline - now)))


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


def _too_late(late: Sequence[str], sinks: Sequence[SinkRecord], lsn: int, timeout: float) -> tuple[str, str]:
    reached = []
    for name in late:
        record = newest(sinks, name)
        reached.append(f"{name} is at {format_lsn(record.applied_lsn) if record is not None else 'nothing'}")
    return (
        f"LSN {format_lsn(lsn)} was not shown in {timeout:g} s: {', '.join(reached)}",
        "`cdc status` shows whether capture and sinks make progress; wait again, or longer",
    )
