"""The same brokers for the Java client."""

import pytest
from pydantic import SecretStr

from cdc.config.settings import KafkaConfig
from cdc.model.errors import ConfigError
from spark_jobs.kafka_source import java_properties


def config(**options: str) -> KafkaConfig:
    named = {name.replace("__", "."): SecretStr(value) for name, value in options.items()}
    return KafkaConfig(bootstrap_servers="b:9092", options=named)


def test_without_options_there_is_nothing_to_translate() -> None:
    assert java_properties(config()) == {}


def test_options_that_tune_librdkafka_stay_there() -> None:
    assert java_properties(config(linger__ms="5", queue__buffering__max__kbytes="1")) == {}


def test_a_login_and_a_certificate() -> None:
    found = java_properties(
        config(
            security__protocol="sasl_ssl",
            sasl__mechanisms="SCRAM-SHA-512",
            sasl__username='us"er',
            sasl__password="back\\slash",
            ssl__ca__location="/ca.pem",
        )
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="us\\"er" password="back\\\\slash";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }


def test_a_plain_login() -> None:
    found = java_properties(config(sasl__mechanism="PLAIN", sasl__username="u", sasl__password="p"))
    assert found["sasl.jaas.config"].startswith("org.apache.kafka.common.security.plain.PlainLoginModule required")


@pytest.mark.parametrize(
    "options",
    [
        {"sasl__mechanism": "GSSAPI", "sasl__username": "u", "sasl__password": "hidden"},
        {"sasl__username": "u", "sasl__password": "hidden"},
        {"ssl__key__password": "hidden"},
        {"sasl__oauthbearer__config": "hidden"},
    ],
)
def test_what_has_no_counterpart_is_refused_without_telling_it(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.options") as refused:
        java_properties(config(**options))
    assert "hidden" not in str(refused.value)
