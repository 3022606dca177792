"""Settings of brokers and topics with which capture can't publish. tests/integration/test_check.py has real ones."""

from typing import Any

from cdc.config.config_file import Config
from cdc.config.settings import TopicConfig
from cdc.kafka.topic_admin import TopicDescription, Trial
from cdc.model.errors import BrokerError
from watershed.cli.findings.topics import (
    broker_setting_findings,
    creation_findings,
    existing_topic_findings,
    topics_by_kind,
)


class Admin:
    """Answers as TopicAdmin does."""

    def __init__(self, settings: dict[str, str] | None) -> None:
        self._settings = settings

    def broker_settings(self) -> dict[str, str]:
        if self._settings is None:
            raise BrokerError("Kafka: can't read the brokers' settings", "grant DescribeConfigs on the cluster")
        return self._settings


def found(settings: dict[str, str] | None, factor: int = 1, *, are_created: bool = True) -> list[tuple[str, str, str]]:
    config = Config.model_validate(
        {
            "source": {"dsn": "postgresql://h/d", "tables": ["public.items"]},
            "kafka": {"bootstrap_servers": "h:9092"},
            "topics": {"prefix": "p", "replication_factor": factor},
        }
    )
    admin: Any = Admin(settings)
    findings = broker_setting_findings(config, admin, are_created=are_created)
    return [(finding.level, finding.message, finding.next) for finding in findings]


def test_topics_that_would_accept_no_record_are_found_before_they_are_created() -> None:
    brokers = {"min.insync.replicas": "2", "transaction.max.timeout.ms": "900000"}
    ((level, message, step),) = found(brokers)
    assert (level, "accept no record" in message) == ("fail", True)
    assert step.startswith("topics.replication_factor: 2;")
    assert found(brokers, factor=2) == []
    assert found(brokers, are_created=False) == [], "existing topics have settings of their own"


def test_a_timeout_that_the_brokers_refuse() -> None:
    ((level, message, step),) = found({"transaction.max.timeout.ms": "60000"})
    assert (level, "transaction.timeout.ms is 120000" in message) == ("fail", True)
    assert step == 'kafka.options: {"transaction.timeout.ms": "60000"}'


def test_settings_that_may_not_be_read_are_a_warning() -> None:
    ((level, message, step),) = found(None)
    assert (level, step) == ("warn", "grant DescribeConfigs on the cluster")
    assert "can't be checked" in message


def configured(**sections: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"dsn": "postgresql://h/d", "tables": ["public.items"]},
            "kafka": {"bootstrap_servers": "h:9092"},
            "topics": {"prefix": "p"},
            **sections,
        }
    )


def test_replicas_that_the_brokers_choose_are_compared_too() -> None:
    admin: Any = Admin({"min.insync.replicas": "2", "default.replication.factor": "1"})
    (finding,) = broker_setting_findings(configured(), admin, are_created=True)
    assert (finding.level, "new topics have 1 replicas" in finding.message) == ("fail", True)

    lonely: Any = Admin({"default.replication.factor": "1"})
    (finding,) = broker_setting_findings(configured(), lonely, are_created=True, broker_count=3)
    assert (finding.level, finding.next) == ("warn", "topics.replication_factor: 3")
    assert list(broker_setting_findings(configured(), lonely, are_created=True, broker_count=2)) == []


class Brokers:
    """Answers whether topics can be created."""

    def __init__(self, *trials: Trial) -> None:
        self._trials = list(trials)
        self.asked: dict[str, list[str]] = {}

    def try_creation(self, _: TopicConfig, names: dict[str, list[str]]) -> list[Trial]:
        self.asked = names
        return self._trials


def test_what_the_brokers_say_of_each_kind_is_shown() -> None:
    refusal = BrokerError("can't create topic p.signals: Authorization failed", "grant Create")
    admin: Any = Brokers(
        Trial("p.public.a", "table", {"cleanup.policy": "compact"}, {}, None),
        Trial("p.state", "state", {"cleanup.policy": "compact"}, {"segment.ms": "too small"}, None),
        Trial("p.signals", "signals", {}, {}, refusal),
        Trial("p.other", "signals", {}, {}, refusal),
    )
    found = {finding.about: finding for finding in creation_findings(configured(), admin)}
    table, state, signals = (found[f"topics of kind {kind}"] for kind in ("table", "state", "signals"))
    assert (table.level, table.message) == ("ok", "the brokers would create p.public.a with cleanup.policy=compact")
    assert (state.level, state.next) == ("warn", "topics.config.state: {segment.ms: null}")
    assert "segment.ms (too small)" in state.message
    assert (signals.level, signals.next) == ("fail", "grant Create")
    assert signals.message == "can't create topic p.signals: Authorization failed (and 1 more)"


def test_every_kind_that_is_used_is_asked_for() -> None:
    plain = {kind for kind, names in topics_by_kind(configured()).items() if names}
    assert plain == {"table", "state", "progress", "control", "signals", "audit"}
    more = topics_by_kind(
        configured(
            capture={"on_unpublishable": "dead_letter"},
            format={"heartbeat.interval.ms": 1000, "provide.transaction.metadata": True},
            outbox={"messages": {}},
            sinks={"cache": {"url": "redis://h"}, "sql": {"url": "postgresql://h/d"}},
            views={"v": {"base": "sql", "sql": "SELECT id FROM items", "key": ["id"], "target": {"type": "topic"}}},
        )
    )
    assert more["sink_dead_letter"] == ["p.dead-letter.cache", "p.dead-letter.sql"]
    assert (more["dead_letter"], more["view"]) == (["p.dead-letter"], ["p.view.v"])
    assert (more["heartbeat"], more["metadata"]) == (["__debezium-heartbeat.p"], ["p.transaction"])
    assert more["event"] == ["p.outbox_dead_letters"]


def test_topics_of_others_that_forget_deletes_early_are_a_warning() -> None:
    """Sinks that were away for some days would show deleted rows for ever."""
    early = [
        TopicDescription(name, "id", 4, "compact", deletes_kept_s=86_400) for name in ("p.public.items", "p.state")
    ]
    (finding,) = existing_topic_findings(early, configured().topics, {"p.public.items"})
    assert (finding.about, finding.level) == ("topic p.public.items", "warn")
    assert finding.next == "set delete.retention.ms=604800000 on p.public.items"
    accepted = configured(topics={"prefix": "p", "config": {"table": {"delete.retention.ms": None}}})
    assert list(existing_topic_findings(early, accepted.topics, {"p.public.items"})) == []
