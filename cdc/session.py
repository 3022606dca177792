"""From a held slot to a loop that can run: earlier producers fenced, history checked, everything wired.

One session lasts until a server is lost, or until capture is asked to stop.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

import structlog

import cdc
from cdc.answers import Answers
from cdc.bootstrap import open_broker, relation_of
from cdc.capture import STATUS_INTERVAL_S, Capture
from cdc.config import Config
from cdc.continuity import SourceNow, TopicNow, require_same_source, require_same_tables, require_same_topics
from cdc.control import PositionRecord, Topics
from cdc.errors import NEXT_AFTER_GAP, GapError
from cdc.events import TableSchema
from cdc.filling import Filler
from cdc.formats.debezium import EnvelopeContext, TableEncoder
from cdc.kafka.records import Captured, State, read_captured, read_state
from cdc.kafka.signals import SignalReader
from cdc.kafka.topic_keys import KafkaKeyReader
from cdc.kafka.topics import TopicAdmin, TopicDescription
from cdc.kafka.watch import TopicWatch
from cdc.lsn import Lsn, format_lsn
from cdc.ports import Clock, Probe
from cdc.postgres.catalog import Publication, read_publication
from cdc.postgres.chunks import PostgresChunkReader
from cdc.postgres.connection import connect
from cdc.postgres.replication import ReplicationConnection, SystemIdentity
from cdc.postgres.reread import PostgresRowReader
from cdc.postgres.source import read_flush_lsn, read_slot
from cdc.postgres.watch import PublicationWatch
from cdc.publisher import Lineage, Publisher
from cdc.snapshots.completion import Completions
from cdc.snapshots.engine import SnapshotEngine
from cdc.snapshots.readers import Readers
from cdc.snapshots.session import Snapshots
from cdc.sweeps import Sweeps
from cdc.transactions import Assembler, StreamState

log = structlog.get_logger(__name__)


class Session:
    """Makes the loop. What it opens is closed with the caller's resources."""

    def __init__(
        self, config: Config, admin: TopicAdmin, clock: Clock, should_stop: Callable[[], bool], probe: Probe
    ) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)
        self._admin = admin
        self._clock = clock
        self._should_stop = should_stop
        self._probe = probe

    def prepare(
        self,
        resources: ExitStack,
        connection: ReplicationConnection,
        identity: SystemIdentity,
        patience_s: float,
        position: PositionRecord,
        reads_all_again: bool,
    ) -> Capture:
        """`connection` streams from `position`; the server hangs up after `patience_s` of our silence (0: never).
        Raises GapError where history is not continuous, BrokerError, ConnectionLost."""
        resume_lsn = Lsn(position.resume_lsn)

        def stay_connected() -> None:
            connection.send_status(resume_lsn, resume_lsn, reply_requested=False)

        described = self._admin.check([self._topics.table(table) for table in self._config.source.table_ids])
        broker = open_broker(self._config, self._admin, described)
        resources.callback(broker.close)
        stay_connected()
        broker.fence_predecessors(stay_connected)
        state = read_state(self._config)
        current = state.position
        stay_connected()
        if current is None:
            raise GapError(f"topic {self._topics.state} lost its position record", NEXT_AFTER_GAP)
        captured = read_captured(self._config)
        schemas, publication = self._require_continuity(current, identity, described, captured)
        stay_connected()
        context = EnvelopeContext(self._topics.prefix, current.source.database, current.epoch, cdc.__version__)
        sweeps = Sweeps(self._topics, current.epoch, captured.floors)
        engine = self._engine(state, current.epoch, schemas, context, sweeps)
        answers = Answers(self._topics, captured.answers)
        snapshots = self._snapshots(resources, engine, publication, schemas, state.signals_offset, answers)
        snapshots.forget({record.table for record in state.snapshots} - engine.tables.keys())
        if reads_all_again:
            snapshots.begin_all(f"start at {self._clock.now_us()}", self._clock.now_us())
        log.info("streaming", epoch=current.epoch, seq=current.seq, position=format_lsn(current.resume_lsn))
        return Capture(
            stream=connection,
            broker=broker,
            assembler=Assembler(schemas, context, stream_state(current), sweeps, engine),
            filler=self._filler(resources, engine, publication, schemas),
            snapshots=snapshots,
            publisher=self._publisher(current, described),
            topics=self._topics,
            limits=self._config.capture,
            clock=self._clock,
            should_stop=self._should_stop,
            watch=self._watch(resources, current, described),
            probe=self._probe,
            status_interval_s=min(STATUS_INTERVAL_S, patience_s / 4) if patience_s else STATUS_INTERVAL_S,
        )

    def _require_continuity(
        self,
        position: PositionRecord,
        identity: SystemIdentity,
        described: dict[str, TopicDescription],
        captured: Captured,
    ) -> tuple[list[TableSchema], Publication]:
        source = self._config.source
        with connect(source) as sql:
            flush_lsn = read_flush_lsn(sql)
            slot = read_slot(sql, source.slot)
            publication = read_publication(sql, source.publication, source.table_ids)
        require_same_source(
            position,
            SourceNow(
                system_identifier=identity.system_identifier,
                timeline=identity.timeline,
                database=identity.database,
                flush_lsn=flush_lsn,
                slot_wal_status=slot.wal_status if slot else None,
                slot_confirmed_lsn=slot.confirmed_flush_lsn if slot else None,
                publication=publication.fingerprint if publication else None,
            ),
        )
        ends = self._admin.request_end_offsets({t.name: t.partition_count for t in described.values()}).wait()
        require_same_topics(position, {t.name: TopicNow(t.topic_id, ends[t.name]) for t in described.values()})
        assert publication is not None, "or it would be another than the position's"
        return require_same_tables(source.table_ids, captured.schemas, position), publication

    def _engine(
        self, state: State, epoch: int, schemas: Sequence[TableSchema], context: EnvelopeContext, sweeps: Sweeps
    ) -> SnapshotEngine:
        return SnapshotEngine(
            topics=self._topics,
            epoch=epoch,
            schemas=schemas,
            encoder_of=lambda schema: TableEncoder(schema, relation_of(schema), context),
            sweeps=sweeps,
            limits=self._config.snapshot,
            records=state.snapshots,
            tombstones=state.tombstones if self._config.sweep.tombstones else None,
            completions=Completions(schemas, state.holes),
        )

    def _filler(
        self, resources: ExitStack, engine: SnapshotEngine, publication: Publication, schemas: Sequence[TableSchema]
    ) -> Filler:
        reader = resources.enter_context(PostgresRowReader(self._config.source, publication, schemas))
        return Filler(reader, engine.complete, self._clock, time.sleep)

    def _snapshots(
        self,
        resources: ExitStack,
        engine: SnapshotEngine,
        publication: Publication,
        schemas: Sequence[TableSchema],
        signals_offset: int,
        answers: Answers,
    ) -> Snapshots:
        limits = self._config.snapshot
        reader = PostgresChunkReader(
            self._config.source, publication, schemas, limits.workers, limits.split_rows_min, self._probe
        )
        resources.enter_context(reader)
        keys = resources.enter_context(KafkaKeyReader(self._config.kafka))
        signals = SignalReader(self._config.kafka, self._topics.signals, signals_offset)
        resources.enter_context(closing(signals))
        return Snapshots(engine, Readers(reader, keys), signals, answers, self._topics, limits)

    def _publisher(self, position: PositionRecord, described: dict[str, TopicDescription]) -> Publisher:
        topic_ids = {topic.name: topic.topic_id for topic in described.values()}
        lineage = Lineage(position.epoch, position.source, position.publication, topic_ids)
        ends = {name: topic.end_offsets for name, topic in position.topics.items()}
        return Publisher(lineage, self._config.capture, ends)

    def _watch(
        self, resources: ExitStack, position: PositionRecord, described: dict[str, TopicDescription]
    ) -> Callable[[], None]:
        publication = PublicationWatch(self._config.source, position.publication)
        resources.callback(publication.close)
        topics = TopicWatch(self._admin, described)

        def watch() -> None:
            publication()
            topics()

        return watch


def stream_state(position: PositionRecord) -> StreamState:
    """Where the assembler begins."""
    return StreamState(Lsn(position.resume_lsn), position.partial, position.seq, commit_ts_us=0)
