"""The Kafka source of a query."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from cdc.config.settings import KafkaConfig
from cdc.model.errors import ConfigError

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
    wanted = {"subscribe": ",".join(sorted(topics)), "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**_options(kafka), **wanted).load()


def _options(kafka: KafkaConfig) -> dict[str, Any]:
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "false",
        **{f"kafka.{name}": value for name, value in java_properties(kafka).items()},
    }


def java_properties(kafka: KafkaConfig) -> Mapping[str, str]:
    """Returns the Java client's settings for the same brokers. Raises ConfigError for settings that have no
    counterpart."""
    given = {name: secret.get_secret_value() for name, secret in kafka.options.items()}
    for name in given:
        if name.startswith(("sasl.", "ssl.", "security.")) and name not in _SAME_MEANING and name not in _TRANSLATED:
            raise ConfigError(
                f"kafka.options: {name} is not supported by the Spark source",
                f"supported are {', '.join(sorted({*_SAME_MEANING, *_TRANSLATED}))}",
            )
    used = {_SAME_MEANING[name]: value for name, value in given.items() if name in _SAME_MEANING}
    if "security.protocol" in used:
        used["security.protocol"] = used["security.protocol"].upper()
    if "sasl.username" in given:
        used["sasl.jaas.config"] = _login(used.get("sasl.mechanism", ""), given)
    if "ssl.ca.location" in given:
        used |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": given["ssl.ca.location"]}
    return used


def _login(mechanism: str, given: Mapping[str, str]) -> str:
    module = _LOGIN_MODULES.get(mechanism)
    if module is None:
        raise ConfigError(
            "kafka.options: sasl.username requires a sasl.mechanism that the Spark source supports",
            f"one of {', '.join(_LOGIN_MODULES)}",
        )
    return (
        f"{module} required username={_jaas(given['sasl.username'])} password={_jaas(given.get('sasl.password', ''))};"
    )


def _jaas(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
