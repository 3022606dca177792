"""The initial load: every existing row becomes an `r` event at the slot's consistent point.

Its positions have phase `loading`. A process that finds one starts over in the next epoch, because the exported
transaction snapshot ended with the old process. The new attempt ends with a sweep for each table: rows that the old
attempt published and that were deleted since are neither in the new snapshot nor in the new stream.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from cdc.capture.kafka_transaction import Publisher
from cdc.capture.stream_state import StreamState
from cdc.formats.records import TableEncoder
from cdc.formats.unpublishable import Unpublishable
from cdc.model.control import SchemaRecord, SnapshotRecord, SweepRecord
from cdc.model.errors import UnsupportedChangeError
from cdc.model.events import Position, TableId, TableSchema, pack_version
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.ports.stream import Broker, Clock, Probe, unarmed

log = structlog.get_logger(__name__)

# Rows and bytes that are encoded before the limits of the Kafka transaction are checked again.
BATCH_ROWS = 1_000
BATCH_BYTES = 4 * 1024 * 1024
REPORT_INTERVAL_S = 5.0


class LoadStopped(Exception):  # noqa: N818
    """The process was asked to stop. The next start begins the load again."""


@dataclass(frozen=True, slots=True)
class TableLoad:
    """A table to load: its encoder, and its rows as lines of COPY's text format."""

    schema: TableSchema
    encoder: TableEncoder
    lines: Iterator[bytes]
    rows_estimated: int
    last_floor: int  # of the table's last sweep in any epoch; 0: there was none


class InitialLoad:
    """Publishes the rows of all tables, then the position record from which streaming begins."""

    def __init__(
        self,
        *,
        broker: Broker,
        publisher: Publisher,
        unpublishable: Unpublishable,
        consistent_point: Lsn,
        clock: Clock,
        should_stop: Callable[[], bool],
        probe: Probe = unarmed,
    ) -> None:
        self._broker = broker
        self._publisher = publisher
        self._topics = unpublishable.topics
        self._unpublishable = unpublishable
        self._lsn = consistent_point
        self._clock = clock
        self._should_stop = should_stop
        self._probe = probe
        self._seq = 0
        self._last_floors: dict[TableId, int] = {}

    def run(self, tables: Sequence[TableLoad], last_records: Sequence[TopicRecord] = ()) -> None:
        """Loads the tables. `last_records`: records for the load's last Kafka transaction. Raises LoadStopped, and
        whatever the broker and the lines raise."""
        try:
            self._produce(SchemaRecord.of(table.schema).to(self._topics.control) for table in tables)
            self._commit(is_loading=True)
            self._last_floors = {table.schema.table: table.last_floor for table in tables}
            counts = {table.schema.table: self._load(table) for table in tables}
            self._probe("load.before-end")
            self._finish(counts, last_records)
        except BaseException:
            self._broker.abort()
            raise

    def _load(self, table: TableLoad) -> int:
        """Returns the number of published rows."""
        began = reported = self._clock.monotonic()
        first = self._seq
        for batch in _batches(table.lines):
            self._produce(self._records(table, batch))
            self._probe("load.rows-produced")
            now = self._clock.monotonic()
            if self._publisher.is_due(now, is_dry=False):
                self._commit(is_loading=True)
                self._probe("load.part-committed")
            if self._should_stop():
                raise LoadStopped
            if now - reported >= REPORT_INTERVAL_S:
                reported = now
                log.info(
                    "loading",
                    table=str(table.schema.table),
                    rows=self._seq - first,
                    rows_estimated=table.rows_estimated or None,
                    rows_per_s=round((self._seq - first) / (now - began)),
                )
        log.info("table loaded", table=str(table.schema.table), rows=self._seq - first)
        return self._seq - first

    def _records(self, table: TableLoad, lines: Sequence[bytes]) -> Iterator[TopicRecord]:
        now_us = self._clock.now_us()
        usual = self._unpublishable.row_records(table.encoder, lines, self._lsn, self._seq, self._seq + 1, now_us)
        if usual is not None:
            self._seq += len(usual)
            yield from usual
            return
        for line in lines:
            try:
                made = self._unpublishable.row_record(table.encoder, line, self._lsn, self._seq, self._seq + 1, now_us)
            except UnsupportedChangeError as error:
                yield from self._unpublishable.replacements(table.schema, Position(self._lsn, self._seq), error, now_us)
            else:
                self._seq += 1
                yield TopicRecord(table.schema.topic, *made)

    def _finish(self, counts: Mapping[TableId, int], last_records: Sequence[TopicRecord]) -> None:
        """Ends the load in one Kafka transaction; from then on a restart streams. `counts`: table → published rows."""
        epoch, records = self._publisher.constants.epoch, [*last_records]
        for table, rows in counts.items():
            done = SnapshotRecord(
                request=f"epoch {epoch}",
                table_schema=table.schema,
                table_name=table.name,
                status="done",
                sweeps=epoch > 1,
                rows=rows,
                requested_us=self._clock.now_us(),
            )
            records.append(done.to(self._topics.state))
            if epoch > 1:
                sweep = SweepRecord.of(table, pack_version(epoch, 0), self._lsn, epoch, self._last_floors[table])
                records.append(sweep.to(self._topics.control))
        self._produce(records)
        self._commit(is_loading=False)

    # ---- Kafka

    def _produce(self, records: Iterable[TopicRecord]) -> None:
        batch = list(records)
        self._publisher.on_produced(batch, self._clock.monotonic())
        self._broker.produce(batch, _no_wait)

    def _commit(self, *, is_loading: bool) -> None:
        state = StreamState(resume_lsn=self._lsn, partial=None, seq=self._seq, commit_ts_us=0)
        position = self._publisher.position(state, is_loading=is_loading)
        self._broker.produce([position.to(self._topics.state)], _no_wait)
        self._broker.commit(_no_wait)
        self._publisher.on_committed()


def _no_wait() -> None:
    """No replication connection has to be kept alive during the load."""


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
