"""The newest version of each key in a partition: the table's present rows. Pure, except for the records that it is
given.

All records of a key are in one partition, so a task needs no other. It holds the newest record of each key as the bytes
that Kafka has, which take a third of the decoded row, and decodes it again at the end.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from confluent_kafka import Message
from msgspec.structs import replace

from cdc.kafka.record_decoding import record_reader
from sinks.contract import Change
from sinks.reduction import reduce_changes
from spark_jobs.source.errors import IncompleteTableError
from spark_jobs.source.records import TopicRange, is_unknown, read_row
from spark_jobs.source.rows import DecodedRecord

ROWS_AT_ONCE: Final = 5_000
NEXT_COMPLETE: Final = (
    "nothing to do if capture runs: it publishes them soon; run the query again, or choose option incomplete=allow for "
    "what is there"
)


class _Newest(NamedTuple):
    version: int
    message: Message | None  # None: deleted
    row: DecodedRecord | None = None  # instead of the message, if it lacks columns, or has them from earlier records


class PresentRows:
    """The rows of one partition."""

    def __init__(self, part: TopicRange) -> None:
        self._part = part
        self._reader = record_reader(part.kafka)
        self._held: dict[bytes, _Newest] = {}

    def _read(self, message: Message) -> DecodedRecord:
        return read_row(message, self._part.schema_history, self._reader)

    def add(self, messages: Iterable[Message]) -> None:
        """Adds the records of the next piece. Raises what `read_row` raises."""
        for message in messages:
            row = self._read(message)
            key = message.key() or b""
            held = self._held.get(key)
            if held is None or row.change.version >= held.version:
                self._held[key] = self._newest(row, message, held)
            elif held.row is not None:  # an older record that comes late may have what the newest lacks
                self._held[key] = held._replace(row=_filled(held.row, row.change))

    def _newest(self, row: DecodedRecord, message: Message, held: _Newest | None) -> _Newest:
        if is_unknown(row):
            return _Newest(row.change.version, None, row)
        if row.change.row is None:
            return _Newest(row.change.version, None)
        if not row.change.unchanged:
            return _Newest(row.change.version, message)
        if held is None:
            return _Newest(row.change.version, None, row)
        if held.message is not None:
            before = self._read(held.message).change
        elif held.row is not None:
            before = held.row.change
        else:  # deleted: what the row had before is not this row's
            before = replace(row.change, row=None, unchanged=frozenset(), version=held.version)
        return _Newest(row.change.version, None, _filled(row, before))

    def rows(self) -> Iterator[list[DecodedRecord]]:
        """Yields the rows. Raises IncompleteTableError for one whose columns are not all known."""
        batch: list[DecodedRecord] = []
        for newest in self._held.values():
            if newest.version < self._part.floor:
                continue
            row = newest.row
            if newest.message is not None:
                row = self._read(newest.message)
            if row is None or not self._is_known(row):
                continue
            batch.append(row)
            if len(batch) >= ROWS_AT_ONCE:
                yield batch
                batch = []
        if batch:
            yield batch

    def _is_known(self, row: DecodedRecord) -> bool:
        if row.change.row is not None and not row.change.unchanged:
            return True
        if not self._part.may_be_incomplete:
            raise IncompleteTableError(
                f"topic {self._part.topic}, partition {row.partition}, offset {row.offset}: large values of this row "
                "are not in the topic yet",
                NEXT_COMPLETE,
            )
        return row.change.row is not None


def _filled(row: DecodedRecord, older: Change) -> DecodedRecord:
    """Takes columns that the row lacks from an older change of its key."""
    (change,) = reduce_changes([older, row.change])
    return row._replace(change=change)
