"""Changes topics as somebody other than capture might: creates, deletes, recreates and configures them."""

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from cdc.config.settings import PipelineConfig
from tests.support.waiting import eventually


def producer_config(bootstrap_servers: str, prefix: str) -> PipelineConfig:
    """Returns a configuration for a producer, which reads no other section than kafka and topics."""
    return PipelineConfig.model_validate(
        {
            "source": {"dsn": "host=a", "tables": ["public.t"]},
            "kafka": {"bootstrap_servers": bootstrap_servers},
            "topics": {"prefix": prefix},
        }
    )


def admin_of(bootstrap_servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap_servers})


def create_topic(
    bootstrap_servers: str, name: str, policy: str = "compact", partitions: int = 1, **settings: str
) -> None:
    """`settings`: the topic's, with underscores for dots."""
    admin = admin_of(bootstrap_servers)
    config = {"cleanup.policy": policy, **{key.replace("_", "."): value for key, value in settings.items()}}
    admin.create_topics([NewTopic(name, partitions, config=config)])[name].result(10)
    eventually(lambda: name in admin.list_topics(timeout=10).topics)


def delete_topic(bootstrap_servers: str, name: str) -> None:
    """Returns when it is gone."""
    admin = admin_of(bootstrap_servers)
    admin.delete_topics([name])[name].result(10)
    eventually(lambda: name not in admin.list_topics(timeout=10).topics)


def recreate_topic(bootstrap_servers: str, name: str, partitions: int = 4) -> None:
    """As somebody might who wants to be rid of its records."""
    delete_topic(bootstrap_servers, name)
    create_topic(bootstrap_servers, name, partitions=partitions)


def delete_records(bootstrap_servers: str, name: str, before: Mapping[int, int]) -> None:
    """`before`: partition → offset below which its records are deleted. Brokers refuse that for a topic that is only
    compacted."""
    admin = admin_of(bootstrap_servers)
    asked = [TopicPartition(name, partition, offset) for partition, offset in before.items()]
    for future in admin.delete_records(asked).values():
        future.result(10)


def delete_compacted_records(bootstrap_servers: str, name: str, before: Mapping[int, int]) -> None:
    """The same for a compacted topic, whose policy is another one meanwhile."""
    set_topics(bootstrap_servers, [name], cleanup_policy="compact,delete")

    def is_done() -> bool:
        try:
            delete_records(bootstrap_servers, name, before)
        except KafkaException as exception:  # the leader does not know the policy yet
            assert exception.args[0].code() == KafkaError.POLICY_VIOLATION
            return False
        return True

    eventually(is_done)
    set_topics(bootstrap_servers, [name], cleanup_policy="compact")


def keep_every_record(bootstrap_servers: str, names: Sequence[str]) -> None:
    """For a day these topics are not compacted."""
    set_topics(bootstrap_servers, names, min_compaction_lag_ms=str(86_400_000))


def set_topics(bootstrap_servers: str, names: Sequence[str], **settings: str) -> None:
    """`settings`: as in create_topic."""
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    resources = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries) for name in names]
    admin = admin_of(bootstrap_servers)
    for future in admin.incremental_alter_configs(resources).values():
        future.result(10)
