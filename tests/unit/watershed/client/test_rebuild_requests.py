"""Requests to a sink's job, without brokers."""

from typing import Any

import pytest

from cdc.config.config_file import Config
from cdc.model.errors import ConfigError, WatershedError
from cdc.model.job_records import RebuildRecord
from cdc.model.topic_record import TopicRecord
from tests.support.status_facts import config
from watershed.client import rebuild_requests
from watershed.client.rebuild_requests import cancel_rebuild, request_rebuild, require_rebuildable


class Watch:
    """Has the last request of a sink, which was written to the progress topic."""

    def __init__(self) -> None:
        self.last: RebuildRecord | None = None

    def progress(self, kind: type[RebuildRecord], key: str) -> RebuildRecord | None:
        assert key == RebuildRecord.key_of("search")
        return self.last if kind is RebuildRecord else None

    def deliver(self, _: Any, record: TopicRecord) -> None:
        assert record.topic == "shop.progress" and record.value is not None
        self.last = RebuildRecord.decode(record.value, "here")


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Watch()
    monkeypatch.setattr(rebuild_requests, "deliver", made.deliver)
    return made


@pytest.fixture
def settings() -> Config:
    return config()


def test_a_request_is_written_once(watch: Any, settings: Config) -> None:
    first, is_new = request_rebuild(settings, watch, "search", "rebuild")
    assert is_new and watch.last == first and first.status == "asked"
    assert request_rebuild(settings, watch, "search", "rebuild") == (first, False)
    with pytest.raises(WatershedError, match="search: a rebuild is under way"):
        request_rebuild(settings, watch, "search", "rollback")


def test_what_is_under_way_is_cancelled_and_then_nothing_is(watch: Any, settings: Config) -> None:
    first, _ = request_rebuild(settings, watch, "search", "rollback")
    cancelled = cancel_rebuild(settings, watch, "search")
    assert (watch.last, cancelled.request, cancelled.status) == (cancelled, first.request, "cancelled")
    with pytest.raises(WatershedError, match="no rebuild is under way"):
        cancel_rebuild(settings, watch, "search")
    assert request_rebuild(settings, watch, "search", "rebuild")[0].request != first.request


def test_a_sink_that_is_not_configured_is_named(settings: Config) -> None:
    require_rebuildable(settings, "search")
    with pytest.raises(ConfigError, match="none"):
        require_rebuildable(settings, "none")
