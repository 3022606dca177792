"""Tables that change while they are captured: a new version of the schema, rows that are read again, or a table that
stops.

There are two sources of changes. A relation message in the stream comes before the first row with a new schema; it is
followed at once, in the Kafka transaction of that row. And the catalog is polled every few seconds, since the stream
does not report everything that changes rows or their types, and does not describe a table again that nobody writes to.
A poll that finds a difference is answered first; then its watermark is written into the log. When the watermark is
received, everything that the poll saw is behind the stream, so its effects have their place there. If a table changed
again between poll and watermark, its part of the answer is void; the next poll follows.
"""

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from cdc.model.control import SchemaRecord
from cdc.model.errors import (
    NEXT_AFTER_ALTER,
    NEXT_AFTER_REPLACED,
    ConnectionLost,
    UnsupportedChangeError,
)
from cdc.model.events import TableId, TableSchema
from cdc.model.table_state import TableFacts, TableRecord
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import Relation
from cdc.pgoutput.relations import relation_of
from cdc.ports.catalog_reader import (
    CatalogAnswer,
    CatalogPoll,
    CatalogPollFailed,
    CatalogReader,
    DivergedTable,
    KnownTable,
)
from cdc.tables.schema_changes import (
    ColumnChanges,
    Describe,
    announced,
    followed,
    is_unclear,
    new_columns,
    rows_changed,
    why_not_followed,
    with_partition,
)

log = structlog.get_logger(__name__)


class ExistingRows(Protocol):
    """Reads existing rows of tables that changed again. See cdc/snapshots/coordination.py."""

    def alter(self, schema: TableSchema) -> None:
        """The table has this schema from here on."""

    def reread(self, table: TableId, why: str) -> list[TopicRecord]:
        """Reads all rows of the table again, for this reason. Returns the records that say so."""


