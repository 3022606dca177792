"""The command `cdc`: imports only the requested command, and prints errors as sentences."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated

import typer

from cdc import __version__
from cdc.model.errors import WatershedError
from watershed.cli.exit_codes import EPILOG, INTERRUPTED


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a command, `module:name`: a function is a command, a typer app a group of them."""

    target: str
    help: str


COMMANDS = {
    "init": Entry("watershed.cli.init:init", "Write a configuration for a database, and print the SQL that it needs."),
    "check": Entry("watershed.cli.check:check", "Check the source, brokers, stores, Java and jars. Writes nothing."),
    "config": Entry("watershed.cli.config:app", "Show the configuration in effect; print the JSON Schema of the file."),
    "run": Entry("watershed.cli.run:run", "Run capture: publish every committed change to Kafka."),
    "sink": Entry("watershed.cli.sink:app", "Run sinks, which write the topics to stores; show how far they are."),
    "status": Entry(
        "watershed.cli.status:status", "Show the state of the source, WAL budget, capture, tables, sinks and views."
    ),
    "wait": Entry("watershed.cli.wait:wait", "Wait until stores show all changes up to an LSN."),
    "position": Entry("watershed.cli.position:position", "Show the LSN that every store has applied."),
    "verify": Entry(
        "watershed.cli.verify:verify", "Compare stores with the source, row by row, while both are being written."
    ),
    "repair": Entry(
        "watershed.cli.verify:repair", "Compare stores with the source, and publish rows that differ again."
    ),
    "table": Entry(
        "watershed.cli.table:app",
        "List tables, show one with all its names; stop and start the capture of a table.",
    ),
    "reload": Entry("watershed.cli.reload:reload", "Let capture and sinks read the configuration file again."),
    "source": Entry("watershed.cli.source:app", "Continue capture on another server, in the same topics."),
    "tail": Entry("watershed.cli.tail:tail", "Follow the changes of a table from its topic."),
    "get": Entry("watershed.cli.get:get", "Show one row in the source, in its topic and in every store, side by side."),
    "snapshot": Entry(
        "watershed.cli.snapshot:app", "Read existing rows again while streaming continues; fill a new store."
    ),
    "rebuild": Entry(
        "watershed.cli.rebuild:rebuild", "Rebuild a sink's store while the old one serves, then swap; roll back."
    ),
    "outbox": Entry("watershed.cli.outbox:app", "Create, prune and republish the tables and functions of the outbox."),
    "warehouse": Entry(
        "watershed.cli.warehouse:app", "Maintain warehouse tables: merge small files, expire snapshots; list tags."
    ),
    "view": Entry("watershed.cli.view:app", "Check, run and rebuild views: tables that a query derives from tables."),
    "dlq": Entry("watershed.cli.dlq:app", "List, show, replay and discard dead letters: rows that stores rejected."),
    "teardown": Entry(
        "watershed.cli.teardown:teardown", "Remove slot and publication, and on request topics and stores."
    ),
    "demo": Entry("watershed.cli.demo:demo", "Run the whole pipeline on temporary servers, and kill -9 it halfway."),
    "stack": Entry(
        "watershed.cli.stack:app", "Start and stop PostgreSQL, Kafka, OpenSearch and Redis for development."
    ),
}


def main() -> None:
    """Runs a command and ends with its exit code; prints a WatershedError without a traceback."""
    arguments = sys.argv[1:]
    try:
        application(words_to_complete(os.environ) or arguments)(arguments, prog_name="cdc")
    except WatershedError as error:
        typer.secho(f"error: {error}", fg=typer.colors.RED if sys.stderr.isatty() else None, err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def words_to_complete(environ: Mapping[str, str]) -> list[str]:
    """Returns the typed words if a shell requests completion, from the environment; otherwise nothing."""
    if "_CDC_COMPLETE" not in environ:
        return []
    return (environ.get("_TYPER_COMPLETE_ARGS") or environ.get("COMP_WORDS") or "").split()[1:]


def application(arguments: Sequence[str]) -> typer.Typer:
    """Returns the application with all commands. Only the command that the arguments name is imported: that of sinks
    imports Spark, and the others do not have to wait for it."""
    app = typer.Typer(
        name="cdc",
        help="Watershed: keeps derived data in step with PostgreSQL.",
        no_args_is_help=True,
        epilog=EPILOG,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    named = next((word for word in arguments if not word.startswith("-")), None)
    for name, entry in COMMANDS.items():
        if name != named:
            app.command(name, help=entry.help)(_not_imported)
            continue
        module, _, attribute = entry.target.partition(":")
        target = getattr(import_module(module), attribute)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name, help=entry.help)
        else:
            app.command(name)(target)  # its help is the docstring, which has the exit codes, too
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"watershed {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Defines the options before a command's name."""


def _not_imported() -> None:
    """Takes the place of a command that is listed by `--help` but not imported."""
    raise AssertionError("a command that was not named on the command line can't be called")


if __name__ == "__main__":
    main()
