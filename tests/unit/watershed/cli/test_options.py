"""Options that several commands have mean the same in each."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperOption
from typer.main import get_command

from watershed.cli.main import COMMANDS, application

STREAMS_WITHOUT_JSON = {"config schema", "dlq show"}  # print JSON always


def _commands() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        command = get_command(application([name])).commands[name]  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            yield from ((f"{name} {word}", one) for word, one in inner.items())


def _options(name: str) -> dict[str, TyperOption]:
    """Command → its option of this name."""
    return {
        command: option
        for command, found in _commands()
        for option in found.params
        if isinstance(option, TyperOption) and name in (*option.opts, *option.secondary_opts)
    }


def test_json_is_a_switch_that_is_off() -> None:
    found = _options("--json")
    assert {"check", "status", "wait", "verify", "teardown", "table stop", "snapshot start"} <= found.keys()
    for name, option in found.items():
        assert (option.is_flag, option.default, "JSON" in str(option.help)) == (True, False, True), name


def test_wait_is_a_switch_with_its_opposite_that_is_on() -> None:
    found = _options("--wait")
    assert {"snapshot start", "snapshot heal", "rebuild"} <= found.keys()
    for name, option in found.items():
        assert (option.is_flag, option.default, option.secondary_opts) == (True, True, ["--no-wait"]), name


def test_timeout_is_in_seconds_and_for_all_that_the_command_waits_for() -> None:
    found = _options("--timeout")
    assert {"wait", "snapshot start", "snapshot pause", "table start", "rebuild", "outbox prune"} <= found.keys()
    for name, option in found.items():
        assert str(option.help).startswith("Total seconds to wait"), name
        assert option.default is None or isinstance(option.default, float), name


def test_the_commands_for_trying_it_out_come_last() -> None:
    assert list(COMMANDS)[-2:] == ["demo", "stack"]


@pytest.mark.parametrize("name", sorted({name for name, _ in _commands()} & STREAMS_WITHOUT_JSON))
def test_what_always_prints_json_has_no_switch_for_it(name: str) -> None:
    assert name not in _options("--json")
