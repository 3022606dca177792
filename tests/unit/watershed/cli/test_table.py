"""`cdc table` before it talks to anybody; with capture, it is in tests/integration/test_schema_changes.py."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdc.model.errors import ConfigError
from watershed.cli.main import application


@pytest.mark.parametrize("command", ["stop", "start"])
def test_a_table_needs_its_schema(command: str) -> None:
    done = CliRunner().invoke(application(["table"]), ["table", command, "items"], env={"COLUMNS": "200"})
    assert (done.exit_code, "'items' is not schema.table" in done.output) == (2, True)


@pytest.mark.parametrize("words", [["list"], ["stop", "public.items"]])
def test_a_configuration_that_is_not_there_is_said(tmp_path: Path, words: list[str]) -> None:
    asked = ["table", *words, "--config", str(tmp_path / "none.yml")]
    assert isinstance(CliRunner().invoke(application(["table"]), asked).exception, ConfigError)
