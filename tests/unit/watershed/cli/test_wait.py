"""`cdc wait` refuses a text that is no LSN with another exit code than a wait that ends too late."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cdc.model.errors import ConfigError
from cdc.model.sink_records import SinkRecord
from tests.support.sink_job import write_config
from tests.support.status_facts import applied
from watershed.cli.wait import wait
from watershed.client.applied import WaitError
from watershed.client.pipeline_watch import PipelineWatch

CACHES = {
    name: {"type": "cache", "url": f"redis://127.0.0.1:{port}"} for port, name in enumerate(("cache", "session"), 1)
}
module = import_module("watershed.cli.wait")


@pytest.mark.parametrize("text", ["garbage", "", "0/", "0/16B37480000", "16B3748"])
def test_a_text_that_is_no_lsn_is_refused_before_anything_is_read(text: str) -> None:
    with pytest.raises(ConfigError, match="not an LSN") as refused:
        wait(text)
    assert "for example 0/16B3748" in refused.value.hint


class Published:
    """Takes the place of PipelineWatch."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def read_to_end(self) -> None:
        """It is read."""

    def sinks(self) -> tuple[SinkRecord, ...]:
        return tuple(applied(sink=name) for name in self.names)

    def close(self) -> None:
        """Nothing is open."""


def waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sinks: Mapping[str, Any], *published: str) -> object:
    """The sinks for which `cdc wait` without --sink waits."""
    asked: list[object] = []
    monkeypatch.setattr(PipelineWatch, "of", lambda _: Published(*published))
    monkeypatch.setattr(module, "wait_for", lambda _, names, *__, **___: asked.append(names))
    wait("0/10", config=write_config(tmp_path, "127.0.0.1:1", "shop", sinks))
    return asked[0]


def test_a_sink_that_was_removed_from_the_configuration_is_named_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert waited_for(monkeypatch, tmp_path, CACHES, "cache", "retired") == ["cache"], "session has never run"
    assert "not waited for: sink retired" in capsys.readouterr().err
    assert waited_for(monkeypatch, tmp_path, CACHES, "session", "cache") == ["cache", "session"]
    assert waited_for(monkeypatch, tmp_path, {}, "retired") is None, "the file of an application may name no sinks"
    with pytest.raises(WaitError, match="no sink of the configuration"):
        waited_for(monkeypatch, tmp_path, CACHES, "retired")
