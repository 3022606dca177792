"""The records that a merged chunk or lookup publishes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.unpublishable import Unpublishable
from cdc.model.errors import UnpublishableError, UnsupportedChangeError
from cdc.model.events import Position, TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.relations import relation_of
from cdc.ports.chunk_reader import ChunkRead
from cdc.snapshots.change_memory import Unseen

LINES_AT_ONCE: Final = 500  # one of these rows that was touched makes all of them slow


@dataclass(frozen=True, slots=True)
class ChunkPosition:
    """The position, index and seq of the next row of a chunk."""

    commit_lsn: Lsn  # commit LSN of the watermark's transaction
    index: int  # index among the changes of that transaction
    seq: int
    now_us: int


class RowRecords:
    """Makes the records of all tables."""

    def __init__(self, context: EnvelopeContext, unpublishable: Unpublishable | None = None) -> None:
        """`unpublishable`: None if every record fits and has a form."""
        self._context = context
        self._unpublishable = unpublishable or Unpublishable(Topics(context.prefix))
        self._encoders: dict[TableId, tuple[TableSchema, TableEncoder]] = {}

    def unpublished(self, table: TableId) -> int:
        """Returns the number of changes of the table that were ever left out."""
        return self._unpublishable.total(table)

    def settled(self, table: TableId, total: int) -> list[TopicRecord]:
        """See Unpublishable.settled."""
        return self._unpublishable.settled(table, total)

    def of_chunk(
        self, schema: TableSchema, read: ChunkRead, unseen: Unseen, at: ChunkPosition
    ) -> tuple[list[TopicRecord], int]:
        """Returns a record for each row that was not touched, with consecutive indexes and seqs, and the number of
        these records. Behind them are those that are published instead of rows that no record can hold."""
        encoder = self._started(schema, at)
        records: list[TopicRecord] = []
        instead: list[TopicRecord] = []
        for start in range(0, len(read.lines), LINES_AT_ONCE):
            lines = read.lines[start : start + LINES_AT_ONCE]
            from_here = replace(at, index=at.index + len(records), seq=at.seq + len(records))
            usual = self._untouched(encoder, lines, unseen, from_here)
            if usual is None:
                usual, refused = self._one_by_one(encoder, lines, unseen, from_here)
                instead += refused
            records += usual
        return records + instead, len(records)

    def _untouched(
        self, encoder: TableEncoder, lines: Sequence[bytes], unseen: Unseen, at: ChunkPosition
    ) -> list[TopicRecord] | None:
        """Returns the records of rows that are all usual, and none of them touched; None if they are not."""
        if unseen.is_truncated:
            return None
        made = self._unpublishable.row_records(encoder, lines, at.commit_lsn, at.index, at.seq, at.now_us)
        return None if made is None or any(unseen.touched(record.key) for record in made) else made

    def _one_by_one(
        self, encoder: TableEncoder, lines: Sequence[bytes], unseen: Unseen, at: ChunkPosition
    ) -> tuple[list[TopicRecord], list[TopicRecord]]:
        """Returns the records of rows that were not touched, and those instead of rows that no record can hold."""
        records: list[TopicRecord] = []
        instead: list[TopicRecord] = []
        schema = encoder.schema
        for line in lines:
            index, seq = at.index + len(records), at.seq + len(records)
            try:
                made = self._unpublishable.row_record(encoder, line, at.commit_lsn, index, seq, at.now_us)
            except UnsupportedChangeError as error:
                if not (isinstance(error, UnpublishableError) and unseen.touches(error.key)):
                    position = Position(at.commit_lsn, index)
                    instead += self._unpublishable.replacements(schema, position, error, at.now_us)
                continue
            if not unseen.touches(made[0]):
                records.append(TopicRecord(schema.topic, *made))
        return records, instead

    def of_absent(
        self, schema: TableSchema, absent: tuple[bytes, ...], unseen: Unseen, at: ChunkPosition
    ) -> tuple[list[TopicRecord], int]:
        """Returns a delete and a tombstone, with one index and seq, for each absent key that was not touched, and the
        number of these keys."""
        encoder = self._started(schema, at)
        records: list[TopicRecord] = []
        for key in absent:
            if not unseen.touches(key):
                count = len(records) // 2
                made = encoder.absent(key, at.commit_lsn, at.index + count, at.seq + count, at.now_us)
                records += [TopicRecord(schema.topic, *record) for record in made]
        return records, len(records) // 2

    def _started(self, schema: TableSchema, at: ChunkPosition) -> TableEncoder:
        made_for, encoder = self._encoders.get(schema.table, (None, None))
        if encoder is None or made_for is not schema:
            encoder = TableEncoder(schema, relation_of(schema), self._context)
            self._encoders[schema.table] = (schema, encoder)
        encoder.start_chunk(at.commit_lsn, at.now_us)
        return encoder
