"""Section `telemetry`."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.telemetry import TelemetryConfig


def test_nothing_is_sent_by_default() -> None:
    config = TelemetryConfig()
    assert (config.otlp_endpoint, config.openlineage_url) == (None, None)


def test_addresses_may_have_a_path_and_end_with_a_slash() -> None:
    config = TelemetryConfig(otlp_endpoint="https://gateway.example/otlp/", openlineage_url="http://marquez:5000")
    assert config.otlp_endpoint == "https://gateway.example/otlp"
    assert config.openlineage_url == "http://marquez:5000"


@pytest.mark.parametrize("option", ["otlp_endpoint", "openlineage_url"])
@pytest.mark.parametrize(
    ("address", "reported"),
    [
        ("collector:4318", "is written like http://"),
        ("grpc://collector:4317", "is written like http://"),
        ("http://:4318", "is written like http://"),
        ("http://collector:99999", "is written like http://"),
        ("http://collector:4318?token=hunter2", "is written like http://"),
        ("http://me:hunter2@collector:4318", "has no user and no password"),
    ],
)
def test_an_address_that_can_not_be_used_is_refused_without_being_shown(
    option: str, address: str, reported: str
) -> None:
    with pytest.raises(ValidationError, match=reported) as refused:
        TelemetryConfig.model_validate({option: address})
    assert "hunter2" not in str(refused.value)


def test_secrets_are_not_shown() -> None:
    given: dict[str, Any] = {"otlp_headers": {"authorization": "Bearer hunter2"}, "openlineage_api_key": "hunter2"}
    config = TelemetryConfig.model_validate(given)
    assert "hunter2" not in repr(config)
    assert config.otlp_headers["authorization"].get_secret_value() == "Bearer hunter2"


@pytest.mark.parametrize("secret", ["hunter2\n", "hunter2\r\nHost: evil.example", " hunter2", "hunter2é"])
def test_a_secret_that_no_header_can_have_is_refused_without_being_shown(secret: str) -> None:
    for given in ({"otlp_headers": {"authorization": secret}}, {"openlineage_api_key": secret}):
        with pytest.raises(ValidationError, match="it is sent in a header") as refused:
            TelemetryConfig.model_validate(given)
        assert "hunter2" not in str(refused.value)
