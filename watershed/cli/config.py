"""`cdc config`: prints the configuration that is in effect, and the JSON Schema of the file."""

import json
import os
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from cdc.config.config_file import config_schema
from cdc.config.effective import Value, effective_options, values_of_file
from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration
from watershed.cli.setup.new_file import yaml_text

app = typer.Typer(no_args_is_help=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors and validators."""
    typer.echo(json.dumps(config_schema(), indent=2))


@app.command()
def show(
    is_changed: Annotated[bool, typer.Option("--changed", help="Only options that are not left at their default.")] = (
        False
    ),
    as_json: AsJson = False,
    config: ConfigFile = CONFIG,
) -> None:
    """Print the configuration that is in effect, as YAML: each option with where it is from, unless it has its default.
    Secrets are hidden, and a value with a variable is shown as it is in the file. Connects to nothing."""
    loaded = configuration(config)
    if as_json:
        typer.echo(json.dumps(effective_options(loaded, config, os.environ, is_changed=is_changed)))
        return
    shown = [one for one in values_of_file(loaded, config, os.environ) if not (is_changed and one.is_default)]
    for line in _yaml(shown):
        typer.echo(line)


def _yaml(values: Iterable[Value]) -> Iterator[str]:
    above: tuple[str, ...] = ()
    for place, value, origin in values:
        *sections, name = place
        same = 0
        while same < min(len(above), len(sections)) and above[same] == sections[same]:
            same += 1
        for depth in range(same, len(sections)):
            yield f"{'  ' * depth}{yaml_text(sections[depth])}:"
        above = tuple(sections)
        text = yaml_text(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        comment = "" if origin == "default" else f"  # {origin}"
        yield f"{'  ' * len(sections)}{yaml_text(name)}: {text}{comment}"
