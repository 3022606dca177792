"""`cdc snapshot` before it talks to anybody; with capture, it is in tests/integration/test_snapshot_command.py."""

from pathlib import Path

import pytest
from typer import BadParameter
from typer.testing import CliRunner

from cdc.model.errors import ConfigError
from watershed.cli.main import application
from watershed.cli.snapshot import _key


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--where", "id > 1"], "exactly one --table"),
        (["--after", "1", "--table", "public.a", "--table", "public.b"], "exactly one --table"),
        (["--where", "id > 1", "--table", "public.a", "--sink", "search"], "can't be combined with --sink"),
        (["--fresh"], "require --sink"),
        (["--keep-running"], "require --sink"),
        (["--sink", "search", "--table", "public.a"], "--table requires --fresh"),
        (["--sink", "search", "--no-wait"], "--sink always waits"),
    ],
)
def test_options_that_do_not_go_together_are_usage_errors(words: list[str], problem: str) -> None:
    done = CliRunner().invoke(application(["snapshot"]), ["snapshot", "start", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())


def test_a_table_needs_its_schema(tmp_path: Path) -> None:
    config = tmp_path / "watershed.yml"
    config.write_text(
        "source: {dsn: postgresql://h/d, tables: [public.a]}\n"
        "kafka: {bootstrap_servers: '127.0.0.1:1'}\ntopics: {prefix: shop}\n"
    )
    words = ["snapshot", "start", "--table", "a", "--config", str(config)]
    done = CliRunner().invoke(application(["snapshot"]), words, env={"COLUMNS": "200"})
    assert (done.exit_code, "'a' is not schema.table" in done.output) == (2, True)


def test_a_configuration_that_is_not_there_is_said(tmp_path: Path) -> None:
    words = ["snapshot", "start", "--config", str(tmp_path / "none.yml")]
    assert isinstance(CliRunner().invoke(application(["snapshot"]), words).exception, ConfigError)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (None, None),
        ("17", ("17",)),
        ("a,b", ("a,b",)),
        ("", ("",)),
        ('["a", "b,c"]', ("a", "b,c")),
        ('[7, "x"]', ("7", "x")),
    ],
)
def test_a_key_is_a_text_or_a_list_of_texts(text: str | None, key: tuple[str, ...] | None) -> None:
    assert _key(text) == key


@pytest.mark.parametrize("text", ["[", "[]", "[1.5]", "[true]", '[["a"]]', "[null]"])
def test_other_lists_are_not_keys(text: str) -> None:
    with pytest.raises(BadParameter, match="JSON list"):
        _key(text)
