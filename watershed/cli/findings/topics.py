"""Findings of `cdc check` about settings of the brokers and of topics that exist."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from cdc.config.config_file import Config
from cdc.config.settings import TopicConfig
from cdc.kafka.broker import TRANSACTION_TIMEOUT_MS
from cdc.kafka.client import MESSAGE_BYTES_MAX
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription
from cdc.model.errors import WatershedError
from cdc.model.findings import Finding

BROKERS: Final = "brokers"
_TIMEOUT: Final = "transaction.timeout.ms"


def existing_topic_findings(
    topics: Iterable[TopicDescription], config: TopicConfig, tables: Collection[str]
) -> Iterator[Finding]:
    """`tables`: names of the topics of tables with keys."""
    for topic in topics:
        about = f"topic {topic.name}"
        if topic.in_sync_min > topic.replica_count:
            yield Finding(
                about,
                "fail",
                f"min.insync.replicas is {topic.in_sync_min}, and it has {topic.replica_count} replicas: it accepts no "
                "record",
                f"set min.insync.replicas={topic.replica_count} on {topic.name}, or give it more replicas",
            )
        if topic.name not in tables:
            continue
        if topic.record_bytes_max < MESSAGE_BYTES_MAX:
            yield Finding(
                about,
                "warn",
                f"max.message.bytes is {topic.record_bytes_max:,}: a larger row can't be published",
                f"set max.message.bytes={MESSAGE_BYTES_MAX} on {topic.name}",
            )
        if topic.partition_count < config.partitions:
            yield Finding(
                about,
                "warn",
                f"it has {topic.partition_count} partitions, and topics.partitions is {config.partitions}; it stays as "
                "it is, because more partitions would separate keys from their earlier records",
                f"topics.partitions: {topic.partition_count}",
            )


def broker_setting_findings(config: Config, admin: TopicAdmin, *, are_created: bool) -> Iterator[Finding]:
    """`are_created`: whether a start will create topics."""
    try:
        settings = admin.broker_settings()
    except WatershedError as error:
        yield Finding(BROKERS, "warn", f"their settings can't be checked: {error.message}", error.hint)
        return
    in_sync_min, factor = int(settings.get("min.insync.replicas", 1)), config.topics.replication_factor
    if are_created and in_sync_min > factor:
        yield Finding(
            BROKERS,
            "fail",
            f"their min.insync.replicas is {in_sync_min}, and topics.replication_factor is {factor}: topics that "
            "capture creates would accept no records",
            f"topics.replication_factor: {in_sync_min}; or min.insync.replicas={factor} as the default of the cluster",
        )
    option = config.kafka.options.get(_TIMEOUT)
    asked = option.get_secret_value() if option is not None else str(TRANSACTION_TIMEOUT_MS)
    limit = int(settings.get("transaction.max.timeout.ms", asked))
    if asked.isdecimal() and int(asked) > limit:
        yield Finding(
            BROKERS,
            "fail",
            f"capture's {_TIMEOUT} is {asked}, and the brokers' transaction.max.timeout.ms is {limit}",
            f'kafka.options: {{"{_TIMEOUT}": "{limit}"}}',
        )
