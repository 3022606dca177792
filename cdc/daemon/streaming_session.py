"""Leads from a held slot to a loop that can run: fences earlier producers, checks history, wires everything.

One session lasts until a server is lost, a change can't be published, tables are added, stopped or may return, or
capture is asked to stop.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

import structlog

from cdc.capture.assembler import Assembler
from cdc.capture.kafka_transaction import PositionConstants, Publisher
from cdc.capture.loop import STATUS_INTERVAL_S, Capture, LoopSchedule, Pipeline
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.capture.toast_backfill import ToastBackfill
from cdc.config.settings import PipelineConfig
from cdc.daemon.adding_tables import AddedTables, AdditionBarrier, TableAddition
from cdc.daemon.earlier_records import EarlierRecords
from cdc.daemon.matched_tables import log_left_out, read_matches, with_matches
from cdc.daemon.outbox_setup import open_outbox, require_columns, require_format
from cdc.daemon.record_making import envelope_context, make_unpublishable, record_encoding
from cdc.daemon.topic_identity import require_no_others_records
from cdc.formats.heartbeats import Heartbeats
from cdc.formats.records import EnvelopeContext
from cdc.formats.unpublishable import Unpublishable
from cdc.kafka.broker import KafkaBroker
from cdc.kafka.hanging_transactions import HangingTransactions
from cdc.kafka.signals import SignalReader
from cdc.kafka.state_reader import Captured, StoredState, read_captured, read_progress, read_selection, read_state
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription, TopicWatch
from cdc.kafka.topic_keys import KafkaKeyReader
from cdc.model.control import PositionRecord, SnapshotRecord, TopicState
from cdc.model.errors import (
    NEXT_AFTER_GAP,
    BrokerError,
    ConfigError,
    ConnectionLost,
    GapError,
    SourceError,
    UnsupportedChangeError,
)
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.table_state import TableFacts, TableRecord
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import RelationColumn
from cdc.ports.catalog_reader import KnownTable
from cdc.ports.published_batch import PublishedBatch
from cdc.ports.source_table import TableDescription
from cdc.ports.stream import Clock, LogStream, Probe
from cdc.postgres.catalog import Publication, describe, read_publication
from cdc.postgres.catalog_facts import describe_tables
from cdc.postgres.catalog_poll import PostgresCatalogReader
from cdc.postgres.chunks import PostgresChunkReader
from cdc.postgres.connection import at_slot, connect
from cdc.postgres.primaries import PrimaryWatch
from cdc.postgres.replication import SystemIdentity
from cdc.postgres.source import read_flush_lsn, read_slot, source_now
from cdc.postgres.toast_reader import PostgresRowReader
from cdc.snapshots.chunk_engine import RecordedSnapshots, SnapshotEngine
from cdc.snapshots.chunk_records import RowRecords
from cdc.snapshots.coordination import Restrictions, Snapshots
from cdc.snapshots.signal_answers import Answers
from cdc.snapshots.sweeps import Sweeps
from cdc.tables.continuity import loss_of, require_same_source, topic_trouble
from cdc.tables.matching import Matches, selection_of
from cdc.tables.schema_tracking import SchemaTracker, TrackedTables
from cdc.tables.selection import Doubts, TableSelection, assign, compare_tables, newly_stopped, stopped_by_topic

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    """The state and the source when the session begins. History is continuous between them."""

    state: StoredState
    position: PositionRecord  # on the source's timeline
    captured: Captured
    topics: Mapping[str, TopicDescription]  # of the configured tables, as far as they exist
    descriptions: Mapping[TableId, TableDescription]
    publication: Publication
    selection: TableSelection

    @property
    def is_promoted(self) -> bool:
        """Says whether the position in the state topic is of the timeline that the source was on before."""
        return self.state.position is not None and self.state.position.epoch != self.position.epoch


@dataclass(frozen=True, slots=True)
class _Capturable:
    """The tables that this session captures."""

    schemas: tuple[TableSchema, ...]
    leaving: tuple[TableSchema, ...]  # removed, but captured until a transaction that is published in part ends
    publication: Publication
    topics: Mapping[str, TopicDescription]
    snapshots: Sequence[SnapshotRecord]
    constants: PositionConstants
    facts: Mapping[TableId, TableFacts | None]  # as of the last catalog poll


OnTablesPublished = Callable[[Mapping[str, str], PublishedBatch], None]
"""Told of each Kafka transaction, with topic → schema.table of the captured tables. Must return at once."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The configuration file, which may be read again while a session lasts."""

    reload: Callable[[], str]  # see Service.reload
    is_due: Callable[[], bool]  # whether the session is to end for it
    in_force: Callable[[], PipelineConfig]  # as it was read last


