"""`cdc teardown`: removes what Watershed has created in the source and, on request, in Kafka and in the stores."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import typer

from cdc.config.config_file import Config
from cdc.config.stores import StoreConfig
from cdc.config.views import view_topics
from cdc.kafka.state_reader import read_captured, read_in_force
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import WatershedError
from cdc.model.topics import Topics
from sinks.registry import store_contents
from watershed.cli.exit_codes import PARTIAL
from watershed.cli.options import CONFIG, ConfigFile, configuration
from watershed.cli.setup.prospects import remove_publication, remove_slot

NAMES_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class TeardownStep:
    """One part of the removal. `run` returns what it removed, or what it would remove if called with False."""

    name: str
    run: Callable[[bool], str]  # the argument: whether it removes


def teardown(
    config: ConfigFile = CONFIG,
    topics: Annotated[bool, typer.Option("--topics", help="Also delete the prefix's topics, with all events.")] = False,
    stores: Annotated[
        bool,
        typer.Option("--stores", help="Also remove what the sinks created in their stores, history tables included."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object; requires --yes or --dry-run.")] = False,
) -> None:
    """Remove the replication slot and the publication; with --topics also the topics, and with --stores the indexes,
    keys and tables of the sinks. Asks for confirmation. Event topics of the outbox are kept, and everything in the
    stores that Watershed did not create. Exits with 6 if a part could not be removed; run again to remove the rest."""
    if as_json and not (yes or dry_run):
        raise typer.BadParameter("--json can't ask for confirmation: add --yes or --dry-run")
    settings = configuration(config, log_level="error")
    if stores:  # first, as the topics say which tables patterns took
        settings = read_in_force(settings)
    steps = list(_steps(settings, topics=topics, stores=stores))
    if not (yes or dry_run):
        _ask(steps)
    done, failed = _run(steps, removes=not dry_run, as_json=as_json)
    if failed:
        raise typer.Exit(PARTIAL if done else failed[0].exit_code)
    kept = [word for word, is_removed in (("topics", topics), ("stores", stores)) if not is_removed]
    if kept and not as_json:
        options = " and ".join(f"--{word}" for word in kept)
        typer.echo(f"{' and '.join(kept)} are kept; {options} would remove them")


def _steps(config: Config, *, topics: bool, stores: bool) -> Iterator[TeardownStep]:
    """Yields the steps in their order. The slot comes first, because it can't be removed while capture runs. The topics
    come before the stores, because sinks would fill their stores from them again."""
    yield TeardownStep(f"replication slot {config.source.slot}", partial(_slot, config))
    yield TeardownStep(f"publication {config.source.publication}", partial(_publication, config))
    if topics:
        yield TeardownStep(f"topics of prefix {config.topics.prefix}", partial(_topics, config))
    for name, section in config.sinks.items() if stores else ():
        yield TeardownStep(f"store of sink {name}", partial(_store, config, name, section))


def _ask(steps: list[TeardownStep]) -> None:
    typer.echo("to be removed:")
    for step in steps:
        try:
            typer.echo(f"  {step.name}: {step.run(False)}")
        except WatershedError as error:
            typer.echo(f"  {step.name}: {error.message}")
    typer.confirm(
        "Changes from now on are not captured, and a later start reads all rows again. Stop `cdc run` and `cdc sink "
        "run` first. Continue?",
        abort=True,
    )


def _run(steps: list[TeardownStep], *, removes: bool, as_json: bool) -> tuple[list[str], list[WatershedError]]:
    """Returns the names of the steps that were done, and the errors of the others. Removes nothing at all if the first
    step, the slot, fails."""
    done: list[str] = []
    failed: list[WatershedError] = []
    outcomes = []
    for step in steps:
        try:
            outcome = step.run(removes)
            done.append(step.name)
            outcomes.append({"what": step.name, "outcome": outcome, "next": ""})
        except WatershedError as error:
            failed.append(error)
            outcomes.append({"what": step.name, "outcome": error.message, "next": error.hint})
            if not as_json:
                typer.echo(f"error: {step.name}: {error}", err=True)
            if removes and not done:
                break
        else:
            if not as_json:
                typer.echo(f"{step.name}: {outcome}")
    if as_json:
        typer.echo(json.dumps({"is_complete": not failed, "is_dry_run": not removes, "steps": outcomes}))
    return done, failed


def _slot(config: Config, removes: bool) -> str:
    return _outcome(remove_slot(config.source, removes=removes), removes)


def _publication(config: Config, removes: bool) -> str:
    return _outcome(remove_publication(config.source, removes=removes), removes)


def _outcome(was_there: bool, removes: bool) -> str:
    if not was_there:
        return "was not there" if removes else "is not there"
    return "removed" if removes else "would be removed"


def _topics(config: Config, removes: bool) -> str:
    topics = Topics(config.topics.prefix)
    tables = {*config.source.table_ids, *read_captured(config).schemas}
    letters = [topics.outbox_dead_letters, *map(topics.sink_dead_letter, config.sinks)]
    of_views = view_topics(config.views, topics.prefix).values()
    names = [*topics.own, *letters, *map(topics.table, tables), *of_views]
    admin = TopicAdmin(config.kafka)
    return f"{admin.delete(names)} deleted" if removes else f"{len(admin.describe(names))} would be deleted"


def _store(config: Config, name: str, section: StoreConfig, removes: bool) -> str:
    tables = [table for table in config.source.stored_table_ids if section.holds(table)]
    found = store_contents(name, section, config.topics.prefix, tables, removes=removes)
    if not found:
        return "holds nothing that Watershed created"
    more = f" and {len(found) - NAMES_SHOWN_MAX} more" if len(found) > NAMES_SHOWN_MAX else ""
    return f"{', '.join(found[:NAMES_SHOWN_MAX])}{more} {'removed' if removes else 'would be removed'}"
