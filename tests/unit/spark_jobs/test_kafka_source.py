"""The same brokers for the Java client."""

from collections.abc import Mapping, Sequence

import pytest
from pydantic import SecretStr
from pyspark import cloudpickle

from cdc.config.settings import KafkaConfig, TokenConfig
from cdc.model.errors import UnreachableError
from spark_jobs import kafka_source
from spark_jobs.applied import FoundTopic
from spark_jobs.kafka_source import EndsReader, configured, java_properties


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
    assert found is not None
    assert found["sasl.jaas.config"].startswith("org.apache.kafka.common.security.plain.PlainLoginModule required")


@pytest.mark.parametrize(
    "options",
    [
        {"sasl__mechanism": "GSSAPI", "sasl__username": "u", "sasl__password": "hidden"},
        {"sasl__mechanism": "OAUTHBEARER", "sasl__oauthbearer__method": "oidc"},
        {"ssl__key__location": "/own.key", "ssl__certificate__location": "/own.pem"},
    ],
)
def test_what_has_no_counterpart_is_left_to_librdkafka(options: dict[str, str]) -> None:
    assert java_properties(config(**options)) is None


def test_tokens_are_left_to_librdkafka() -> None:
    token = TokenConfig(plugin="aws_msk_iam", options={"region": SecretStr("eu-west-1")})
    assert java_properties(KafkaConfig(bootstrap_servers="b:9092", token=token)) is None


class Ends:
    """Answers as TopicEnds does; None: the brokers are away."""

    def __init__(self) -> None:
        self.topics: Sequence[str] = ()
        self.answers: list[Mapping[str, FoundTopic] | None] = []

    def set_topics(self, topics: Sequence[str]) -> None:
        self.topics = topics

    def ask(self) -> Mapping[str, FoundTopic]:
        answer = self.answers.pop(0)
        if answer is None:
            raise UnreachableError("away", "wait")
        return answer


def test_ends_have_the_form_of_sparks_own_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends()
    ends.answers = [{"p.b": FoundTopic("id", (3, 0))}, None, {}]
    monkeypatch.setattr(kafka_source, "TopicEnds", lambda _: ends)
    reader = EndsReader(config(), ["p.a", "p.b"])
    assert reader.initialOffset() == {}
    assert reader.latestOffset() == {"p.b": {"0": 3, "1": 0}}
    assert ends.topics == ["p.a", "p.b"]
    assert reader.latestOffset() == {"p.b": {"0": 3, "1": 0}}, "brokers that are away say nothing new"
    assert reader.latestOffset() == {}
    assert reader.partitions({}, {"p.b": {"0": 3}}) == []


def test_a_configured_source_keeps_its_brokers_when_it_is_sent_to_another_process() -> None:
    kafka = config(sasl__password="hidden")
    made = cloudpickle.loads(cloudpickle.dumps(configured(kafka)))  # type: ignore[no-untyped-call]
    assert made.kafka == kafka
    assert "hidden" not in repr(made)
