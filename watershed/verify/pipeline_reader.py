"""The positions of capture and of the sinks, and waiting until both have reached a position."""

import time
from typing import Final, Self

from cdc.config.config_file import Config
from cdc.model.control import IncompleteRowsRecord, SnapshotRecord
from cdc.model.errors import NotInTimeError
from cdc.model.events import TableId, pack_version
from cdc.model.lsn import format_lsn
from cdc.model.sink_records import SinkRecord, newest
from watershed.client.applied import is_reached, target_of
from watershed.client.pipeline_watch import CHECK_S, POLL_S, PipelineWatch
from watershed.client.source_reader import PostgresSourceReader

SETTLED_S_MAX: Final = 10.0


class SinkStalledError(NotInTimeError):
    """Raised for a sink that has never run, or does not make progress: its store has not reached the position at which
    it would be compared.
    """


class PipelineReader:
    """Follows the topics of state and progress, and reads the end of the source's log. A context manager."""

    def __init__(self, config: Config, timeout_s: float) -> None:
        """`timeout_s`: the time that reach waits while the sink makes no progress."""
        self._timeout_s = timeout_s
        self._source = PostgresSourceReader(config.source)
        self._watch = PipelineWatch.of(config)

    def __enter__(self) -> Self:
        try:
            self._watch.read_to_end()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()
        self._watch.close()

    def wait_until_applied(self, sink: str) -> None:
        """Waits until the store shows everything that had committed before the call, and the position record contains
        it. Raises SinkStalledError if the sink makes no progress, and GapError.
        """
        watch = self._watch
        watch.poll(0)
        end = self._source.read_end()
        target = target_of(end.insert_lsn, end, watch.position())
        seen, moved = -1, time.monotonic()
        looked = moved
        while not self._is_reached(target.lsn) or not is_reached(target, sink, watch.positions()):
            now = time.monotonic()
            record = self.record(sink)
            applied = record.applied_lsn if record is not None else 0
            if applied != seen:
                seen, moved = applied, now
            if now - moved > self._timeout_s:
                raise SinkStalledError(
                    f"sink {sink} does not make progress: it has been at {format_lsn(applied)} for "
                    f"{self._timeout_s:g} s, and its store is compared when it has reached {format_lsn(target.lsn)}",
                    f"start capture and the sink (cdc run, cdc sink run {sink}), or wait longer: --sink-timeout",
                )
            if now - looked > CHECK_S:
                looked = now
                watch.tail.require_answer()
            watch.poll(POLL_S)

    def require_sink(self, sink: str) -> None:
        """Raises SinkStalledError for a sink that has never published a position."""
        if all(record.sink != sink for record in self._watch.sinks()):
            raise SinkStalledError(
                f"sink {sink} has never run: its store holds nothing", f"start it: cdc sink run {sink}"
            )

    def record(self, sink: str) -> SinkRecord | None:
        """Returns the newest record of the sink about the generation that serves, as of what was read so far."""
        return newest(self._watch.sinks(), sink)

    def read_on(self) -> None:
        """Reads the records that were published by now."""
        self._watch.read_on()

    def ceiling(self) -> int:
        """Returns the highest version that was published, according to the position record that was read last."""
        position = self._watch.position()
        return 0 if position is None else pack_version(position.epoch, position.seq)

    def unsettled(self, table: TableId, wait_s: float = SETTLED_S_MAX) -> str:
        """Returns the reason why rows of the table are still to be published although nothing changes them; "" if there
        is none, or if the reason has passed within `wait_s`.
        """
        deadline = time.monotonic() + wait_s
        self._watch.read_on()
        while (reason := self._unsettled(table)) and time.monotonic() < deadline:
            self._watch.poll(POLL_S)
        return reason

    def has_requested_keys(self, table: TableId) -> bool:
        """Returns whether requested keys of the table are still to be published."""
        self._watch.read_on()
        holes = self._holes(table)
        return holes is not None and bool(holes.asked)

    def _unsettled(self, table: TableId) -> str:
        snapshot = self._watch.state(SnapshotRecord, SnapshotRecord.key_of(table))
        if snapshot is not None and snapshot.status in ("running", "paused"):
            return f"a snapshot of {table} is {snapshot.status} (cdc snapshot status)"
        holes = self._holes(table)
        if holes is not None and (holes.keys or holes.is_whole):
            return f"rows of {table} are being completed"
        return ""

    def _holes(self, table: TableId) -> IncompleteRowsRecord | None:
        return self._watch.state(IncompleteRowsRecord, IncompleteRowsRecord.key_of(table))

    def _is_reached(self, lsn: int) -> bool:
        position = self._watch.position()
        return position is not None and position.resume_lsn >= lsn
