"""The command `cdc`: imports only the requested command, and prints errors as sentences."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated

import typer

from cdc import __version__
from cdc.cli.exit_codes import EPILOG, INTERRUPTED
from cdc.model.errors import WatershedError


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a command, `module:name`: a function is a command, a typer app a group of them."""

    target: str
    help: str


COMMANDS = {
    "init": Entry("cdc.cli.init:init", "Write a configuration for a database, and print the SQL that it needs."),
    "check": Entry("cdc.cli.check:check", "All findings about source, brokers, stores, Java and jars; writes nothing."),
    "config": Entry("cdc.cli.config:app", "About the configuration file: its JSON Schema."),
    "run": Entry("cdc.cli.run:run", "Capture: publish every committed change to Kafka."),
    "sink": Entry("cdc.cli.sink:app", "Keep a search index, a cache and warehouse tables in step with the topics."),
    "status": Entry("cdc.cli.status:status", "How the pipeline is: source, WAL budget, capture, tables, sinks, views."),
    "wait": Entry("cdc.cli.wait:wait", "Wait until stores show everything up to an LSN."),
    "verify": Entry("cdc.cli.verify:verify", "Compare stores with the source, row by row, while both are written."),
    "repair": Entry("cdc.cli.verify:repair", "Compare, and have rows that differ published again."),
    "table": Entry("cdc.cli.table:app", "Which tables are captured or stopped; stop one, start it again."),
    "snapshot": Entry("cdc.cli.snapshot:app", "Read existing rows again beside the stream; fill a new store."),
    "rebuild": Entry(
        "cdc.cli.rebuild:rebuild", "Build a sink's store again while it serves, then swap; go back to before."
    ),
    "outbox": Entry("cdc.cli.outbox:app", "The outbox table and the function that publishes: create, prune."),
    "warehouse": Entry("cdc.cli.warehouse:app", "The warehouse's tables: merge small files, expire old snapshots."),
    "view": Entry("cdc.cli.view:app", "Rows that a query derives from tables: check, run, status, rebuild."),
    "dlq": Entry("cdc.cli.dlq:app", "Rows that stores rejected: list, show, replay, discard."),
    "teardown": Entry("cdc.cli.teardown:teardown", "Remove slot and publication, and on request topics and stores."),
    "demo": Entry("cdc.cli.demo:demo", "The whole path on servers of its own, with kill -9 in the middle."),
    "stack": Entry("cdc.cli.stack:app", "Start and stop PostgreSQL, Kafka, OpenSearch and Redis for development."),
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
    """The commands by name. Only the one that the arguments name is imported: a sink's brings Spark, which the others
    need not wait for."""
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Defines the options before a command's name."""


def _not_imported() -> None:
    """Stands for a command in the list of commands."""
    raise AssertionError("a command that was not named on the command line can't be called")


if __name__ == "__main__":
    main()
