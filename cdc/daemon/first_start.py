"""The first start and healing: from nothing, or from a gap, to a position record from which streaming starts.

It writes an intent record, creates the slot, then writes the record with the slot's consistent point. In the same Kafka
transaction are the snapshot records of the tables, which are read in chunks beside the stream from then on; with method
`consistent` all existing rows come first. A first start that is repeated, after a crash or to heal a gap, raises the
epoch. If a table's topic is known to have kept its records, the table's snapshot compares: it publishes the rows that
differ from the topic, and deletes those that the table does not have. Otherwise it publishes every row, and a sweep at
its end removes the rows that the new epoch did not publish.

A move to another server is such a heal, with a slot on that server: LSNs of the former server mean nothing there.

Until the stream holds the slot, nothing else at the source keeps a second instance away, so all of this happens under
an advisory lock.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing, suppress

import structlog

from cdc.capture.consistent_load import InitialLoad, LoadStopped, TableLoad
from cdc.capture.kafka_transaction import PositionConstants, Publisher
from cdc.capture.stream_state import StreamState
from cdc.config.settings import PipelineConfig
from cdc.daemon.continued_tables import continued
from cdc.daemon.gap_state import Heal
from cdc.daemon.record_making import envelope_context, make_unpublishable, record_encoding
from cdc.daemon.topic_identity import identities, went_back
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.kafka.broker import KafkaBroker
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.hanging_transactions import HangingTransactions
from cdc.kafka.state_reader import (
    highest_epoch,
    read_captured,
    read_lost_events,
    read_position,
    read_prefixes,
    read_progress,
    read_state,
)
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription
from cdc.model.control import (
    PROTOCOL,
    HangingTransactionRecord,
    PositionRecord,
    SchemaRecord,
    SnapshotRecord,
    SourceIdentity,
)
from cdc.model.errors import NEXT_AFTER_OTHER_SERVER, ConnectionLost, GapError, OtherDatabaseError, SourceError
from cdc.model.events import EPOCH_MAX, TableId, TableSchema, pack_version
from cdc.model.lost_events import NEXT as NEXT_AFTER_LOSS
from cdc.model.lost_events import LostEventsRecord, lost_before, lost_from, lost_records
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.table_state import TableRecord
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics, unknown_slot
from cdc.pgoutput.relations import relation_of
from cdc.ports.stream import Clock, Probe
from cdc.postgres.catalog import Publication, continued_schema, read_publication, read_table, schema_of
from cdc.postgres.catalog_facts import read_facts
from cdc.postgres.connection import SourceConnection, at_slot, connect
from cdc.postgres.exported_snapshot import SnapshotReader, lock_tables
from cdc.postgres.replication import (
    SLOT_WAIT_S,
    SLOT_WAIT_S_FIRST,
    CreatedSlot,
    ReplicationConnection,
    SlotExistsError,
    SlotWaitError,
    SystemIdentity,
)
from cdc.postgres.source import (
    Slot,
    add_to_publication,
    create_publication,
    drop_slot,
    read_log_end,
    read_slot,
)
from cdc.postgres.standby_log import StandbyBehindError, create_slot
from cdc.postgres.transaction_barrier import running
from cdc.tables.continuity import intact_topics, require_same_database
from cdc.tables.matching import selection_of
from cdc.tables.selection import require_same_keys

log = structlog.get_logger(__name__)


class Bootstrap:
    """Leads from no position, an interrupted load, or a gap that is healed, to a position from which
    streaming starts."""

    def __init__(
        self, config: PipelineConfig, admin: TopicAdmin, clock: Clock, should_stop: Callable[[], bool], probe: Probe
    ) -> None:
        self._config = config
        self._source = config.source
        self._topics = Topics(config.topics.prefix)
        self._admin = admin
        self._clock = clock
        self._should_stop = should_stop
        self._probe = probe

    def run(self, previous: PositionRecord | None, heal: Heal | None = None) -> None:
        """Runs the first start, until the position from which to stream is recorded. `heal`: discard what `previous`
        says about the source's history, if there is one.

        Raises LoadStopped after a request to stop; SourceError, BrokerError, GapError, ConnectionLost.
        """
        epoch = self._next_epoch(previous, heal)
        with ExitStack() as resources, connect(self._source) as connection:
            replication = ReplicationConnection(self._source.log_server)
            resources.callback(replication.close)
            server = resources.enter_context(at_slot(self._source, connection))
            identity = replication.identify()
            left_out: list[TopicRecord] = []
            is_continued = previous is not None or heal is not None
            is_own_slot = previous is not None and _is_of(previous, identity, self._source.slot)
            if not is_continued:
                self._source, left_out = continued(self._config, connection, self._clock.now_us(), is_continued=False)
                self._require_nothing_published()
            if previous is not None and heal is not None:
                _require_decided(previous, heal, identity)
            if previous is not None and heal is None:
                self._require_own_slot(previous, identity)
            elif not is_own_slot and not (heal is not None and heal.replaces_slot):
                require_no_slot(read_slot(server, self._source.slot), self._config)
            topics = self._create_topics()
            broker = KafkaBroker(self._config, self._admin, topics.values(), self._should_stop)
            resources.callback(broker.abort)
            broker.fence_predecessors(do_nothing)
            with suppress(GapError):  # all rows are read under a new epoch, so nothing that is lost matters
                HangingTransactions(self._config, self._admin, broker, self._probe).end(do_nothing)
            # Nobody else can write any more. The previous owner may have written until it was fenced.
            if read_position(self._config) != previous:
                raise ConnectionLost("another instance has continued meanwhile")
            broker.encode = record_encoding(self._config)
            slot_now = read_slot(server, self._source.slot) if is_own_slot else None
            continues = is_continued and not went_back(previous, slot_now)
            if previous is not None:
                log.info("healing" if heal else "the last start was interrupted, restarting", epoch=epoch)
                drop_slot(server, self._source.slot)
            if is_continued:
                found = self._admin.states(topics.values()) if heal is not None else {}
                now_us = self._clock.now_us()
                self._source, left_out = continued(self._config, connection, now_us, is_continued=True, topics=found)
            publication = self._publication(connection)
            source = self._source_identity(connection, identity, previous)
            constants = self._position_constants(epoch, source, publication, topics, previous, continues=continues)
            lost = self._lost_events(previous, heal, epoch)
            self._record_intent(broker, constants, lost)
            slot = self._create_slot(resources, connection, replication, server)
            log.info("slot created", slot=self._source.slot, consistent_point=format_lsn(slot.consistent_point))
            captured = self._captured(connection)  # first, so that the next poll sees what changes meanwhile
            schemas = self._describe(connection, publication, is_continued=is_continued)
            selection = selection_of(self._config.source).to(self._topics.state)
            events = self._completed(lost, slot) if lost is not None else self._existing_events(slot, epoch)
            records = (*(heal.records if heal else ()), selection, *captured, *left_out, *events)
            if self._is_chunked(heal):
                owes = "the snapshot that heals the gap" if heal else "its initial snapshot"
                compared = self._comparable(constants, schemas, heal)
                self._begin_streaming(broker, constants, slot.consistent_point, schemas, compared, records, owes)
            else:
                reader = resources.enter_context(closing(SnapshotReader(self._source, slot.snapshot_name)))
                unpublished = read_state(self._config).unpublished
                load = InitialLoad(
                    broker=broker,
                    publisher=Publisher(constants, self._config.capture),
                    consistent_point=slot.consistent_point,
                    clock=self._clock,
                    should_stop=self._should_stop,
                    probe=self._probe,
                    unpublishable=make_unpublishable(self._config, self._admin, topics, unpublished),
                )
                context = envelope_context(self._config, identity, constants)
                load.run(self._table_loads(schemas, reader, context, slot.consistent_point, publication), records)

    def _next_epoch(self, previous: PositionRecord | None, heal: Heal | None) -> int:
        if heal is not None:
            known = highest_epoch(self._config)
            if heal.epoch is not None and heal.epoch <= known:
                raise GapError(
                    f"epoch {heal.epoch} is not above epoch {known}, which is in use", f"--epoch {known + 1}"
                )
            if heal.epoch is None and known == 0:
                raise GapError(
                    f"no topic of prefix {self._topics.prefix} contains the number of the last epoch",
                    "cdc snapshot heal --epoch N, with N above every epoch that records of the prefix have ever had",
                )
            epoch = heal.epoch or known + 1
        else:
            epoch = 1 if previous is None else previous.epoch + 1
        if epoch > EPOCH_MAX:
            raise GapError(f"epoch {epoch} is above the largest possible epoch", "start with a new topics.prefix")
        return epoch

    def _is_chunked(self, heal: Heal | None) -> bool:
        """Says whether rows are read beside the stream. Method `consistent` reads them first, unless there are none to
        read."""
        return self._config.snapshot.method == "chunked" or (heal is None and self._config.snapshot.mode == "never")

    def _begin_streaming(
        self,
        broker: KafkaBroker,
        constants: PositionConstants,
        consistent_point: Lsn,
        schemas: Sequence[TableSchema],
        compared: Collection[TableId],
        leading: Sequence[TopicRecord],
        owes: str,
    ) -> None:
        """Writes one Kafka transaction with the tables' schemas, their snapshot records and the position to stream
        from. `compared`: tables whose snapshots compare. `owes`: what these snapshots are, in words."""
        is_read = self._config.snapshot.mode != "never" or constants.epoch > 1
        records = [*leading]
        for schema in schemas:
            records.append(SchemaRecord.of(schema).to(self._topics.control))
            if is_read and not self._source.is_outbox(schema.table):
                compares = schema.table in compared
                sweeps = constants.epoch > 1 and not compares
                snapshot = SnapshotRecord(
                    request=f"epoch {constants.epoch}",
                    table_schema=schema.table.schema,
                    table_name=schema.table.name,
                    status="running",
                    sweeps=sweeps,
                    floor=pack_version(constants.epoch, 0) if sweeps else None,
                    compares=compares,
                    requested_us=self._clock.now_us(),
                    owes=owes,
                )
                records.append(snapshot.to(self._topics.state))
        state = StreamState(resume_lsn=consistent_point, partial=None, seq=0, commit_ts_us=0)
        position = Publisher(constants, self._config.capture).position(state)
        records.append(position.to(self._topics.state))
        broker.produce(records, do_nothing)
        self._probe("bootstrap.before-commit")
        broker.commit(do_nothing)

    def _comparable(
        self, constants: PositionConstants, schemas: Sequence[TableSchema], heal: Heal | None
    ) -> set[TableId]:
        """Returns the tables of which only the rows are published that differ from the topic. Where a sweep was due
        before, all are, because it must not be left out."""
        asks_for_all = heal is not None and heal.all_rows
        # Rows that the table does not have are found by their record keys, which not every form can be looked up by.
        if asks_for_all or not self._config.format_options.suits_sinks:
            return set()
        intact = intact_topics(constants.topics, constants.history, read_progress(self._config))
        to_sweep = {record.table for record in read_state(self._config).snapshots if record.owes_sweep}
        return {s.table for s in schemas if s.key and s.topic in intact and s.table not in to_sweep}

    # ---- topics

    @property
    def _table_topics(self) -> list[str]:
        return [self._topics.table(table) for table in self._source.table_ids]

    def _require_nothing_published(self) -> None:
        """Refuses topics with records if there is no position: the state topic was lost, and with it what the records
        mean."""
        found = self._admin.check(self._table_topics)
        ends = self._admin.request_end_offsets({t.name: t.partition_count for t in found.values()}).wait()
        for topic, offsets in ends.items():
            if any(offsets):
                raise GapError(
                    f"topic {topic} holds records, but {self._topics.state} holds no position",
                    "choose another topics.prefix if these topics are another pipeline's; if they are this one's and "
                    "its state is lost: cdc snapshot heal reads all rows again, under a new epoch",
                )

    def _require_own_slot(self, previous: PositionRecord, identity: SystemIdentity) -> None:
        """The slot that will be dropped is the one that the interrupted load made, and no other."""
        then = previous.source
        if not _is_of(previous, identity, self._source.slot):
            raise SourceError(
                f"the initial load of prefix {self._topics.prefix} did not end; it read database {then.database} "
                f"(system identifier {then.system_identifier}) through slot {then.slot}, the configuration names "
                f"{identity.database} ({identity.system_identifier}) and {self._source.slot}",
                "undo the change of source.dsn or source.slot, or choose another topics.prefix",
            )

    def _create_topics(self) -> dict[str, TopicDescription]:
        self._admin.check([*self._table_topics, self._topics.state, self._topics.progress, self._topics.control])
        self._admin.create(
            self._config.topics,
            {
                "table": self._table_topics,
                "state": [self._topics.state],
                "progress": [self._topics.progress],
                "control": [self._topics.control],
                "signals": [self._topics.signals],
                "audit": [self._topics.audit],
            },
        )
        topics = self._admin.check(self._table_topics)
        kept_s = self._config.topics.config.deletes_kept_s
        for topic in topics.values():
            if topic.deletes_kept_s < kept_s and topic.cleanup_policy == "compact":
                log.warning(
                    "a topic forgets deletes earlier than sinks take for granted",
                    topic=topic.name,
                    delete_retention_ms=round(topic.deletes_kept_s * 1000),
                    next=f"set delete.retention.ms={round(kept_s * 1000)} on {topic.name}",
                )
        return topics

    # ---- publication and slot

    def _publication(self, connection: SourceConnection) -> Publication:
        name, tables = self._source.publication, self._source.table_ids
        publication = read_publication(connection, name, tables)
        if publication is None:
            publication = create_publication(connection, self._source)
            log.info("publication created", publication=name)
        missing = [table for table in tables if table not in publication.columns]
        for table in missing:
            add_to_publication(connection, self._source, table)
        if missing:
            log.info("tables added to the publication", tables=" ".join(map(str, missing)))
        publication = read_publication(connection, name, tables, filters=tables)
        if publication is None:
            raise ConnectionLost(f"publication {name} was dropped meanwhile")
        return publication

    def _source_identity(
        self, connection: SourceConnection, identity: SystemIdentity, previous: PositionRecord | None
    ) -> SourceIdentity:
        moved_at = 0
        if previous is not None:
            is_moved = previous.source.server != identity.server
            end = int(read_log_end(connection))
            moved_at = end if is_moved else min(previous.source.moved_at, end)  # a server may be restored
        return SourceIdentity(
            system_identifier=identity.system_identifier,
            timeline=identity.timeline,
            database=identity.database,
            slot=self._source.slot,
            branches=identity.ended or (),
            moved_at=moved_at,
        )

    def _position_constants(
        self,
        epoch: int,
        source: SourceIdentity,
        publication: Publication,
        topics: dict[str, TopicDescription],
        previous: PositionRecord | None,
        *,
        continues: bool,
    ) -> PositionConstants:
        """`continues`: what the records say of history and topics is not older than what readers know."""
        entries = {self._topics.table(t): publication.entries.get(t, "") for t in self._source.table_ids}
        named = [topics[name] for name in entries]
        history, states = identities(self._config, self._admin, named, previous, epoch, continues=continues)
        captured = {
            name: now.model_copy(update={"end_offsets": (), "publication_entry": entries[name]})
            for name, now in states.items()
        }
        return PositionConstants(epoch, source, publication.fingerprint, captured, history)

    def _lost_events(self, previous: PositionRecord | None, heal: Heal | None, epoch: int) -> LostEventsRecord | None:
        """Returns the record of the events that this start loses, if events are published."""
        if not self._config.outbox.is_used or (previous is None and heal is None):
            return None
        progress = read_progress(self._config)
        lost = lost_from(previous, read_lost_events(self._config), epoch, progress.commit_ts_us if progress else 0)
        is_moved = heal is not None and heal.moves_to is not None
        return lost.model_copy(update={"from_lsn": 0}) if lost is not None and is_moved else lost

    def _existing_events(self, slot: CreatedSlot, epoch: int) -> list[TopicRecord]:
        """Returns the records of outbox tables that have rows from before the slot: no snapshot publishes them."""
        outboxes = [table for table in self._source.table_ids if self._source.is_outbox(table)]
        if not outboxes:
            return []
        with closing(SnapshotReader(self._source, slot.snapshot_name)) as reader:
            lost = [lost_before(table, epoch, slot.consistent_point) for table in outboxes if reader.has_rows(table)]
        for record in lost:
            log.warning(str(record), next=NEXT_AFTER_LOSS)
        return [made for record in lost for made in lost_records(self._topics, record)]

    def _completed(self, lost: LostEventsRecord, slot: CreatedSlot) -> list[TopicRecord]:
        ended = lost.ended(slot.consistent_point)
        log.warning(str(ended), next=NEXT_AFTER_LOSS)
        return lost_records(self._topics, ended)

    def _record_intent(self, broker: KafkaBroker, constants: PositionConstants, lost: LostEventsRecord | None) -> None:
        """Writes the intent before the slot exists: after a crash the next start knows whose slot it is, and from where
        events are lost."""
        intent = PositionRecord(
            phase="intent",
            epoch=constants.epoch,
            seq=0,
            resume_lsn=0,
            source=constants.source,
            publication=constants.publication,
            protocol=PROTOCOL,
            topics=dict(constants.topics),
            history=constants.history,
        ).sealed()
        records = [] if lost is None else lost_records(self._topics, lost, read_lost_events(self._config))
        no_note = TopicRecord(self._topics.state, HangingTransactionRecord.KEY.encode(), None)
        broker.produce([*records, no_note, intent.to(self._topics.state)], do_nothing)
        broker.commit(do_nothing)

    def _create_slot(
        self,
        resources: ExitStack,
        connection: SourceConnection,
        replication: ReplicationConnection,
        server: SourceConnection,
    ) -> CreatedSlot:
        """Locks the tables until `resources` are closed, then creates the slot with its exported snapshot. `server`: a
        connection to the server of `replication`."""
        wait_s = SLOT_WAIT_S_FIRST
        while True:
            with ExitStack() as locks:
                locks.enter_context(closing(lock_tables(self._source)))
                try:
                    slot = create_slot(replication, connection, server, self._source.slot, wait_s)
                except SlotWaitError as error:
                    if isinstance(error, StandbyBehindError):
                        log.warning(error.message, next=error.hint)
                    else:
                        log.warning("slot creation waits for transactions that began earlier", **running(connection))
                    if self._should_stop():
                        raise LoadStopped from None
                    wait_s = SLOT_WAIT_S
                    continue
                except SlotExistsError as error:
                    raise SourceError(
                        f"slot {self._source.slot} was created by another session meanwhile",
                        "choose another source.slot",
                    ) from error
                resources.enter_context(locks.pop_all())
                return slot

    # ---- tables

    def _describe(
        self, connection: SourceConnection, publication: Publication, *, is_continued: bool
    ) -> list[TableSchema]:
        """Describes the tables under the locks. Each schema that was ever published has a version of its own."""
        known = read_captured(self._config).schemas
        described = []
        for table in self._source.table_ids:
            found = read_table(connection, table, publication.columns[table], self._source.chosen(table))
            try:
                require_same_keys(known.get(table) if is_continued else None, found)
            except SourceError as error:
                raise ConnectionLost(f"a table was altered meanwhile: {error.message}") from error
            make = continued_schema if is_continued else schema_of
            described.append(make(found, known.get(table), self._topics))
        return described

    def _captured(self, connection: SourceConnection) -> list[TopicRecord]:
        """Returns the records that the tables are captured, with their catalog's facts under the locks."""
        facts, now_us = read_facts(connection, self._source.table_ids), self._clock.now_us()
        return [
            TableRecord.captured(table, facts.get(table), now_us).to(self._topics.state)
            for table in self._source.table_ids
        ]

    def _table_loads(
        self,
        schemas: Sequence[TableSchema],
        reader: SnapshotReader,
        context: EnvelopeContext,
        consistent_point: Lsn,
        publication: Publication,
    ) -> list[TableLoad]:
        loads, floors = [], read_captured(self._config).floors
        for schema in schemas:
            if self._source.is_outbox(schema.table):
                continue
            encoder = TableEncoder(schema, relation_of(schema), context)
            encoder.start_snapshot(consistent_point, self._clock.now_us())
            lines = reader.lines(schema, row_filter=publication.row_filters.get(schema.table))
            loads.append(TableLoad(schema, encoder, lines, reader.estimate(schema), floors.get(schema.table, 0)))
        return loads


def require_no_slot(slot: Slot | None, config: PipelineConfig) -> None:
    """Raises SourceError if a slot of the configured name exists although the prefix has no position: it is somebody
    else's."""
    if slot is not None:
        raise unknown_slot(config.source.slot, config.topics.prefix, read_prefixes(config.kafka))


def _is_of(position: PositionRecord, identity: SystemIdentity, slot: str) -> bool:
    """Says whether a slot of this name, in the present database, is the position's."""
    return (position.source.server, position.source.slot) == (identity.server, slot)


def _require_decided(position: PositionRecord, heal: Heal, identity: SystemIdentity) -> None:
    """Raises OtherDatabaseError if nobody decided to compare the topics with this database: what it lacks would be
    deleted. Its address may lead to another server than when the gap was found."""
    if heal.moves_to is None:
        require_same_database(position, *identity.server)
    elif heal.moves_to != identity.server:
        name, system = identity.database, identity.system_identifier
        raise OtherDatabaseError(
            f"source.dsn leads to database {name} (system identifier {system}) now, not to the one to move to",
            NEXT_AFTER_OTHER_SERVER,
            identity.server,
        )
