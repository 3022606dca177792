"""Makes what capture's records depend on beside the rows: the parts that all of them have, and the size limits."""

from collections.abc import Mapping, Sequence

import cdc
from cdc.config.settings import PipelineConfig
from cdc.formats.records import EnvelopeContext
from cdc.formats.unpublishable import Unpublishable
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription, record_limits
from cdc.model.control import UnpublishedRecord
from cdc.model.events import TableSchema
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
