"""Points of death: named, counted, and off unless asked for."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cdc
from cdc.model.errors import ConfigError
from cdc.ports.stream import unarmed
from watershed.cli.failpoints import FAILPOINTS, armed_probe


def test_nobody_asked_nobody_dies() -> None:
    assert armed_probe({}) is unarmed
    assert armed_probe({"CDC_FAILPOINT": ""}) is unarmed
    for name in FAILPOINTS:
        unarmed(name)


@pytest.mark.parametrize(
    "wanted",
    [
        "kafka",
        "kafka.after-commit:",
        "kafka.after-commit:x",
        "kafka.after-commit:0",
        "kafka.after-commit:-1",
        "status.sent:1:x",
        "status.sent:1:stop:2",
    ],
)
def test_a_name_that_does_not_exist_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigError, match="names no failpoint") as refused:
        armed_probe({"CDC_FAILPOINT": wanted})
    assert "status.sent" in refused.value.hint


def test_the_process_is_killed_at_the_passing_that_was_asked_for() -> None:
    code = (
        "from watershed.cli.failpoints import armed_probe\n"
        "probe = armed_probe({'CDC_FAILPOINT': 'kafka.after-commit:3'})\n"
        "for number in range(5):\n"
        "    probe('kafka.before-commit')\n"
        "    print(number, flush=True)\n"
        "    probe('kafka.after-commit')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == ["0", "1", "2"]


def test_it_is_frozen_where_that_was_asked_for() -> None:
    code = (
        "from watershed.cli.failpoints import armed_probe\n"
        "armed_probe({'CDC_FAILPOINT': 'status.sent:1:stop'})('status.sent')\n"
        "print('awake')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=10)[0] == "awake\n"


def test_every_failpoint_is_passed_somewhere() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in Path(cdc.__file__).parent.rglob("*.py"))
    assert {*re.findall(r'_probe\("([a-z.-]+)"\)', source)} == FAILPOINTS.keys()
