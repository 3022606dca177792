"""The Kafka source of a query.

It only says when there are records. Spark's own source does that at the least cost, but it logs in by the Java client,
which can't do all that librdkafka can. With other options the ends of the topics are asked for by librdkafka, in a
Python process that Spark keeps for the query: so each way to log in that capture has also works here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from cdc.config.settings import KafkaConfig
from cdc.model.errors import UnreachableError
from spark_jobs.rounds import TopicEnds

# librdkafka's name → the Java client's. Other options tune librdkafka, which Spark does not use.
_SAME_MEANING: Final = {
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
}
_TRANSLATED: Final = {"sasl.username", "sasl.password", "ssl.ca.location"}
_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def changes(spark: SparkSession, kafka: KafkaConfig, topics: Sequence[str]) -> DataFrame:
    """Returns a stream that has a batch whenever there are records in these topics. Spark never reads the batch's rows:
    its tasks read the records themselves (spark_jobs.reading), from the applied position on. So the source ignores
    topics that are created, deleted or start again, and does not fail for them.
    """
    properties = java_properties(kafka)
    if properties is None:
        spark.dataSource.register(configured(kafka))
        return spark.readStream.format(EndsSource.name()).option("topics", ",".join(sorted(topics))).load()
    wanted = {"subscribe": ",".join(sorted(topics)), "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**_options(kafka, properties), **wanted).load()


class EndsSource(DataSource):
    """The ends of topics as a stream without rows. A subclass has the brokers, whose options may be secrets."""

    kafka: ClassVar[KafkaConfig]

    @classmethod
    def name(cls) -> str:
        return "watershed_ends"

    def schema(self) -> str:
        return "topic string"

    def streamReader(self, schema: Any) -> "EndsReader":  # noqa: N802, ARG002
        return EndsReader(self.kafka, self.options["topics"].split(","))


def configured(kafka: KafkaConfig) -> type[EndsSource]:
    """Returns the source of these brokers, as a class that Spark can send to another process."""
    return type("ConfiguredEnds", (EndsSource,), {"kafka": kafka})


class EndsReader(DataSourceStreamReader):
    """Offsets have the form of Spark's Kafka source, so that a query continues when the way to log in changes."""

    def __init__(self, kafka: KafkaConfig, topics: Sequence[str]) -> None:
        self._kafka = kafka
        self._topics = topics
        self._ends: TopicEnds | None = None
        self._latest: dict[str, Any] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns topic → partition → end. While brokers are away it does not change. Raises BrokerError."""
        if self._ends is None:
            self._ends = TopicEnds(self._kafka)
            self._ends.set_topics(self._topics)
        try:
            found = self._ends.ask()
        except UnreachableError:
            return self._latest
        self._latest = {
            topic: {str(number): end for number, end in enumerate(described.ends)}
            for topic, described in sorted(found.items())
        }
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:  # noqa: ARG002
        return iter(())


def _options(kafka: KafkaConfig, properties: Mapping[str, str]) -> dict[str, Any]:
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "false",
        **{f"kafka.{name}": value for name, value in properties.items()},
    }


def java_properties(kafka: KafkaConfig) -> Mapping[str, str] | None:
    """Returns the Java client's settings for the same brokers. None if a setting of the login has no counterpart."""
    given = kafka.given
    for name in given:
        if name.startswith(("sasl.", "ssl.", "security.")) and name not in _SAME_MEANING and name not in _TRANSLATED:
            return None
    used = {_SAME_MEANING[name]: value for name, value in given.items() if name in _SAME_MEANING}
    if "security.protocol" in used:
        used["security.protocol"] = used["security.protocol"].upper()
    if "sasl.mechanism" in used:
        if used["sasl.mechanism"] not in _LOGIN_MODULES:
            return None
        used["sasl.jaas.config"] = _login(used["sasl.mechanism"], given)
    if "ssl.ca.location" in given:
        used |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": given["ssl.ca.location"]}
    return used


def _login(mechanism: str, given: Mapping[str, str]) -> str:
    username, password = _jaas(given.get("sasl.username", "")), _jaas(given.get("sasl.password", ""))
    return f"{_LOGIN_MODULES[mechanism]} required username={username} password={password};"


def _jaas(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
