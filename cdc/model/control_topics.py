"""Builds the records of the state and control topics. Pure."""

from cdc.model.control import (
    POSITION_KEY,
    IncompleteRowsRecord,
    PositionRecord,
    SchemaRecord,
    SnapshotRecord,
    SweepRecord,
    TombstonesRecord,
    holes_key,
    schema_key,
    snapshot_key,
    sweep_key,
    tombstones_key,
)
from cdc.model.events import TableId, TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics


def position_record(topics: Topics, position: PositionRecord) -> TopicRecord:
    return TopicRecord(topics.state, POSITION_KEY.encode(), position.encode())


def snapshot_record(topics: Topics, snapshot: SnapshotRecord) -> TopicRecord:
    return TopicRecord(topics.state, snapshot_key(snapshot.table).encode(), snapshot.encode())


def tombstones_record(topics: Topics, table: TableId, floor: int) -> TopicRecord:
    record = TombstonesRecord(table_schema=table.schema, table_name=table.name, floor=floor)
    return TopicRecord(topics.state, tombstones_key(table).encode(), record.encode())


def incomplete_rows_record(topics: Topics, holes: IncompleteRowsRecord) -> TopicRecord:
    return TopicRecord(topics.state, holes_key(holes.table).encode(), holes.encode())


def schema_record(topics: Topics, schema: TableSchema) -> TopicRecord:
    key = schema_key(schema.table, schema.version)
    return TopicRecord(topics.control, key.encode(), SchemaRecord.of(schema).encode())


def sweep_record(topics: Topics, table: TableId, floor: int, as_of_lsn: int, epoch: int) -> TopicRecord:
    sweep = SweepRecord(table_schema=table.schema, table_name=table.name, floor=floor, as_of_lsn=as_of_lsn, epoch=epoch)
    return TopicRecord(topics.control, sweep_key(table).encode(), sweep.encode())
