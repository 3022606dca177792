"""The listeners to the stream, which may add records to it."""

from dataclasses import dataclass
from typing import Protocol

from cdc.model.events import TableSchema
from cdc.model.lsn import Lsn
from cdc.model.seq import SeqCounter
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.messages import Relation


class Observer(Protocol):
    """Observes each transaction as it is received, and may add records at its end. See SnapshotEngine."""

    def begin(self, xid: int, next_seq: int) -> bool: ...
    def touch(self, topic: str, key: bytes) -> None: ...
    def truncate(self, topic: str) -> None: ...
    def watermark(self, content: bytes) -> None: ...
    def end(self, commit_lsn: Lsn, seq: SeqCounter, now_us: int) -> list[TopicRecord]: ...


class SchemaListener(Protocol):
    """Tracks the schemas of the captured tables. See cdc/tables/schema_tracking.py."""

    def follow(self, schema: TableSchema, relation: Relation) -> tuple[TableSchema, list[TopicRecord]]: ...
    def described(self, oid: int, schema: TableSchema | None) -> list[TopicRecord]: ...
    def watermark(self, content: bytes) -> None: ...
    def end(self) -> tuple[list[TopicRecord], list[TableSchema]]: ...


@dataclass(frozen=True, slots=True)
class Listeners:
    """Both listeners of a session. At the end of a transaction the observer is called first."""

    observer: Observer
    tracker: SchemaListener
