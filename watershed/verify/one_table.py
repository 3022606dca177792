"""One table as operators ask for it: its schema, its state, and the names that each store has for it."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from cdc.config.config_file import Config
from cdc.config.masking import Mask
from cdc.formats.masks import masks_of
from cdc.kafka.state_reader import read_captured, read_in_force, read_state
from cdc.kafka.topic_reader import TopicReader
from cdc.model.errors import ConfigError, WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.sink_records import SinkRecord, newest
from cdc.model.suggestions import did_you_mean
from cdc.model.table_state import TableRecord
from sinks.places import reader_names
from sinks.shaping.check import planned_tables
from watershed.client.pipeline_watch import PipelineWatch
from watershed.verify.verifier import read_schema_histories


class UnknownTableError(ConfigError):
    """A table that the configuration does not take, or whose rows are in no topic of its own."""


def published_table(config: Config, table: TableId) -> TableSchema:
    """Returns the newest schema of the table. Raises UnknownTableError for one that is not captured, WatershedError for
    one whose schema is not published yet, UnreachableError, BrokerError."""
    config = read_in_force(config)
    configured = config.source.table_ids
    if config.source.is_outbox(table):
        raise UnknownTableError(
            f"the rows of {table} are events, which are in topics of their own", "docs/how-to/events.md names them"
        )
    if table not in configured:
        raise UnknownTableError(
            f"table {table} is not in source.tables{did_you_mean(table, configured)}",
            f"tables are: {', '.join(map(str, configured))}",
        )
    schema = read_captured(config).schemas.get(table)
    if schema is None:
        raise WatershedError(
            f"capture has not published {table} yet", "start `cdc run`; `cdc table list` says why if it runs"
        )
    return schema


def read_description(config: Config, table: TableId) -> dict[str, Any]:
    """Returns what `cdc table show` prints as JSON. Asks the brokers, and neither the source nor the stores. Raises as
    published_table and describe_table do."""
    schema = published_table(config, table)
    record = read_state(config).tables.get(table)
    with closing(TopicReader(config.kafka)) as reader:
        partitions = len(reader.partitions(schema.topic))
    with closing(PipelineWatch.of(config)) as watch:
        watch.read_to_end()
        sinks = watch.sinks()
    versions = read_schema_histories(config)[table].versions
    return describe_table(config, schema, record, partitions, sinks) | {
        "schema_versions": [
            {"version": one.version, "columns": [column.name for column in one.columns]} for one in versions
        ]
    }


def describe_table(
    config: Config, schema: TableSchema, record: TableRecord | None, partitions: int, sinks: Sequence[SinkRecord]
) -> dict[str, Any]:
    """Returns the description. `sinks`: the records of all generations. Raises ConfigError for a
    mapping that does not fit the table, RefusedError for a name that a store can't have."""
    planned = {one.sink: one for one in planned_tables(config.sinks, [schema])}
    masks = masks_of(schema, config.masking.masks(config.source))
    return {
        "table": str(schema.table),
        "status": "not captured yet" if record is None else record.status,
        "message": "" if record is None else record.message,
        "next": "" if record is None else record.next,
        "topic": schema.topic,
        "partitions": partitions,
        "key": list(schema.key),
        "schema_version": schema.version,
        "columns": [
            {
                "name": column.name,
                "type": column.type_name,
                "nullable": column.nullable,
                "mask": _mask_text(masks.get(column.name)),
            }
            for column in schema.columns
        ],
        "stores": [
            {
                "sink": name,
                "type": section.type,
                "is_held": name in planned,
                "generation": None if (serving := newest(sinks, name)) is None else serving.generation,
                "building": sorted(one.generation for one in sinks if one.sink == name and one.role == "building"),
                "names": dict(reader_names(section, config.topics.prefix, schema.table)) if name in planned else {},
                "columns": list(planned[name].columns) if name in planned else [],
                "where": planned[name].where if name in planned else None,
            }
            for name, section in config.sinks.items()
        ],
    }


def _mask_text(mask: Mask | None) -> str | None:
    if mask is None:
        return None
    return mask.action if mask.action == "hash" else f"{mask.action}({mask.length})"
