"""The Kafka source of a query."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from cdc.config import KafkaConfig
from cdc.errors import ConfigError
from spark_jobs.pieces import Span

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

# The JVM holds what a fetch unpacks to: up to 255 times its size with lz4, in which capture compresses. A batch of
# capture's is at most 1 MB before compression, unless it is a single record, and is sent whole.
FETCH_BYTES_MAX: Final = 128 * 1024
_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "headers")


def records(spark: SparkSession, kafka: KafkaConfig, topics: Sequence[str], records_per_batch_max: int) -> DataFrame:
    """A stream of (key, value, topic, partition, offset, headers) of committed records, from the beginning unless the
    query's checkpoint says otherwise. Stops rather than skip what the topics no longer hold."""
    wanted = {
        "subscribe": ",".join(sorted(topics)),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(records_per_batch_max),
    }
    return spark.readStream.format("kafka").options(**_options(kafka), **wanted).load().select(*_COLUMNS)


def records_in(spark: SparkSession, kafka: KafkaConfig, spans: Sequence[Span], group: str) -> DataFrame:
    """The same of what was seen to lie there, at most one span of each partition. `group`: who reads; Spark keeps its
    consumers open for the next read, and makes new ones for each read if they bear no name."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for span in spans:
        starts.setdefault(span.topic, {})[str(span.partition)] = span.start
        ends.setdefault(span.topic, {})[str(span.partition)] = span.end
    wanted = {
        "assign": json.dumps({topic: sorted(map(int, partitions)) for topic, partitions in starts.items()}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "kafka.group.id": group,
    }
    return spark.read.format("kafka").options(**_options(kafka), **wanted).load().select(*_COLUMNS)


def _options(kafka: KafkaConfig) -> dict[str, Any]:
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "kafka.max.partition.fetch.bytes": str(FETCH_BYTES_MAX),
        **{f"kafka.{name}": value for name, value in java_properties(kafka).items()},
    }


def java_properties(kafka: KafkaConfig) -> Mapping[str, str]:
    """The Java client's settings for the same brokers. Raises ConfigError for what has no counterpart here."""
    given = {name: secret.get_secret_value() for name, secret in kafka.options.items()}
    for name in given:
        if name.startswith(("sasl.", "ssl.", "security.")) and name not in _SAME_MEANING and name not in _TRANSLATED:
            raise ConfigError(
                f"kafka.options: {name} is not understood by the Spark source",
                f"known are {', '.join(sorted({*_SAME_MEANING, *_TRANSLATED}))}",
            )
    said = {_SAME_MEANING[name]: value for name, value in given.items() if name in _SAME_MEANING}
    if "security.protocol" in said:
        said["security.protocol"] = said["security.protocol"].upper()
    if "sasl.username" in given:
        said["sasl.jaas.config"] = _login(said.get("sasl.mechanism", ""), given)
    if "ssl.ca.location" in given:
        said |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": given["ssl.ca.location"]}
    return said


def _login(mechanism: str, given: Mapping[str, str]) -> str:
    module = _LOGIN_MODULES.get(mechanism)
    if module is None:
        raise ConfigError(
            "kafka.options: sasl.username needs a sasl.mechanism that the Spark source knows",
            f"one of {', '.join(_LOGIN_MODULES)}",
        )
    return (
        f"{module} required username={_jaas(given['sasl.username'])} password={_jaas(given.get('sasl.password', ''))};"
    )


def _jaas(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
