"""Heals a promotion of a standby that was behind, where the standby has the slot: then nothing is missing, but rows
whose last records come from changes that never happened are wrong.

Their keys are read from the topics (see cdc/kafka/diverged_keys.py). A Kafka transaction with the position at the point
where the branches part, in the next epoch, begins a snapshot of these rows; those that the table does not have are
deleted. Everything since that point is streamed from the slot, so no other row is read.

This is exact only where the topics were exact at that point and still have every delete behind it, and where nothing
but rows is wrong. Otherwise, and if there are many such keys, all rows are compared, as after any other gap.
"""

from contextlib import ExitStack, closing

import structlog

from cdc.config.settings import PipelineConfig
from cdc.daemon.gap_state import Heal
from cdc.kafka.broker import KafkaBroker
from cdc.kafka.compacted import read_latest
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.diverged_keys import TooManyKeysError, read_diverged_keys
from cdc.kafka.hanging_transactions import HangingTransactions
from cdc.kafka.state_reader import highest_epoch, read_captured, read_position, read_state, records_of
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.control import PositionRecord, SnapshotRecord, SweepRecord
from cdc.model.errors import ConnectionLost, GapError, SourceError
from cdc.model.events import TableId, TableSchema
from cdc.model.lsn import format_lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.stream import Clock, Probe
from cdc.postgres.catalog import Publication, continued_schema, read_publication, read_table
from cdc.postgres.connection import SourceConnection, at_slot, connect
from cdc.postgres.replication import ReplicationConnection
from cdc.postgres.source import read_flush_lsn, read_slot, source_now
from cdc.snapshots.jobs import asked_keys
from cdc.tables.continuity import require_same_source
from cdc.tables.timelines import parting

log = structlog.get_logger(__name__)

OWES = "the snapshot that heals the gap"
DELETES_SHARE = 0.5  # of the time for which topics keep deletes: clocks differ, and reading takes time


