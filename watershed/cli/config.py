"""`cdc config`: prints the JSON Schema of the configuration file."""

import json

import typer

from cdc.config.config_file import config_schema

app = typer.Typer(no_args_is_help=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors and validators."""
    typer.echo(json.dumps(config_schema(), indent=2))
