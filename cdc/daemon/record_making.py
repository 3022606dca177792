"""Makes what capture's records depend on beside the rows: the parts that all of them have, and the size limits."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import cdc
from cdc.capture.kafka_transaction import PositionConstants
from cdc.config.format_options import Encoding
from cdc.config.settings import PipelineConfig
from cdc.formats.records import EnvelopeContext
from cdc.formats.unpublishable import Unpublishable
from cdc.kafka.broker import Encode
from cdc.kafka.state_reader import Captured, read_captured, read_encodings, read_position
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription, record_limits
from cdc.kafka.topic_encodings import read_topic_encodings
from cdc.model.control import EncodingRecord, PositionRecord, UnpublishedRecord
from cdc.model.errors import ConfigError, GapError
from cdc.model.events import TableId, TableSchema
from cdc.model.topics import Topics
from cdc.postgres.replication import SystemIdentity


def envelope_context(
    config: PipelineConfig, identity: SystemIdentity, run: PositionRecord | PositionConstants
) -> EnvelopeContext:
    return EnvelopeContext(
        config.topics.prefix,
        identity.database,
        run.epoch,
        cdc.__version__,
        config.format_options,
        history=run.history,
        promises_utf8=identity.promises_utf8,
    )


def record_encoding(config: PipelineConfig, captured: Captured | None = None) -> Encode | None:
    """Returns what encodes the records of tables; None if they are JSON. `captured`: None if it is not known whether
    there is a state. Raises ConfigError if topics have another encoding, UnreachableError, BrokerError."""
    is_known = captured is not None or _has_position(config)
    captured, recorded = captured or read_captured(config), read_encodings(config)
    encoding, prefix = config.format.encoding, config.topics.prefix
    found = {} if is_known else _found(config, recorded)
    tables = captured.schemas.keys() if is_known else recorded.keys() | found.keys()
    encoded = {table: record for table, record in found.items() if record is not None}
    require_same_encoding(encoding, config.source.table_ids, tables, recorded | encoded, prefix)
    registry = config.kafka.schema_registry
    if encoding == "json" or registry is None:
        return None
    # Only here: an extra has the registry's client, and the library for Avro.
    from cdc.kafka.record_encoding import RecordEncoder
    from cdc.kafka.schema_registry import registry_of

    options, schemas = config.format_options, captured.schemas.values()
    return RecordEncoder(registry_of(registry), options, prefix, schemas, recorded, encoded).encoded


def _has_position(config: PipelineConfig) -> bool:
    try:
        return read_position(config) is not None
    except GapError:
        return False


def _found(
    config: PipelineConfig, recorded: Mapping[TableId, EncodingRecord]
) -> Mapping[TableId, EncodingRecord | None]:
    """Returns how topics are encoded of which the state says nothing, because it is lost."""
    source, topics = config.source, Topics(config.topics.prefix)
    tables = [table for table in source.table_ids if table not in recorded and not source.is_outbox(table)]
    return read_topic_encodings(config.kafka, {table: topics.table(table) for table in tables})


def check_encoding(config: PipelineConfig) -> None:
    """Checks that the schema registry answers, if records need one, and that topics have the configured encoding.
    Raises UnreachableError, ConfigError, BrokerError."""
    record_encoding(config)
    registry, encoding = config.kafka.schema_registry, config.format.encoding
    if encoding != "json" and registry is not None:
        from cdc.formats.encodings import SCHEMA_TYPES
        from cdc.kafka.schema_registry import registry_of

        registry_of(registry).check(SCHEMA_TYPES[encoding])


def require_same_encoding(
    encoding: Encoding,
    tables: Iterable[TableId],
    captured: Collection[TableId],
    recorded: Mapping[TableId, EncodingRecord],
    prefix: str,
) -> None:
    """Raises ConfigError if the topic of a captured table has another encoding than the configured one. `tables`: the
    configured ones. A key in another encoding is another key: it may be in another partition, it does not replace the
    row's earlier records, and nothing would delete these."""
    for table in tables:
        before = recorded[table].encoding if table in recorded else "json"
        if table in captured and before != encoding:
            raise ConfigError(
                f"format.encoding is {encoding}, but the topic of table {table} has records in {before}: the same row "
                "would have another key",
                f"set format.encoding back to {before}, or choose another topics.prefix than {prefix}, with another "
                "source.slot: all rows are read into new topics, beside these",
            )


def make_unpublishable(
    config: PipelineConfig,
    admin: TopicAdmin,
    topics: Mapping[str, TopicDescription],
    before: Sequence[UnpublishedRecord],
    leaving: Sequence[TableSchema] = (),
) -> Unpublishable:
    """Makes the check of record sizes, with the limits of the topics. `topics`: the captured tables' topics by name.
    `before`, `leaving`: see Unpublishable. Raises BrokerError, UnreachableError."""
    names, policy = Topics(config.topics.prefix), config.capture.on_unpublishable
    others = [*(schema.topic for schema in leaving), *([names.dead_letter] if policy == "dead_letter" else ())]
    described = [*topics.values(), *(admin.describe(others).values() if others else ())]
    limits = record_limits(config.kafka, described)
    return Unpublishable(names, policy, limits, before, [schema.table for schema in leaving])