class DivergedHeal:
    """One attempt. The start lock is held."""

    def __init__(self, config: PipelineConfig, admin: TopicAdmin, clock: Clock, probe: Probe) -> None:
        """`config`: with the tables that are captured."""
        self._probe = probe
        self._config = config
        self._topics = Topics(config.topics.prefix)
        self._admin = admin
        self._clock = clock

    def run(self, position: PositionRecord, heal: Heal) -> bool:
        """Heals if that is possible in this way. Returns whether it did. Raises SourceError, BrokerError,
        ConnectionLost, UnreachableError."""
        if heal.all_rows or heal.moves_to is not None or heal.epoch is not None or not self._is_plain(position):
            return False
        with connect(self._config.source) as connection:
            found = self._followed(connection, position)
            if found is None:
                return False
            followed, switch = found
            schemas = self._unaltered(connection)
        return schemas is not None and self._heal(position, followed, switch, schemas, heal)

    def _is_plain(self, position: PositionRecord) -> bool:
        """Says whether rows are all that can be wrong, and whether they can be read by their record keys."""
        config, source = self._config, self._config.source
        # Events can't be taken back, which the heal of other gaps records. A part of a transaction that never ended is
        # not only a matter of rows.
        is_simple = position.phase == "streaming" and position.partial is None and not config.outbox.is_used
        has_keys = config.format_options.suits_sinks and not source.keyless
        return is_simple and has_keys and config.snapshot.method == "chunked"

    def _followed(self, connection: SourceConnection, position: PositionRecord) -> tuple[PositionRecord, int] | None:
        """Returns the position on the server's branch, and where the branches part; None if more than the changes that
        never happened stands against it."""
        with closing(ReplicationConnection(self._config.source.log_server)) as replication:
            identity = replication.identify()
        switch = parting(position.source, identity.branch)
        if not switch or position.published_below <= switch or highest_epoch(self._config) != position.epoch:
            return None
        with at_slot(self._config.source, connection) as server:
            slot = read_slot(server, self._config.source.slot)
        publication = self._publication(connection)
        now = source_now(identity, read_flush_lsn(connection), slot, publication)
        try:
            return require_same_source(position.model_copy(update={"published_lsn": switch}), now), switch
        except GapError as error:
            log.info("all rows are compared", reason=error.message)
            return None

    def _publication(self, connection: SourceConnection) -> Publication | None:
        return read_publication(connection, self._config.source.publication, self._config.source.table_ids)

    def _unaltered(self, connection: SourceConnection) -> list[TableSchema] | None:
        """Returns the schemas of the tables; None if one is not as it was published last, or is not captured: its
        definition may have never happened."""
        known, publication = read_captured(self._config).schemas, self._publication(connection)
        states, schemas = read_state(self._config).tables, []
        for table in self._config.source.table_ids:
            if publication is None or table not in publication.columns or table not in known or table not in states:
                return None
            try:
                found = read_table(connection, table, publication.columns[table], self._config.source.chosen(table))
            except SourceError:
                return None
            if (
                states[table].status != "captured"
                or continued_schema(found, known[table], self._topics) != known[table]
            ):
                return None
            schemas.append(known[table])
        return schemas

    def _are_complete(self, position: PositionRecord, switch: int) -> bool:
        """Says whether the topics lacked no row at the point where the branches part, and no sweep came after it."""
        snapshots = {record.table: record for record in read_state(self._config).snapshots}
        control = self._topics.control
        sweeps = records_of(SweepRecord, control, read_latest(self._config.kafka, control))
        if any(sweep.epoch == position.epoch and sweep.as_of_lsn >= switch for sweep in sweeps):
            return False
        return all(_is_complete(snapshots.get(table)) for table in self._config.source.table_ids)

    def _heal(
        self, position: PositionRecord, followed: PositionRecord, switch: int, schemas: list[TableSchema], heal: Heal
    ) -> bool:
        topics = self._admin.check([schema.topic for schema in schemas])
        if len(topics) < len(schemas):
            return False
        with ExitStack() as resources:
            broker = KafkaBroker(self._config, self._admin, topics.values(), lambda: False)
            resources.callback(broker.abort)
            broker.fence_predecessors(do_nothing)
            try:
                HangingTransactions(self._config, self._admin, broker, self._probe).end(do_nothing)
            except GapError:  # it had records that are lost
                return False
            if read_position(self._config) != position:
                raise ConnectionLost("another instance has continued meanwhile")
            if not self._are_complete(position, switch):
                return False
            deletes_kept_s = min(topic.deletes_kept_s for topic in topics.values())
            keys = self._keys(schemas, position, switch, deletes_kept_s)
            if keys is None:
                return False
            count = sum(map(len, keys.values()))
            log.info(
                "healing rows whose changes never happened", epoch=followed.epoch, rows=count, since=format_lsn(switch)
            )
            records = [self._snapshot(schema, followed.epoch, keys[schema.table]) for schema in schemas]
            broker.produce([*heal.records, *records, followed.sealed().to(self._topics.state)], do_nothing)
            broker.commit(do_nothing)
        return True

    def _keys(
        self, schemas: list[TableSchema], position: PositionRecord, switch: int, deletes_kept_s: float
    ) -> dict[TableId, tuple[str, ...]] | None:
        """Returns the record keys of each table; None if they are too many, or can't be looked up, if the epoch is not
        known to have begun before the branches part, or if a delete that never happened may be gone from the topics.
        `deletes_kept_s`: how long these keep deletes at least."""
        keys: dict[TableId, tuple[str, ...]] = {}
        has_shared, shared_ms, are_read_later = False, 0, position.read_below > switch
        for schema in schemas:
            try:
                found = read_diverged_keys(
                    self._config.kafka, schema.topic, position.epoch, switch, are_read_later=are_read_later
                )
            except TooManyKeysError:
                return None
            has_shared, shared_ms = has_shared or found.has_shared, max(shared_ms, found.shared_ms)
            keys[schema.table] = tuple(sorted(key.decode() for key in found.keys))
            if len(asked_keys(schema, keys[schema.table])) != len(keys[schema.table]):
                return None
        # What never happened was published behind the last record of the common past.
        is_recent = self._clock.now_us() / 1_000_000 - shared_ms / 1_000 < deletes_kept_s * DELETES_SHARE
        if not is_recent:
            log.info("all rows are compared", reason="topics may have forgotten deletes that never happened")
        return keys if has_shared and is_recent else None

    def _snapshot(self, schema: TableSchema, epoch: int, keys: tuple[str, ...]) -> TopicRecord:
        record = SnapshotRecord(
            request=f"epoch {epoch}",
            table_schema=schema.table.schema,
            table_name=schema.table.name,
            status="running" if keys else "done",
            sweeps=False,
            keys=keys,
            requested_us=self._clock.now_us(),
            owes=OWES if keys else "",
        )
        return record.to(self._topics.state)


def _is_complete(record: SnapshotRecord | None) -> bool:
    """Says whether this last snapshot of a table has left nothing undone, and was of all rows."""
    if record is None or record.status != "done" or record.owes or record.where is not None:
        return False
    return record.sweeps or record.request.startswith("epoch ")
