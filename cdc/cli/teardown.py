"""`cdc teardown`: removes what capture has created in the source and, on request, in Kafka."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cdc.cli.exit_codes import PARTIAL
from cdc.config.settings import Config, load_config
from cdc.daemon.logs import configure_logs
from cdc.kafka.state_reader import read_captured
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import WatershedError
from cdc.model.topics import Topics
from cdc.postgres.prospects import remove_publication, remove_slot


def teardown(
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")] = Path(
        "watershed.yml"
    ),
    topics: Annotated[bool, typer.Option("--topics", help="Delete the prefix's topics too, with all events.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object; needs --yes.")] = False,
) -> None:
    """Remove replication slot and publication, after a confirmation. Public event topics and derived stores stay. Exits
    6 when a part could not be removed."""
    configure_logs(level="error")
    if as_json and not yes:
        raise typer.BadParameter("--json can't ask: add --yes")
    settings = load_config(config)
    steps: list[tuple[str, Callable[[], str]]] = [
        (f"replication slot {settings.source.slot}", lambda: _removed(remove_slot(settings.source))),
        (f"publication {settings.source.publication}", lambda: _removed(remove_publication(settings.source))),
    ]
    if topics:
        steps.append((f"topics of prefix {settings.topics.prefix}", lambda: _without_topics(settings)))
    if not yes:
        typer.echo(f"to be removed: {', '.join(name for name, _ in steps)}")
        typer.confirm(
            "Changes from now on are not captured, and a later start reads all rows again. Go on?", abort=True
        )
    done, failed = _run(steps, as_json=as_json)
    if failed:
        raise typer.Exit(PARTIAL if done else failed[0].exit_code)
    if not as_json and not topics:
        typer.echo("topics and stores stay; --topics deletes the topics")


def _run(steps: list[tuple[str, Callable[[], str]]], *, as_json: bool) -> tuple[list[str], list[WatershedError]]:
    """Returns what was done, and why the rest was not. Nothing at all is removed unless the slot is free."""
    done: list[str] = []
    failed: list[WatershedError] = []
    told = []
    for name, step in steps:
        try:
            outcome = step()
            done.append(name)
            told.append({"what": name, "outcome": outcome, "next": ""})
        except WatershedError as error:
            failed.append(error)
            told.append({"what": name, "outcome": error.message, "next": error.hint})
            if not as_json:
                typer.echo(f"error: {name}: {error}", err=True)
            if not done:
                break
        else:
            if not as_json:
                typer.echo(f"{name}: {outcome}")
    if as_json:
        typer.echo(json.dumps({"is_complete": not failed, "steps": told}))
    return done, failed


def _removed(was_there: bool) -> str:
    return "removed" if was_there else "was not there"


def _without_topics(config: Config) -> str:
    topics = Topics(config.topics.prefix)
    tables = {*config.source.table_ids, *read_captured(config).schemas}
    letters = [topics.outbox_dead_letters, *map(topics.sink_dead_letter, config.sinks)]
    names = [*topics.own, *letters, *map(topics.table, tables)]
    return f"{TopicAdmin(config.kafka).delete(names)} deleted"
