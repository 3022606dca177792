"""Log lines on standard error."""

import json
import subprocess
import sys

import pytest
import structlog

from cdc.config.logs import JSON_VARIABLE, LEVEL_VARIABLE, configure_logs


def test_people_read_key_and_value(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    structlog.get_logger().info("slot created", slot="watershed")
    out, err = capfd.readouterr()
    assert out == "", "standard output is for answers"
    assert "slot created" in err
    assert "slot=watershed" in err


def test_machines_read_json(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=True)
    structlog.get_logger().warning("slot lost", slot="watershed")
    line = json.loads(capfd.readouterr().err)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "slot lost", "level": "warning", "slot": "watershed"}


def test_lines_below_the_level_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logs(level="warning")
    structlog.get_logger().info("not told")
    structlog.get_logger().error("told")
    err = capfd.readouterr().err
    assert "not told" not in err
    assert "told" in err


STARTED = """
import structlog
from cdc.config.logs import configure_logs_as_parent
configure_logs_as_parent()
structlog.get_logger().info("not told")
structlog.get_logger().error("told")
"""


def test_a_process_that_is_started_has_the_level_and_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (LEVEL_VARIABLE, JSON_VARIABLE):
        monkeypatch.setenv(name, "")  # as it was, after the test
    configure_logs(level="warning", as_json=True)
    message = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, check=True, text=True)
    assert json.loads(message.stderr)["event"] == "told"
    assert message.stdout == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_a_traceback_shows_no_variables(capfd: pytest.CaptureFixture[str], as_json: bool) -> None:
    configure_logs(as_json=as_json)
    secret = "".join(("hunt", "er2"))  # not in a line of this file, which a traceback may quote

    def connect(password: str) -> None:
        raise ConnectionError(f"{len(password)} letters refused")

    try:
        connect(secret)
    except ConnectionError:
        structlog.get_logger().exception("sink failed")
    err = capfd.readouterr().err
    assert "ConnectionError: 7 letters refused" in err
    assert "in connect" in err
    assert secret not in err
