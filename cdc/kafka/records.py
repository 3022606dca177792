"""What the state and control topics say now."""

from cdc.config import Config
from cdc.control import POSITION_KEY, PositionRecord, SchemaRecord, Topics
from cdc.events import TableId, TableSchema
from cdc.kafka.compacted import read_latest


def read_position(config: Config) -> PositionRecord | None:
    """The last committed position record; None when there is none. Raises GapError for a damaged one."""
    topic = Topics(config.topics.prefix).state
    value = read_latest(config.kafka, topic).get(POSITION_KEY)
    return None if value is None else PositionRecord.open(value, f"{topic}, key {POSITION_KEY}")


def read_schemas(config: Config) -> dict[TableId, TableSchema]:
    """The newest schema version of each table ever captured under the prefix."""
    topic = Topics(config.topics.prefix).control
    newest: dict[TableId, TableSchema] = {}
    for key, value in read_latest(config.kafka, topic).items():
        if key.startswith("schema/"):
            schema = SchemaRecord.decode(value, f"{topic}, key {key}").table_schema_of()
            if schema.table not in newest or newest[schema.table].version < schema.version:
                newest[schema.table] = schema
    return newest
