"""Settings of brokers and topics with which capture can't publish. tests/integration/test_check.py has real ones."""

from typing import Any

from cdc.config.config_file import Config
from cdc.model.errors import BrokerError
from watershed.cli.findings.topics import broker_setting_findings


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
