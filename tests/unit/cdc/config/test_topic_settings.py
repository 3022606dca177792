"""Which settings new topics get, and which ones can't be configured."""

import pytest
from pydantic import ValidationError

from cdc.config.topic_settings import KINDS, TopicSettings
from cdc.model.topics import DELETES_KEPT_S


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_within_the_limits_of_the_large_services(kind: str) -> None:
    settings = TopicSettings().of(kind)  # type: ignore[arg-type]
    assert int(settings.get("segment.bytes", 50 * 2**20)) >= 50 * 2**20
    assert int(settings.get("max.message.bytes", 8 * 2**20)) <= 8 * 2**20
    assert settings["cleanup.policy"] in ("compact", "delete")


def test_each_kind_is_configured_by_itself() -> None:
    settings = TopicSettings.model_validate({"table": {"max.message.bytes": 16777216, "segment.ms": None}})
    assert settings.of("table")["max.message.bytes"] == "16777216"
    assert "segment.ms" not in settings.of("table")
    assert settings.of("view") == TopicSettings().of("view")
    preallocated = TopicSettings.model_validate({"log": {"preallocate": True}})
    assert preallocated.of("log")["preallocate"] == "true", "as brokers write it"


@pytest.mark.parametrize(
    ("kind", "policy"),
    [("table", "delete"), ("table", "compact,delete"), ("state", None), ("log", "compact"), ("signals", "compact")],
)
def test_a_policy_that_loses_or_refuses_records_is_refused(kind: str, policy: str | None) -> None:
    with pytest.raises(ValidationError, match=rf"{kind}: cleanup.policy can't be {policy}"):
        TopicSettings.model_validate({kind: {"cleanup.policy": policy}})


def test_events_may_have_any_policy() -> None:
    assert TopicSettings.model_validate({"event": {"cleanup.policy": "compact"}}).of("event")["cleanup.policy"] == (
        "compact"
    )


def test_how_long_deletes_are_kept_follows_from_the_settings() -> None:
    assert TopicSettings().deletes_kept_s == DELETES_KEPT_S
    shorter = TopicSettings.model_validate({"control": {"delete.retention.ms": 172_800_000}})
    assert shorter.deletes_kept_s == 2 * 86_400
    assert TopicSettings.model_validate({"table": {"delete.retention.ms": None}}).deletes_kept_s == 86_400
    with pytest.raises(ValidationError, match="must be a number of milliseconds"):
        TopicSettings.model_validate({"table": {"delete.retention.ms": "a week"}})


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValidationError, match="tables"):
        TopicSettings.model_validate({"tables": {}})
