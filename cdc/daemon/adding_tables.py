"""A session with other tables than the last one: some are added, some were removed; the others are not read again.

A table is added to the publication, then every transaction must end that runs at that time, and only then an LSN is
read (`since_lsn`). docs/design/tables.md says why each step is needed. One Kafka transaction records that the table
is captured and that its rows are to be read: if the process dies before it, the next session adds the table.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from cdc.config.settings import PipelineConfig, SourceConfig
from cdc.kafka.state_reader import Captured, StoredState
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription
from cdc.model.control import ENDED, SchemaRecord, SnapshotRecord, TopicState
from cdc.model.errors import ConnectionLost, SourceError, UnsupportedChangeError
from cdc.model.events import TableId, TableSchema
from cdc.model.lost_events import NEXT as NEXT_AFTER_LOSS
from cdc.model.lost_events import lost_before, lost_records
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.ports.source_table import SourceTable
from cdc.ports.stream import Clock, Probe
from cdc.postgres.catalog import Publication, schema_of
from cdc.postgres.connection import SourceConnection, connect
from cdc.postgres.source import (
    TableLockedError,
    add_one_to_publication,
    add_to_publication,
    checked_table,
    has_rows,
    read_log_end,
)
from cdc.postgres.transaction_barrier import Wait, barrier_wait
from cdc.snapshots.coordination import NOT_READ
from cdc.tables.continuity import incarnation_of
from cdc.tables.selection import require_same_keys

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 1.0  # most transactions have ended by then; the stream of the other tables waits
STEP_S: Final = 0.25


class AdditionBarrier:
    """Waits until tables can be added: until no lock keeps them out of the publication, and every transaction has ended
    that ran when they were added to it. One object for the life of a process, over many sessions."""

    def __init__(self, source: SourceConfig) -> None:
        self._source = source
        self._entries: Mapping[TableId, str] = {}
        self._wait: Wait | None = None
        self._locked: Sequence[TableId] = ()
        self._unlocked: Wait | None = None  # one of them is published

    def use(self, source: SourceConfig) -> None:
        """Another server is the primary: what was waited for on the former one means nothing."""
        if source.dsn == self._source.dsn:
            return
        self.close()
        if self._unlocked is not None:
            self._unlocked.close()
        self._unlocked, self._locked, self._entries, self._source = None, (), {}, source

    @property
    def is_due(self) -> bool:
        """Says whether something has happened that a session without these tables waits for: then the session may
        end."""
        return any(wait is not None and wait.is_over for wait in (self._wait, self._unlocked))

    def published(self, joining: Sequence[TableId], publication: Publication) -> Sequence[TableId]:
        """Returns the tables that are published. The locks of the others are waited for beside the stream, without a
        limit. Each session calls this: the tables that are waited for may have changed."""
        locked = tuple(table for table in joining if table not in publication.columns)
        if self._unlocked is not None and (locked != self._locked or self._unlocked.is_over):
            self._unlocked.close()
            self._unlocked = None
        if locked and self._unlocked is None:
            if locked != self._locked:
                log.warning(
                    "tables are locked and are added when the locks are released", tables=" ".join(map(str, locked))
                )
            self._unlocked = Wait(
                self._source,
                "watershed join",
                lambda connection, closing: add_one_to_publication(connection, self._source, locked, closing),
            )
        self._locked = locked
        if len(locked) == len(joining):
            self.close()
        return [table for table in joining if table not in locked]

    def is_granted(
        self, joining: Sequence[TableId], publication: Publication, stay_connected: Callable[[], None]
    ) -> bool:
        """Waits for the transactions: at most PATIENCE_S, then while streaming. `joining` are in the publication."""
        entries = {table: publication.entries.get(table, "") for table in joining}
        failed = self._wait is not None and self._wait.is_over and not self._wait.is_passed(0)
        if self._wait is None or entries != self._entries or failed:
            self.close()
            self._entries, self._wait = entries, barrier_wait(self._source)
        for _ in range(round(PATIENCE_S / STEP_S)):
            if self._wait.is_passed(STEP_S):
                return True
            stay_connected()
        return False

    def close(self) -> None:
        """Ends the wait for transactions. Idempotent."""
        if self._wait is not None:
            self._wait.close()
            self._wait = None


@dataclass(frozen=True, slots=True)
class AddedTables:
    """The result of adding tables; without arguments, but `snapshots`, that of adding none."""

    snapshots: tuple[SnapshotRecord, ...]  # all snapshots in state, after these records
    schemas: tuple[TableSchema, ...] = ()  # of the added tables
    topics: Mapping[str, TopicDescription] = field(default_factory=dict)  # theirs
    states: Mapping[str, TopicState] = field(default_factory=dict)  # theirs, for the position
    records: tuple[TopicRecord, ...] = ()  # for the Kafka transaction of the position


class TableAddition:
    """Adds tables. Used with the slot held, earlier producers fenced, and history found continuous for the kept
    tables."""

    def __init__(self, config: PipelineConfig, admin: TopicAdmin, clock: Clock, probe: Probe) -> None:
        self._config = config
        self._topics = Topics(config.topics.prefix)
        self._admin = admin
        self._clock = clock
        self._probe = probe

    def publish(self, joining: Sequence[TableId], publication: Publication) -> Publication:
        """Adds the tables to the publication, except those that are locked. Raises SourceError if the role has no right
        to do so, and ConnectionLost."""
        missing = [table for table in joining if table not in publication.columns]
        before, added = publication.fingerprint, []
        for table in missing:
            with connect(self._config.source, application="watershed join") as connection, suppress(TableLockedError):
                publication = add_to_publication(connection, self._config.source, table)
                added.append(table)
        if publication.fingerprint != before:
            raise ConnectionLost(f"publication {publication.name} was altered by another session meanwhile")
        if added:
            log.info("tables added to the publication", tables=" ".join(map(str, added)))
            self._probe("join.published")
        return publication

    def join(
        self,
        joining: Sequence[TableId],
        left: Sequence[str],
        publication: Publication,
        state: StoredState,
        captured: Captured,
        failed: Collection[TableId] = (),
    ) -> AddedTables:
        """Adds the tables; to be called behind the barrier. `left`: topics of tables that are removed. `failed`: tables
        that stopped in an earlier session of this process, perhaps because their topics lost records. Raises
        UnsupportedChangeError for a table that can't be added, BrokerError, and ConnectionLost, also if a table was
        altered meanwhile."""
        topics = self._make_topics(joining, captured)
        with connect(self._config.source, application="watershed join") as connection:
            source = self._config.source
            found = [self._found(connection, table, publication, captured) for table in joining]
            since_lsn = read_log_end(connection)
            outboxes = [table for table in joining if source.is_outbox(table)]
            # Behind that, as a row that is not visible yet may be before the LSN: rather one too many.
            unread = [table for table in outboxes if table in captured.schemas or has_rows(connection, table)]
        schemas = [schema_of(table, captured.schemas.get(table.table), self._topics) for table in found]
        for schema in schemas:
            log.info("table added", table=str(schema.table), since=format_lsn(since_lsn))
        for topic in left:
            if topic not in topics:  # else it is removed and added again
                log.info("changes of a table are no longer published", topic=topic)
        position = state.position
        assert position is not None, "tables are added to a position"
        now = self._admin.states(topics.values())
        lost = [lost_before(table, position.epoch, since_lsn) for table in unread]
        for record in lost:
            log.warning(str(record), next=NEXT_AFTER_LOSS)
        snapshots = {record.table: record for record in state.snapshots}
        changed = [
            *self._cancelled(left, state.snapshots),
            *self._requested([t for t in joining if not source.is_outbox(t)], captured.schemas, since_lsn),
        ]
        return AddedTables(
            schemas=tuple(schemas),
            topics=topics,
            states={
                schema.topic: now[schema.topic].model_copy(
                    update={
                        "end_offsets": (),
                        "incarnation": _incarnation(
                            now[schema.topic],
                            position.topics.get(schema.topic) if schema.table not in failed else None,
                            captured,
                            schema.table,
                            since_lsn,
                        ),
                        "publication_entry": publication.entries.get(schema.table, ""),
                        "since_lsn": since_lsn,
                    }
                )
                for schema in schemas
            },
            records=(
                *(SchemaRecord.of(schema).to(self._topics.control) for schema in schemas),
                *(record.to(self._topics.state) for record in changed),
                *(made for record in lost for made in lost_records(self._topics, record)),
            ),
            snapshots=tuple((snapshots | {record.table: record for record in changed}).values()),
        )

    def _found(
        self, connection: SourceConnection, table: TableId, publication: Publication, captured: Captured
    ) -> SourceTable:
        """Raises ConnectionLost for a table that can't be added. It could when the session began; the next session
        stops it, alone."""
        try:
            found = checked_table(connection, table, publication, self._config.source.chosen(table))
            require_same_keys(captured.schemas.get(table), found)
        except SourceError as error:
            raise ConnectionLost(f"a table was altered while it was added: {error.message}") from error
        return found

    # ---- topics

    def _make_topics(self, joining: Sequence[TableId], captured: Captured) -> dict[str, TopicDescription]:
        owners = {schema.topic: schema.table for schema in captured.schemas.values()}
        wanted = [self._topics.table(table) for table in joining]
        for table, topic in zip(joining, wanted, strict=True):
            if owners.get(topic, table) != table:
                raise UnsupportedChangeError(
                    f"table {table} can't be added: its topic {topic} was that of table {owners[topic]}",
                    "take it out of source.tables, or start with a new topics.prefix and slot",
                    table=table,
                )
        self._admin.check(wanted)
        self._admin.create(self._config.topics, {"table": wanted})
        return self._admin.check(wanted)

    # ---- snapshots

    def _requested(
        self, joining: Sequence[TableId], before: Collection[TableId], since_lsn: Lsn
    ) -> list[SnapshotRecord]:
        """Requests snapshots that end with a sweep, because rows that a table lost while it was not captured are not
        known. If rows are never read, a table in `before`, which was captured already, owes these until an operator
        requests a snapshot."""
        is_read = self._config.snapshot.mode != "never"
        return [
            SnapshotRecord(
                request=f"joined at {format_lsn(since_lsn)}",
                table_schema=table.schema,
                table_name=table.name,
                status="running" if is_read else "cancelled",
                sweeps=True,
                requested_us=self._clock.now_us(),
                message="" if is_read else NOT_READ,
                owes="its snapshot since it was added again" if table in before else "its snapshot since it was added",
            )
            for table in joining
            if is_read or table in before
        ]

    def _cancelled(self, left: Sequence[str], snapshots: Iterable[SnapshotRecord]) -> list[SnapshotRecord]:
        return [
            _ended(record, "the table is no longer captured")
            for record in snapshots
            if self._topics.table(record.table) in left and record.status not in ENDED
        ]


def _ended(record: SnapshotRecord, why: str) -> SnapshotRecord:
    return record.model_copy(update={"status": "cancelled", "message": why})


def _incarnation(now: TopicState, held: TopicState | None, captured: Captured, table: TableId, since_lsn: int) -> str:
    """Returns the incarnation of an added table's topic. Of a table that was captured earlier, the topic was not
    watched meanwhile: offsets that were noted then mean nothing."""
    mark = f"{since_lsn:X}"
    if held is None and table in captured.schemas:
        return f"{now.topic_id}#{mark}"
    return incarnation_of(now, [held] if held is not None else [], mark)
