"""Tables that change while they are captured: a new version of the schema, rows read again, or a table that stops.

Two tell of it. The stream's relation message comes before the first row of a new shape; it is followed at once, in the
Kafka transaction of that row. And the catalog is looked at every few seconds, since not everything that changes rows
or their types is in the stream, and a table that nobody writes to is not described again. A look that finds a
difference is answered first, then marked in the log: where the watermark is received, everything that the look saw is
behind the stream, so that what follows from it has its place there. Of a table that changed again between look and
watermark the look says nothing any more; the next one does.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from cdc.model.errors import (
    NEXT_AFTER_ALTER,
    NEXT_AFTER_GAP,
    NEXT_AFTER_REPLACED,
    GapError,
    UnsupportedChangeError,
)
from cdc.model.events import TableId, TableSchema
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
from cdc.records.table_state import TableFacts, TableRecord, table_record
from cdc.records.topic_records import schema_record
from cdc.tables.schema_changes import (
    Describe,
    announced,
    followed,
    labels_renamed,
    rows_changed,
    seen,
    why_not_followed,
)

log = structlog.get_logger(__name__)


class ExistingRows(Protocol):
    """Acts on the existing rows of tables that changed. See cdc/snapshots/coordination.py."""

    def alter(self, schema: TableSchema) -> None:
        """The table has this schema from here on."""

    def reread(self, table: TableId, why: str) -> list[TopicRecord]:
        """All rows of the table are to be read again, for this reason. Returns the records that say so."""


@dataclass(frozen=True, slots=True)
class TrackedTables:
    """What is known of the tables when a session begins."""

    known: Mapping[TableId, KnownTable]
    stopped: Mapping[TableId, str]  # that may be captured again, each with what was found when it was last tried
    publication: str  # its fingerprint
    is_half_published: bool = False  # the first transaction that comes; no table joins before its end


class SchemaTracker:
    """All tables of one session."""

    def __init__(
        self,
        *,
        topics: Topics,
        tables: TrackedTables,
        describe: Describe,
        catalog: CatalogReader,
        rows: ExistingRows,
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
        self._now_us = now_us
        self._new_nonce = new_nonce
        self._poll: CatalogPoll | None = None  # with what its look is held against
        self._answer: CatalogAnswer | None = None  # whose watermark is on its way
        self._is_marked = False  # the transaction that is being received
        self._is_half_published = tables.is_half_published
        self._described: TableSchema | None = None  # by the last relation message
        self.is_due = False  # a table that was stopped can join: with another session

    # ---- the stream

    def follow(self, schema: TableSchema, relation: Relation) -> tuple[TableSchema, list[TopicRecord]]:
        """The relation is not as the schema says: the version that is, and its record, for the Kafka transaction of
        its first row. Raises UnsupportedChangeError, ConnectionLost."""
        if why := why_not_followed(schema, relation):
            raise stop(schema.table, why, is_replaced=relation.oid != schema.oid)
        after = followed(schema, relation, self._describe)
        facts, records = self._known[schema.table].facts, self._adopt(after)
        return after, records if facts is None else [
            *records,
            *self._note(schema.table, announced(facts, schema, after)),
        ]

    def described(self, oid: int, schema: TableSchema | None) -> list[TopicRecord]:
        """A relation message, of this captured table if it is one. A partition, whose rows are published as those of
        its root, is described right behind the root."""
        root, self._described = self._described, schema
        known = self._known.get(root.table) if root is not None and schema is None else None
        if root is None or known is None or known.facts is None:
            return []
        return self._note(root.table, seen(known.facts, oid))

    def _note(self, table: TableId, facts: TableFacts) -> list[TopicRecord]:
        """What the stream says of what the next look is held against: in state, since the stream says it once."""
        known = self._known[table]
        if facts == known.facts:
            return []
        self._known[table] = KnownTable(known.schema, facts, known.entry)
        return [table_record(self._topics, TableRecord.captured(table, facts, self._now_us()))]

    def watermark(self, content: bytes) -> None:
        """A watermark in the transaction that is being received."""
        if self._is_of_question(content.decode("ascii", "replace")):
            self._take()
            self._is_marked = self._poll is not None

    def end(self) -> tuple[list[TopicRecord], list[TableSchema]]:
        """The transaction was received whole: what its watermark publishes, and the schemas that count from here on.
        Raises UnsupportedChangeError."""
        self._is_half_published = False
        records: list[TopicRecord] = []
        adopted: list[TableSchema] = []
        if self._is_marked and self._poll is not None:
            answer, then = self._answer, self._poll.tables
            self._forget()
            for table, seen in answer.seen.items() if answer is not None else ():
                if self._known[table] is then[table]:
                    records += self._see(table, then[table], seen, adopted)
        return records, adopted

    # ---- the catalog

    def watch(self) -> None:
        """Take answers, and ask again. Raises GapError when the publication is not what it was."""
        self._take()
        if self._poll is None:
            self._poll = CatalogPoll(self._new_nonce(), dict(self._known), self._stopped)
            self._catalog.ask(self._poll)

    def _is_of_question(self, nonce: str) -> bool:
        return self._poll is not None and self._poll.nonce == nonce

    def _forget(self) -> None:
        """The question: its look has had its effect, or will have none."""
        self._poll, self._answer, self._is_marked = None, None, False

    def _take(self) -> None:
        for answer in self._catalog.answers():
            if not self._is_of_question(answer.nonce):
                continue  # its watermark came first, or its failure
            # Also where its watermark is in the log: nobody answered the commit.
            if isinstance(answer, CatalogPollFailed):
                self._forget()
                continue
            if answer.publication != self._publication:
                raise GapError("the publication was altered or dropped", NEXT_AFTER_GAP)
            if answer.ready and not self._is_half_published:
                log.info("tables can join again", tables=" ".join(map(str, sorted(answer.ready))))
                self.is_due = True
            if answer.seen:
                self._answer = answer
            else:
                self._forget()

    # ---- what was seen

    def _see(
        self, table: TableId, then: KnownTable, seen: DivergedTable, adopted: list[TableSchema]
    ) -> list[TopicRecord]:
        if seen.entry != then.entry:
            raise stop(table, "it was taken out of the publication, or is published otherwise")
        if seen.error is not None:
            raise UnsupportedChangeError(seen.error.message, seen.error.hint, table=table, is_held=False)
        assert seen.schema is not None and seen.facts is not None, "it can be captured"
        if seen.schema.oid != then.schema.oid:
            raise stop(table, "it was dropped and created again", is_replaced=True)
        if seen.schema.key != then.schema.key:
            raise stop(table, f"its key is ({', '.join(seen.schema.key)}), it was ({', '.join(then.schema.key)})")
        records: list[TopicRecord] = []
        if seen.schema != then.schema:
            if why := why_not_followed(then.schema, relation_of(seen.schema)):
                raise stop(table, why)
            records += self._adopt(seen.schema)
            adopted.append(seen.schema)
        changed = labels_renamed(then.schema, seen.schema)
        if then.facts is not None:
            changed = changed or rows_changed(then.facts, seen.facts, seen.filled)
        if changed is not None:
            log.info("rows changed without events, all of them are read again", table=str(table), why=changed)
            records += self._rows.reread(table, changed)
        self._known[table] = KnownTable(self._known[table].schema, seen.facts, then.entry)
        return [*records, table_record(self._topics, TableRecord.captured(table, seen.facts, self._now_us()))]

    def _adopt(self, schema: TableSchema) -> list[TopicRecord]:
        known = self._known[schema.table]
        self._known[schema.table] = KnownTable(schema, known.facts, known.entry)
        self._rows.alter(schema)
        log.info("table altered: its schema has a new version", table=str(schema.table), version=schema.version)
        return [schema_record(self._topics, schema)]


def stop(table: TableId, why: str, *, is_replaced: bool = False) -> UnsupportedChangeError:
    """A table whose definition can't be followed. It joins again when its catalog allows that. `is_replaced`: another
    table has its name."""
    hint = NEXT_AFTER_REPLACED if is_replaced else NEXT_AFTER_ALTER
    return UnsupportedChangeError(f"table {table} was altered: {why}", hint, table=table, is_held=False)
