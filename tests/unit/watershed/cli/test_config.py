"""`cdc config`."""

import json

from typer.testing import CliRunner

from watershed.cli.main import application


def test_the_schema_is_printed_as_json() -> None:
    ended = CliRunner().invoke(application(["config"]), ["config", "schema"])
    assert ended.exit_code == 0
    assert json.loads(ended.stdout)["properties"]["sinks"]["type"] == "object"
