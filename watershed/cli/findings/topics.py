"""Findings of `cdc check` about settings of the brokers and of topics that exist."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from cdc.config.config_file import Config
from cdc.config.settings import TopicConfig
from cdc.config.topic_settings import KINDS, TopicKind
from cdc.config.views import TopicTarget
from cdc.kafka.broker import TRANSACTION_TIMEOUT_MS
from cdc.kafka.topic_admin import TopicAdmin, TopicDescription, Trial
from cdc.model.errors import WatershedError
from cdc.model.findings import Finding
from cdc.model.topics import Topics

BROKERS: Final = "brokers"
_TIMEOUT: Final = "transaction.timeout.ms"


def existing_topic_findings(
    topics: Iterable[TopicDescription], config: TopicConfig, tables: Collection[str]
) -> Iterator[Finding]:
    """`tables`: names of the topics of tables with keys."""
    bytes_wanted = int(config.config.of("table").get("max.message.bytes", 0))
    kept_s = config.config.deletes_kept_s
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
        if topic.name not in (*tables, Topics(config.prefix).control):
            continue
        if topic.deletes_kept_s < kept_s:
            yield Finding(
                about,
                "warn",
                f"delete.retention.ms is {topic.deletes_kept_s * 1000:.0f}: sinks take for granted that it keeps "
                f"deletes for {kept_s / 86_400:g} days",
                f"set delete.retention.ms={kept_s * 1000:.0f} on {topic.name}",
            )
        if topic.name not in tables:
            continue
        if topic.record_bytes_max < bytes_wanted:
            yield Finding(
                about,
                "warn",
                f"max.message.bytes is {topic.record_bytes_max:,}: a larger row can't be published",
                f"set max.message.bytes={bytes_wanted} on {topic.name}",
            )
        if topic.partition_count < config.partitions:
            yield Finding(
                about,
                "warn",
                f"it has {topic.partition_count} partitions, and topics.partitions is {config.partitions}; it stays as "
                "it is, because more partitions would separate keys from their earlier records",
                f"topics.partitions: {topic.partition_count}",
            )


def creation_findings(config: Config, admin: TopicAdmin) -> Iterator[Finding]:
    """Says for each kind of topic whether the brokers would create those that do not exist."""
    try:
        trials = admin.try_creation(config.topics, topics_by_kind(config))
    except WatershedError as error:
        yield Finding.failed("topics", error)
        return
    for kind in KINDS:
        if of_kind := [trial for trial in trials if trial.kind == kind]:
            yield from _trial_findings(kind, of_kind)


def topics_by_kind(config: Config) -> dict[TopicKind, list[str]]:
    """Returns the topics that capture, sinks and views create, with one of those that are named by events."""
    topics = Topics(config.topics.prefix)
    heartbeats, metadata = config.format_options.side_topics(topics)
    targets = {name: view.target for name, view in config.views.items() if isinstance(view.target, TopicTarget)}
    return {
        "table": [topics.table(table) for table in config.source.table_ids if not config.source.is_outbox(table)],
        "state": [topics.state],
        "progress": [topics.progress],
        "control": [topics.control],
        "signals": [topics.signals],
        "audit": [topics.audit],
        "dead_letter": [topics.dead_letter] if config.capture.on_unpublishable == "dead_letter" else [],
        "heartbeat": list(heartbeats),
        "metadata": list(metadata),
        "event": [topics.outbox_dead_letters] if config.outbox.is_used else [],
        "sink_dead_letter": [topics.sink_dead_letter(sink) for sink in config.sinks],
        "view": [target.name or topics.view(name) for name, target in targets.items()],
    }


def _trial_findings(kind: TopicKind, trials: Sequence[Trial]) -> Iterator[Finding]:
    about, first = f"topics of kind {kind}", trials[0]
    failed = [trial for trial in trials if trial.error is not None]
    for trial in failed[:1]:
        assert trial.error is not None
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        yield Finding(about, "fail", f"{trial.error.message}{others}", trial.error.hint)
    refused: Mapping[str, str] = {setting: answer for trial in trials for setting, answer in trial.refused.items()}
    for setting, answer in refused.items():
        yield Finding(
            about,
            "warn",
            f"the brokers refuse {setting} ({answer}): new topics have their default",
            f"topics.config.{kind}: {{{setting}: null}}",
        )
    if not failed and not refused:
        settings = " ".join(f"{name}={value}" for name, value in first.settings.items())
        yield Finding(about, "ok", f"the brokers would create {first.name} with {settings}")


def broker_setting_findings(
    config: Config, admin: TopicAdmin, *, are_created: bool, broker_count: int = 1
) -> Iterator[Finding]:
    """`are_created`: whether a start will create topics."""
    try:
        settings = admin.broker_settings()
    except WatershedError as error:
        yield Finding(BROKERS, "warn", f"their settings can't be checked: {error.message}", error.hint)
        return
    in_sync_min = int(settings.get("min.insync.replicas", 1))
    factor = config.topics.replication_factor or int(settings.get("default.replication.factor", in_sync_min))
    if are_created and config.topics.replication_factor is None and factor == 1 and broker_count >= 3:
        yield Finding(
            BROKERS,
            "warn",
            f"there are {broker_count} brokers, but their default.replication.factor is 1: losing one broker loses "
            "topics",
            "topics.replication_factor: 3",
        )
    if are_created and in_sync_min > factor:
        yield Finding(
            BROKERS,
            "fail",
            f"their min.insync.replicas is {in_sync_min}, and new topics have {factor} replicas: topics that "
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
