"""The command that checks views."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from cdc.model.errors import ConfigError
from watershed.cli import view


def test_each_view_is_checked_also_after_one_that_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    checked = []

    def check_one(_settings: Any, name: str, _section: Any, *, as_json: bool) -> bool:
        assert not as_json
        checked.append(name)
        if name != "good":
            raise ConfigError(f"view {name}: refused", "correct it")
        return False

    settings = SimpleNamespace(views={"first": None, "good": None, "last": None}, event_logs={})
    with (
        patch.object(view, "_with_functions", lambda _: settings),
        patch.object(view, "_checked", check_one),
        pytest.raises(ConfigError, match="view last: refused"),
    ):
        view.check()
    assert checked == ["first", "good", "last"]
    assert "error: view first: refused\n  next: correct it" in capsys.readouterr().err