class Session:
    """Makes the loop. What it opens is closed with the caller's resources."""

    def __init__(
        self,
        config: PipelineConfig,
        admin: TopicAdmin,
        clock: Clock,
        addition_barrier: AdditionBarrier,
        failures: Mapping[TableId, UnsupportedChangeError],
        should_stop: Callable[[], bool],
        probe: Probe,
        file: ConfigFile | None = None,
        on_published: OnTablesPublished | None = None,
    ) -> None:
        """`failures`: tables whose changes could not be published in earlier sessions."""
        self._file = file
        self._on_published = on_published
        self._config = config
        self._topics = Topics(config.topics.prefix)
        self._admin = admin
        self._clock = clock
        self._addition_barrier = addition_barrier
        self._failures = failures
        self._should_stop = should_stop
        self._probe = probe

    def prepare(
        self,
        resources: ExitStack,
        stream: LogStream,
        identity: SystemIdentity,
        patience_s: float,
        started_at: Lsn,
        primaries: PrimaryWatch,
        reads_all_again: bool,
    ) -> Capture:
        """Prepares a session. `stream` begins at `started_at`; the server ends the connection after `patience_s`
        of our silence (0: never). Raises GapError if history is not continuous, BrokerError, ConnectionLost."""

        def stay_connected() -> None:
            stream.send_status(started_at, started_at, reply_requested=False)

        had = read_selection(self._config)
        matches = read_matches(self._config, had)
        log_left_out(self._config, matches)
        self._config = with_matches(self._config, matches)
        topics = self._admin.describe([self._topics.table(table) for table in self._config.source.table_ids])
        broker = KafkaBroker(self._config, self._admin, topics.values(), self._should_stop)
        resources.callback(broker.abort)
        stay_connected()
        broker.fence_predecessors(stay_connected)
        HangingTransactions(self._config, self._admin, broker, self._probe).end(stay_connected)
        state = read_state(self._config)
        if state.selection != had:
            raise ConnectionLost("another instance has captured other tables meanwhile")
        stay_connected()
        found = self._require_continuity(state, identity, topics, matches)
        broker.encode = record_encoding(self._config, found.captured)
        stay_connected()
        these = self._capturable(broker, found, stay_connected)
        current = found.position
        context = envelope_context(self._config, identity, current)
        sweeps = Sweeps(self._topics, current.epoch, found.captured.floors)
        unpublishable = make_unpublishable(self._config, self._admin, these.topics, state.unpublished, these.leaving)
        engine = self._engine(these, state, context, sweeps, unpublishable)
        snapshots = self._snapshots(resources, engine, these, found, context)
        tracker = self._tracker(resources, snapshots, these, found, context)
        rows = PostgresRowReader(self._config.source, these.publication)
        resources.callback(rows.close)
        since = {schema.table: these.constants.topics[schema.topic].since_lsn for schema in these.schemas}
        tables, resume = CapturedTables(these.schemas, since, these.leaving), StreamState.of(current)
        outbox = open_outbox(self._config, promises_utf8=identity.promises_utf8)
        snapshots.forget({record.table for record in these.snapshots} - engine.tables.keys())
        if reads_all_again:
            snapshots.begin_all(f"start at {self._clock.now_us()}", self._clock.now_us())
        compacted, logs = context.format.side_topics(self._topics)
        self._admin.create(self._config.topics, {"heartbeat": compacted, "metadata": logs})
        log.info("streaming", epoch=current.epoch, seq=current.seq, position=format_lsn(current.resume_lsn))
        return Capture(
            pipeline=Pipeline(
                stream=stream,
                assembler=Assembler(tables, context, resume, engine, tracker, unpublishable, outbox),
                backfill=ToastBackfill(rows, engine.complete, self._clock, time.sleep, fits=unpublishable.accepts),
                snapshots=snapshots,
                publisher=Publisher(these.constants, self._config.capture),
                broker=broker,
            ),
            clock=self._clock,
            topics=self._topics,
            schedule=self._schedule(
                patience_s, context, self._watch(these, tracker, broker, primaries), self._ends(these), these.schemas
            ),
            probe=self._probe,
            should_stop=lambda: (
                self._should_stop()
                or self._addition_barrier.is_due
                or tracker.is_due
                or snapshots.tables_changed
                or (self._file is not None and self._file.is_due())
            ),
        )

    def _schedule(
        self,
        patience_s: float,
        context: EnvelopeContext,
        watch: Callable[[], None],
        check_ends: Callable[[Mapping[str, Sequence[int]]], None],
        schemas: Sequence[TableSchema],
    ) -> LoopSchedule:
        options, names = context.format, {schema.topic: str(schema.table) for schema in schemas}
        return LoopSchedule(
            self._config.capture,
            min(STATUS_INTERVAL_S, patience_s / 4) if patience_s else STATUS_INTERVAL_S,
            watch,
            Heartbeats(self._topics.prefix, options.heartbeat_interval_ms, schemas_enable=options.schemas_enable),
            check_ends,
            awaits_cuts=self._config.has_sinks_at_cuts,
            on_published=None if self._on_published is None else partial(self._on_published, names),
        )

    def _require_continuity(
        self,
        state: StoredState,
        identity: SystemIdentity,
        topics: Mapping[str, TopicDescription],
        matches: Matches,
    ) -> _Found:
        """Checks that history is continuous for the tables that are captured already. `topics`: see _Found."""
        source, position = self._config.source, state.position
        if position is None:
            raise GapError(f"topic {self._topics.state} lost its position record", NEXT_AFTER_GAP)
        captured = read_captured(self._config)
        with connect(source) as sql:
            flush_lsn = read_flush_lsn(sql)
            with at_slot(source, sql) as server:
                slot = read_slot(server, source.slot)
            publication = read_publication(sql, source.publication, source.table_ids)
            descriptions = {} if publication is None else describe_tables(sql, source, publication)
        position = require_same_source(position, source_now(identity, flush_lsn, slot, publication))
        assert publication is not None, "or it would be another than the position's"
        tables = compare_tables(source.table_ids, captured.schemas, position, self._topics)
        descriptions = descriptions | self._without_format(descriptions, tables.joining)
        unread = [t for t in source.table_ids if source.is_outbox(t) or self._config.snapshot.mode == "never"]
        doubts = self._doubts(position, publication, tables.kept, topics, matches, captured.schemas)
        selection = assign(tables, position, captured.schemas, descriptions, state.tables, doubts, unread)
        source.columns.require_unpublished(selection.kept)
        return _Found(state, position, captured, topics, descriptions, publication, selection)

    def _without_format(
        self, descriptions: Mapping[TableId, TableDescription], joining: Sequence[TableId]
    ) -> dict[TableId, TableDescription]:
        """Describes the tables of whose rows no records can be made as they are now: they are stopped, each alone. Of
        a table that is captured already, a schema for the registry is made with the first record that needs it."""
        barred = {}
        for table, description in descriptions.items():
            if description.found is None or self._config.source.is_outbox(table):
                continue
            try:
                if table in joining:
                    require_format(self._config, None, description.found)
                else:
                    require_columns(self._config, description.found)
            except (ConfigError, SourceError) as error:
                barred[table] = replace(
                    description, error=description.error or error, barrier=description.barrier or error
                )
        return barred

    def _doubts(
        self,
        position: PositionRecord,
        publication: Publication,
        kept: Sequence[TableSchema],
        topics: Mapping[str, TopicDescription],
        matches: Matches,
        captured: Collection[TableId],
    ) -> Doubts:
        """`captured`: tables that ever were. Raises GapError where it is not one table that is in doubt, or where its
        changes can't be read again."""
        is_altered = publication.fingerprint != position.publication
        if is_altered and not publication.publishes_all:
            raise GapError("the publication was altered, and leaves out some operations", NEXT_AFTER_GAP)
        now = self._admin.states(topics.values())
        troubles = {
            schema.table: f"topic {schema.topic} {trouble}"
            for schema in kept
            if (trouble := topic_trouble(position.topics[schema.topic], now.get(schema.topic)))
        }
        for table, trouble in troubles.items():
            # A transaction that is published in part goes on in all of its topics.
            if position.partial is not None or self._config.source.is_outbox(table):
                raise GapError(trouble, NEXT_AFTER_GAP)
        unusable = {
            table: problem
            for table in self._config.source.table_ids
            if (topic := topics.get(self._topics.table(table)))
            and (problem := self._admin.unusable(topic) or self._foreign(table, captured, now[topic.name]))
        }
        return Doubts(
            failures=self._failures,
            topics=troubles,
            unusable={**matches.stopped, **unusable},
            are_held=self._are_held,
            is_publication_altered=is_altered,
        )

    def _foreign(self, table: TableId, captured: Collection[TableId], topic: TopicState) -> BrokerError | None:
        """Returns why a table can't be added: its topic has records, none of which capture has written."""
        if table in captured or self._config.source.is_outbox(table):
            return None
        try:
            require_no_others_records(table, self._topics.table(table), topic)
        except BrokerError as error:
            return error
        return None

    def _capturable(self, broker: KafkaBroker, found: _Found, stay_connected: Callable[[], None]) -> _Capturable:
        """Adds the tables that can be added, leaves out those that are stopped, and commits that. Other tables wait for
        a later session."""
        state, position, publication, selection = found.state, found.position, found.publication, found.selection
        addition = TableAddition(self._config, self._admin, self._clock, self._probe)
        if selection.joining:
            before = dict(publication.entries)
            publication = addition.publish(selection.joining, publication)
            if any(before.get(s.table) != publication.entries.get(s.table) for s in selection.kept):
                raise ConnectionLost("the publication was altered meanwhile")
        joins = self._addition_barrier.published(selection.joining, publication)
        if joins and not self._addition_barrier.is_granted(joins, publication, stay_connected):
            log.info(
                "tables are added as soon as transactions that began earlier have ended",
                tables=" ".join(map(str, joins)),
            )
            joins = ()
        kept = {schema.topic: position.topics[schema.topic] for schema in selection.kept}
        left = tuple(sorted(position.topics.keys() - kept.keys()))
        added = AddedTables(snapshots=state.snapshots)
        if joins or left:
            added = addition.join(joins, left, publication, state, found.captured, self._failures)
        schemas = (*selection.kept, *added.schemas)
        names = [schema.table for schema in schemas]
        last_facts = {table: record.facts for table, record in state.tables.items()}
        leaving = {topic: position.topics[topic] for topic in left}
        these = _Capturable(
            schemas=schemas,
            leaving=tuple(s for s in found.captured.schemas.values() if s.topic in left and s.table not in names),
            publication=publication,
            topics={topic: found.topics[topic] for topic in kept} | dict(added.topics),
            snapshots=added.snapshots,
            constants=PositionConstants(
                position.epoch,
                position.source,
                publication.fingerprint,
                kept | dict(added.states),
                position.history,
                leaving,
                position.published_below,
                position.read_below,
            ),
            facts={t: found.descriptions[t].facts if t in joins else last_facts.get(t) for t in names},
        )
        records = [*self._newly_stopped(selection, state), *self._newly_owed(these, selection), *added.records]
        records += self._newly_selected(state)
        if found.is_promoted:
            log.warning(
                "the source was promoted, and has all that is published: publishing continues, no row is read again",
                timeline=position.source.timeline,
                position=format_lsn(position.resume_lsn),
                epoch=position.epoch,
            )
        if records or joins or left or found.is_promoted:
            now_us = self._clock.now_us()
            records += [
                TableRecord.captured(table, these.facts[table], now_us).to(self._topics.state) for table in joins
            ]
            now = Publisher(these.constants, self._config.capture).position(StreamState.of(position))
            broker.produce([*records, now.to(self._topics.state)], stay_connected)
            broker.commit(stay_connected)
            if found.is_promoted:
                self._probe("promotion.recorded")
            if joins or left:
                self._probe("join.recorded")
            if joins:
                self._addition_barrier.close()
        broker.follow(these.topics.values())
        return these

    def _newly_owed(self, these: _Capturable, selection: TableSelection) -> list[TopicRecord]:
        """Returns the last progress record with the tables that it does not know to be owed: the position does not name
        their topics, so a waiter would not miss them before the next one."""
        owed = {str(table): why for table, why in self._uncaptured(these, selection).items()}
        progress = read_progress(self._config) if owed else None
        if progress is None or progress.epoch != these.constants.epoch or owed.keys() <= progress.owed.keys():
            return []  # no waiter is answered by a record of another epoch
        return [progress.model_copy(update={"owed": progress.owed | owed}).to(self._topics.progress)]

    def _newly_selected(self, state: StoredState) -> list[TopicRecord]:
        """Returns the record of the tables, if it changes, without the records of those that are configured no longer.
        Tables that an operator stopped stay so if they come back."""
        now, tables = selection_of(self._config.source), self._config.source.table_ids
        gone = [t for t, record in state.tables.items() if t not in tables and not record.is_held]
        records = [TopicRecord(self._topics.state, TableRecord.key_of(table).encode(), None) for table in gone]
        return [*records, *([now.to(self._topics.state)] if now != state.selection else ())]

    def _newly_stopped(self, selection: TableSelection, state: StoredState) -> list[TopicRecord]:
        records = newly_stopped(selection, state.tables, self._clock.now_us())
        for record in records:
            log.error(
                "table stopped, the others continue", table=str(record.table), error=record.message, next=record.next
            )
        return [record.to(self._topics.state) for record in records]

    def _engine(
        self,
        these: _Capturable,
        state: StoredState,
        context: EnvelopeContext,
        sweeps: Sweeps,
        unpublishable: Unpublishable,
    ) -> SnapshotEngine:
        return SnapshotEngine(
            schemas=these.schemas,
            row_records=RowRecords(context, unpublishable),
            sweeps=sweeps,
            limits=self._config.snapshot,
            recorded=RecordedSnapshots(
                records=these.snapshots,
                tombstones=state.tombstones if self._config.sweep.tombstones else None,
                incomplete=state.holes,
            ),
        )

    def _snapshots(
        self,
        resources: ExitStack,
        engine: SnapshotEngine,
        these: _Capturable,
        found: _Found,
        context: EnvelopeContext,
    ) -> Snapshots:
        limits = self._config.snapshot
        keys = resources.enter_context(closing(KafkaKeyReader(self._config.kafka, context)))
        reader = PostgresChunkReader(
            self._config.source, these.publication, limits.workers, limits.split_rows_min, self._probe, keys
        )
        resources.enter_context(closing(reader))
        signals = SignalReader(self._config.kafka, self._topics.signals, found.state.signals_offset)
        resources.enter_context(closing(signals))
        unchunkable = frozenset(table for table, now in found.descriptions.items() if now.unchunkable is not None)
        answers = Answers(self._topics, found.captured.answers)
        outboxes = frozenset(filter(self._config.source.is_outbox, found.descriptions))
        stopped = {table: None if stop.is_held else stop.why for table, stop in found.selection.stopped.items()}
        return Snapshots(
            engine,
            reader,
            keys,
            signals,
            answers,
            Restrictions(
                unchunkable,
                stopped,
                outboxes,
                self._uncaptured(these, found.selection),
                found.position.source.server,
            ),
            None if self._file is None else self._file.reload,
        )

    def _uncaptured(self, these: _Capturable, selection: TableSelection) -> dict[TableId, str]:
        """Returns the configured tables of which no changes are published now, with the reason in words."""
        source, captured = self._config.source, {schema.table for schema in these.schemas}
        joining = {table: "it is being added" for table in selection.joining if table not in captured}
        stopped = {table: f"it is stopped: {stop.why.message}" for table, stop in selection.stopped.items()}
        return {table: why for table, why in (joining | stopped).items() if not source.is_outbox(table)}

    def _tracker(
        self,
        resources: ExitStack,
        snapshots: Snapshots,
        these: _Capturable,
        found: _Found,
        context: EnvelopeContext,
    ) -> SchemaTracker:
        source, is_half_published = self._config.source, found.position.partial is not None
        catalog = resources.enter_context(closing(PostgresCatalogReader(source, self._topics, found.captured.schemas)))

        def described(oid: int, sent: Sequence[RelationColumn]) -> Sequence[Column]:
            with connect(source, application="watershed describe") as sql:
                return describe(sql, oid, sent)

        return SchemaTracker(
            topics=self._topics,
            tables=TrackedTables(
                known={
                    schema.table: KnownTable(
                        schema, these.facts[schema.table], these.publication.entries.get(schema.table, "")
                    )
                    for schema in these.schemas
                },
                stopped={
                    table: "" if is_half_published else found.descriptions[table].state
                    for table, stop in found.selection.stopped.items()
                    if not stop.is_held
                },
                publication=these.publication.fingerprint,
                is_half_published=is_half_published,
            ),
            describe=described,
            catalog=catalog,
            rows=snapshots,
            earlier=EarlierRecords(
                source, self._file.in_force if self._file is not None else lambda: self._config, context
            ),
            now_us=self._clock.now_us,
        )

    def _ends(self, these: _Capturable) -> Callable[[Mapping[str, Sequence[int]]], None]:
        """Returns the check that no topic ends before an end that it had reached: a position must not record that."""
        reached = {topic: state.end_offsets for topic, state in these.constants.topics.items()}
        tables = {schema.topic: schema.table for schema in these.schemas}

        def check(ends: Mapping[str, Sequence[int]]) -> None:
            for topic, offsets in ends.items():
                now, then = (TopicState(topic_id="", end_offsets=tuple(some)) for some in (offsets, reached[topic]))
                if loss := loss_of(now, then):
                    if self._config.source.is_outbox(tables[topic]):
                        raise GapError(f"topic {topic} {loss}", NEXT_AFTER_GAP)
                    raise stopped_by_topic(tables[topic], f"topic {topic} {loss}", is_held=self._are_held)
                reached[topic] = tuple(offsets)

        return check

    @property
    def _are_held(self) -> bool:
        """Says whether a table whose topic is in doubt waits for an operator."""
        return not self._config.heals_itself

    def _watch(
        self, these: _Capturable, tracker: SchemaTracker, broker: KafkaBroker, primaries: PrimaryWatch
    ) -> Callable[[], None]:
        topics = TopicWatch(self._admin, these.topics, these.constants.topics)

        def watch() -> None:
            primaries.check()
            tracker.watch()
            topics()
            broker.check_after_outage()

        return watch
