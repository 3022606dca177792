"""Makes what capture's records depend on beside the rows: the parts that all of them have, and the size limits."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import cdc
from cdc.config.format_options import Encoding
from cdc.config.settings import PipelineConfig
from cdc.formats.records import EnvelopeContext
from cdc.formats.unpublishable import Unpublishable
from cdc.kafka.broker import Encode
from cdc.kafka.state_reader import Captured, read_captured, read_encodings
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription, record_limits
from cdc.model.control import EncodingRecord, UnpublishedRecord
from cdc.model.errors import ConfigError
from cdc.model.events import TableId, TableSchema
from cdc.model.topics import Topics
from cdc.postgres.replication import SystemIdentity


def envelope_context(config: PipelineConfig, identity: SystemIdentity, epoch: int) -> EnvelopeContext:
    return EnvelopeContext(
        config.topics.prefix,
        identity.database,
        epoch,
        cdc.__version__,
        config.format_options,
        promises_utf8=identity.promises_utf8,
    )


def record_encoding(config: PipelineConfig, captured: Captured | None = None) -> Encode | None:
    """Returns what encodes the records of tables; None if they are JSON. Raises ConfigError if topics have another
    encoding, UnreachableError, BrokerError."""
    captured, recorded = captured or read_captured(config), read_encodings(config)
    encoding, prefix = config.format.encoding, config.topics.prefix
    require_same_encoding(encoding, config.source.table_ids, captured.schemas, recorded, prefix)
    registry = config.kafka.schema_registry
    if encoding == "json" or registry is None:
        return None
    # Only here: an extra has the registry's client, and the library for Avro.
    from cdc.kafka.record_encoding import RecordEncoder
    from cdc.kafka.schema_registry import registry_of

    options, schemas = config.format_options, captured.schemas.values()
    return RecordEncoder(registry_of(registry), options, prefix, schemas, recorded).encoded


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
