"""Tokens of plug-ins: the first one, later ones, and what fails. Brokers: tests/integration/test_secured_kafka.py."""

import base64
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import structlog
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr, ValidationError

from cdc.config.settings import KafkaConfig, TokenConfig
from cdc.kafka import tokens
from cdc.kafka.client import client_settings, new_client, reading_settings
from cdc.kafka.tokens import RETRY_S, TokenCallback
from cdc.model.errors import BrokerError, ConfigError

SECRET = "sesame-open"


class Plugin:
    """Gives out what is next in line."""

    def __init__(self, *given: Any) -> None:
        self.given = list(given)
        self.options: Mapping[str, str] = {}

    def __call__(self, options: Mapping[str, str]) -> Callable[[], tuple[Any, ...]]:
        self.options = options
        return self.next

    def next(self) -> tuple[Any, ...]:
        one = self.given.pop(0)
        if isinstance(one, Exception):
            raise one
        return one if isinstance(one, tuple) else (one, time.time() + 900)


def callback(monkeypatch: pytest.MonkeyPatch, plugin: Any) -> TokenCallback:
    monkeypatch.setattr(tokens, "PLUGINS", {"acme": plugin})
    return TokenCallback(TokenConfig(plugin="acme", options={"password": SecretStr(SECRET)}))


def test_the_first_token_is_asked_for_once_and_later_ones_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin("a", ("b", 2e9, "me", {"logicalCluster": "c"}))
    made = callback(monkeypatch, plugin)
    made.prepare()
    assert plugin.options == {"password": SECRET}
    text, expires_at, principal, extensions = made("")
    assert (text, principal, extensions, expires_at > time.time() + 800) == ("a", "", {}, True)
    assert made(None) == ("b", 2e9, "me", {"logicalCluster": "c"})


def test_while_there_is_no_new_token_the_last_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the callback ends a later call of the client library, whichever that is."""
    made = callback(monkeypatch, Plugin(("a", time.time() + 1), OSError(f"no answer to {SECRET}"), ("b", 1.0), "c"))
    made.prepare()
    made("")
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):  # no answer; a token of long ago
            text, expires_at, *_ = made("")
            assert text == "a"
            assert time.time() < expires_at <= time.time() + RETRY_S
    assert [entry["log_level"] for entry in logs] == ["warning", "warning"]
    assert "no answer" in logs[0]["error"] and "expired already" in logs[1]["error"]
    assert SECRET not in str(logs)
    assert made("")[0] == "c"


@pytest.mark.parametrize("given", [OSError(f"refused: {SECRET}"), ("", 2e9), ("a", 1.0), ("a",)])
@pytest.mark.parametrize("kind", [AdminClient, Producer, Consumer])
def test_without_a_first_token_there_is_no_client(monkeypatch: pytest.MonkeyPatch, kind: type, given: Any) -> None:
    """Left to itself the client would wait ten seconds, and say nothing of the cause."""
    monkeypatch.setattr(tokens, "PLUGINS", {"acme": Plugin(given)})
    token = TokenConfig(plugin="acme", options={"password": SecretStr(SECRET)})
    kafka = KafkaConfig(bootstrap_servers="127.0.0.1:1", token=token)
    began = time.monotonic()
    with pytest.raises(BrokerError, match=r"kafka\.token: acme gets no token") as caught:
        new_client(kind, reading_settings(kafka, "group") if kind is Consumer else client_settings(kafka))
    assert time.monotonic() - began < 5
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    "plugin",
    [
        pytest.param(
            "acmee",
            marks=pytest.mark.combination(
                "kafka",
                "Apache Kafka",
                "OAUTHBEARER, a plug-in that is not installed",
                refused="there is no plug-in 'acmee'; there are aws_msk_iam",
            ),
        ),
        pytest.param(
            "aws_msk_iam",
            marks=pytest.mark.combination(
                "kafka", "Amazon MSK", "IAM, without a region", refused="aws_msk_iam: region is missing"
            ),
        ),
    ],
)
def test_a_plugin_that_is_not_there_or_lacks_an_option_is_named(plugin: str, expected_refusal: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TokenCallback(TokenConfig(plugin=plugin)).prepare()
    assert expected_refusal in caught.value.message


def test_an_option_that_the_plugin_does_not_know_is_named() -> None:
    options = {"region": SecretStr("eu-west-1"), "zone": SecretStr("a")}
    with pytest.raises(ConfigError, match="unknown: zone"):
        TokenCallback(TokenConfig(plugin="aws_msk_iam", options=options)).prepare()


def test_a_token_implies_its_mechanism() -> None:
    token = TokenConfig(plugin="acme")
    assert KafkaConfig(bootstrap_servers="b", token=token).given == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
    }
    for name, value in (("sasl.mechanism", "PLAIN"), ("sasl.oauthbearer.method", "oidc")):
        with pytest.raises(ValidationError, match=f"remove {name} from options"):
            KafkaConfig(bootstrap_servers="b", token=token, options={name: SecretStr(value)})


@pytest.mark.combination(
    "kafka", "Amazon MSK", "IAM", instead="AWS's library signs a token for the region, and no broker is asked"
)
def test_a_token_of_aws_is_signed_for_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """By AWS's own library, which asks nobody: the token is a signed address."""
    pytest.importorskip("aws_msk_iam_sasl_signer")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    made = TokenCallback(TokenConfig(plugin="aws_msk_iam", options={"region": SecretStr("eu-west-1")}))
    made.prepare()
    text, expires_at, *_ = made("")
    address = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    assert address.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert "AKIDEXAMPLE" in address and SECRET not in address
    assert 800 < expires_at - time.time() < 1000