class EarlierRecords(Protocol):
    """Knows what readers make of records of earlier versions of a schema. See cdc/daemon/earlier_records.py."""

    def constants(self, oid: int, names: Collection[str]) -> Mapping[str, str]:
        """Returns what DivergedTable.constants has, of the catalog as it is now. Raises ConnectionLost."""

    def encoded(self, schema: TableSchema, constants: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Returns TableSchema.filled for these constants, without those that records can't have."""

    def why_published_again(self, schema: TableSchema, dropped: Collection[str], added: Collection[str]) -> str | None:
        """Returns why readers need all rows again after columns were dropped, or added with a constant; None if they
        make the same of the records that are there. Raises BrokerError, UnreachableError."""


@dataclass(frozen=True, slots=True)
class TrackedTables:
    """The known state of the tables when a session begins."""

    known: Mapping[TableId, KnownTable]
    # Stopped tables that may be added again, each with its TableDescription.state at the last attempt
    stopped: Mapping[TableId, str]
    publication: str  # the publication's fingerprint
    # The session begins within a half published transaction, before whose end no table is added
    is_half_published: bool = False


class SchemaTracker:
    """Tracks all tables of one session."""

    def __init__(
        self,
        *,
        topics: Topics,
        tables: TrackedTables,
        describe: Describe,
        catalog: CatalogReader,
        rows: ExistingRows,
        earlier: EarlierRecords,
        now_us: Callable[[], int],
        new_nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._topics = topics
        self._known = dict(tables.known)
        self._stopped = tables.stopped
        self._publication = tables.publication
        self._describe = describe
        self._catalog = catalog
        self._rows = rows
        self._earlier = earlier
        self._now_us = now_us
        self._new_nonce = new_nonce
        self._poll: CatalogPoll | None = None  # the poll in progress, with the state that it is compared to
        self._answer: CatalogAnswer | None = None  # the answer whose watermark was not received yet
        self._is_marked = False  # the transaction that is being received has its watermark
        self._is_half_published = tables.is_half_published
        self._described: TableSchema | None = None  # the table of the last relation message
        self.is_due = False  # a new session is to be begun: it has other tables, or adds a stopped one again

    # ---- the stream

    def follow(self, schema: TableSchema, relation: Relation) -> tuple[TableSchema, list[TopicRecord]]:
        """Called for a relation that differs from the schema. Returns the new schema and its records, for the Kafka
        transaction of its first row. Raises UnsupportedChangeError, ConnectionLost."""
        if why := why_not_followed(schema, relation):
            raise stop(schema.table, why, is_replaced=relation.oid != schema.oid)
        after = replace(followed(schema, relation, self._describe), dropped=self._known[schema.table].schema.dropped)
        if added := new_columns(schema, after):
            constants = self._earlier.constants(after.oid, added)
            after = replace(after, filled=self._earlier.encoded(after, constants))
        facts, records = self._known[schema.table].facts, self._adopt(after)
        return after, records if facts is None else [
            *records,
            *self._note(schema.table, announced(facts, schema, after)),
        ]

    def described(self, oid: int, schema: TableSchema | None) -> list[TopicRecord]:
        """Called for each relation message; `schema`: None if the table is not captured. A partition whose rows are
        published as its root's is described right behind the root."""
        root, self._described = self._described, schema
        known = self._known.get(root.table) if root is not None and schema is None else None
        if root is None or known is None or known.facts is None:
            return []
        return self._note(root.table, with_partition(known.facts, oid))

    def _note(self, table: TableId, facts: TableFacts) -> list[TopicRecord]:
        """Records facts from the stream, which reports them once, in the state topic for the next poll."""
        known = self._known[table]
        if facts == known.facts:
            return []
        self._known[table] = KnownTable(known.schema, facts, known.entry)
        return [TableRecord.captured(table, facts, self._now_us()).to(self._topics.state)]

    def watermark(self, content: bytes) -> None:
        """A watermark was received in the current transaction."""
        if self._is_current(content.decode("ascii", "replace")):
            self._take()
            self._is_marked = self._poll is not None

    def end(self) -> tuple[list[TopicRecord], list[TableSchema]]:
        """Called when the transaction was received completely. Returns the records that its watermark publishes, and
        the schemas that are valid from here on. Raises UnsupportedChangeError."""
        self._is_half_published = False
        records: list[TopicRecord] = []
        adopted: list[TableSchema] = []
        if self._is_marked and self._poll is not None:
            answer, then = self._answer, self._poll.tables
            self._forget()
            for table, found in answer.seen.items() if answer is not None else ():
                if self._known[table] is then[table]:
                    records += self._apply(table, then[table], found, adopted)
        return records, adopted

    # ---- the catalog

    def watch(self) -> None:
        """Takes answers and polls again. Raises ConnectionLost if the publication was altered."""
        self._take()
        if self._poll is None:
            self._poll = CatalogPoll(self._new_nonce(), dict(self._known), self._stopped)
            self._catalog.ask(self._poll)

    def _is_current(self, nonce: str) -> bool:
        return self._poll is not None and self._poll.nonce == nonce

    def _forget(self) -> None:
        """Ends the current poll: it has had its effect, or will have none."""
        self._poll, self._answer, self._is_marked = None, None, False

    def _take(self) -> None:
        for answer in self._catalog.answers():
            if not self._is_current(answer.nonce):
                continue  # a poll that was ended by its watermark or its failure
            # Even if the watermark is in the log: the answer to its commit was lost.
            if isinstance(answer, CatalogPollFailed):
                self._forget()
                continue
            if answer.publication != self._publication:
                raise ConnectionLost("the publication was altered or dropped: the next session examines it")
            if answer.ready and not self._is_half_published:
                log.info("stopped tables can be captured again", tables=" ".join(map(str, sorted(answer.ready))))
                self.is_due = True
            if (answer.begun or answer.ended) and not self._is_half_published:
                log.info(
                    "tables begin or cease to match source.tables",
                    begin=" ".join(map(str, answer.begun)),
                    cease=" ".join(map(str, answer.ended)),
                )
                self.is_due = True
            if answer.seen:
                self._answer = answer
            else:
                self._forget()

    # ---- effects of a poll

    def _apply(
        self, table: TableId, then: KnownTable, found: DivergedTable, adopted: list[TableSchema]
    ) -> list[TopicRecord]:
        if found.facts is None and found.error is not None:  # first, as its entry in the publication is gone, too
            raise UnsupportedChangeError(found.error.message, found.error.hint, table=table, is_held=False)
        if found.facts is not None and found.facts.oid != then.schema.oid:
            raise stop(table, "it was dropped and created again, or another table was given its name", is_replaced=True)
        if found.entry != then.entry:
            raise stop(table, "it was removed from the publication, or its row filter or column list was changed")
        if found.error is not None:
            raise UnsupportedChangeError(found.error.message, found.error.hint, table=table, is_held=False)
        assert found.schema is not None and found.facts is not None, "it can be captured"
        if found.schema.key != then.schema.key:
            raise stop(table, f"its key is ({', '.join(found.schema.key)}), but was ({', '.join(then.schema.key)})")
        records: list[TopicRecord] = []
        constants = dict(self._earlier.encoded(found.schema, found.constants))
        if found.schema != then.schema:
            if why := why_not_followed(then.schema, relation_of(found.schema)):
                raise stop(table, why)
            names = new_columns(then.schema, found.schema)
            filled = tuple((name, constants[name]) for name in names if name in constants)
            schema = replace(found.schema, filled=filled)
            records += self._adopt(schema)
            adopted.append(schema)
        if then.facts is not None:
            records += self._compare_rows(table, then, then.facts, found, found.facts, constants)
        self._known[table] = KnownTable(self._known[table].schema, found.facts, then.entry)
        return [*records, TableRecord.captured(table, found.facts, self._now_us()).to(self._topics.state)]

    def _compare_rows(
        self,
        table: TableId,
        then: KnownTable,
        was: TableFacts,
        found: DivergedTable,
        now: TableFacts,
        constants: Mapping[str, str],
    ) -> list[TopicRecord]:
        """Has all rows read again if they changed without events, and readers can't know it without that. Returns the
        records that say so."""
        schema, is_named = self._known[table].schema, bool(then.entry)
        changes = ColumnChanges.between(was, now)
        changed = rows_changed(was, now, found.filled, is_named=is_named)
        unclear = changes.why_unclear(schema, was.announced | dict(schema.filled), constants)
        if was.is_unclear or is_unclear(was, then.schema, schema):
            unclear = "records may have columns that had other names or types"
        if changed is None and unclear is None:
            return []
        if changed is None:
            changed, why = "columns were added, and altered again", unclear
        elif (other := rows_changed(was, now, found.filled, is_named=is_named, besides=changes.numbers)) is not None:
            changed, why = other, "earlier records do not show it"
        else:
            published = {column.name for column in schema.columns}
            dropped = [column.name for column in changes.dropped]
            added = [column.name for column in changes.added if column.has_missing and column.name in published]
            why = unclear
            if unclear is None and (dropped or added):
                why = self._earlier.why_published_again(schema, dropped, added)
            if why is None:
                log.info(
                    "earlier records stay as they are: what they lack or have too much is in the schema",
                    table=str(table),
                    version=schema.version,
                    why=changed,
                )
                return self._note_dropped(table, {*schema.dropped, *dropped})
        log.info(
            "rows changed without events: all rows of the table are read again",
            table=str(table),
            why=changed,
            because=why,
        )
        return [*self._note_dropped(table, ()), *self._rows.reread(table, changed)]

    def _note_dropped(self, table: TableId, names: Collection[str]) -> list[TopicRecord]:
        """Notes the columns whose values earlier records still have: a later column of such a name is another one."""
        known = self._known[table]
        schema = replace(known.schema, dropped=tuple(sorted(names)))
        if schema.dropped == known.schema.dropped:
            return []
        self._known[table] = KnownTable(schema, known.facts, known.entry)
        return [SchemaRecord.of(schema).to(self._topics.control)]

    def _adopt(self, schema: TableSchema) -> list[TopicRecord]:
        known = self._known[schema.table]
        self._known[schema.table] = KnownTable(schema, known.facts, known.entry)
        self._rows.alter(schema)
        log.info("table altered: its schema has a new version", table=str(schema.table), version=schema.version)
        return [SchemaRecord.of(schema).to(self._topics.control)]


def stop(table: TableId, why: str, *, is_replaced: bool = False) -> UnsupportedChangeError:
    """Returns the error that stops a table whose definition can't be followed. The table is added again when its
    catalog allows that. `is_replaced`: another table has its name."""
    hint = NEXT_AFTER_REPLACED if is_replaced else NEXT_AFTER_ALTER
    return UnsupportedChangeError(f"table {table} was altered: {why}", hint, table=table, is_held=False)
