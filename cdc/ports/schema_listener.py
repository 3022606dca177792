"""The port that tracks the schemas of the captured tables, with what the stream says of them."""

from typing import Protocol

from cdc.model.events import TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.messages import Relation


class SchemaListener(Protocol):
    """Listens to the stream, and may add records to it. See cdc/tables/schema_tracking.py."""

    def follow(self, schema: TableSchema, relation: Relation) -> tuple[TableSchema, list[TopicRecord]]: ...
    def described(self, oid: int, schema: TableSchema | None) -> list[TopicRecord]: ...
    def watermark(self, content: bytes) -> None: ...
    def end(self) -> tuple[list[TopicRecord], list[TableSchema]]: ...
