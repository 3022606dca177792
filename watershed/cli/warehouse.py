"""`cdc warehouse`: maintenance of the tables in a warehouse, and the list of their tags."""

import dataclasses
import json
from typing import Annotated

import typer

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig, sink_config
from cdc.config.views import target_prefix
from cdc.model.errors import ConfigError
from watershed.cli.options import CONFIG, ConfigFile, configuration

app = typer.Typer(no_args_is_help=True)


@app.command()
def maintain(
    sink: Annotated[
        list[str] | None,
        typer.Option("--sink", metavar="NAME", help="A sink of type warehouse; all such sinks and views by default."),
    ] = None,
    config: ConfigFile = CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each table.")] = False,
    view: Annotated[
        list[str] | None,
        typer.Option("--view", metavar="NAME", help="A view whose target has type warehouse."),
    ] = None,
) -> None:
    """Merge small files, expire snapshots older than snapshot_days, and delete the versions of keys that were deleted
    more than tombstone_ttl_s ago. Sinks can run meanwhile: files that a batch also writes are left to the batch."""
    settings = configuration(config)
    chosen = _chosen(settings, sink, view)
    from spark_jobs.warehouse_commands import maintain_warehouse, session  # brings Spark

    with session(settings) as spark:
        for (kind, name), (section, prefix) in chosen.items():
            for done in maintain_warehouse(section, prefix, spark):
                if as_json:
                    typer.echo(json.dumps({kind: name, **dataclasses.asdict(done)}))
                    continue
                left = "; files that batches wrote meanwhile are left for the next run" if done.gave_way else ""
                typer.echo(
                    f"{name}: {done.table}: {done.rewritten_files} files became {done.added_files}, "
                    f"{done.expired_snapshots} snapshots expired{left}"
                )


@app.command()
def tags(
    sink: Annotated[
        list[str] | None,
        typer.Option("--sink", metavar="NAME", help="A sink of type warehouse; all such sinks by default."),
    ] = None,
    config: ConfigFile = CONFIG,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each tag.")] = False,
) -> None:
    """List the tags that name a position of the source, the newest first: tables with the same tag are as of the same
    position. The sink sets them if tag_interval_s is set. --json prints the ids of the tables' snapshots, too, for
    engines that do not read tags by name."""
    from sinks.warehouse.catalog import catalog_place
    from sinks.warehouse.tag_list import read_tags

    settings = configuration(config, log_level="error")
    for (kind, name), (section, prefix) in _chosen(settings, sink, None).items():
        if kind != "sink":
            continue
        found = read_tags(catalog_place(section, prefix))
        for tag in found:
            if as_json:
                typer.echo(json.dumps({"sink": name, **dataclasses.asdict(tag)}))
                continue
            without = f"; not on {', '.join(tag.missing)}" if tag.missing else ""
            typer.echo(f"{name}: {tag.name}: LSN {tag.lsn} of epoch {tag.epoch}, {len(tag.snapshots)} tables{without}")
        if not found and not as_json:
            why = "no tag is set yet" if section.tag_interval_s else "no tag: tag_interval_s is not set"
            typer.echo(f"{name}: {why}")


def _chosen(
    settings: Config, sinks: list[str] | None, views: list[str] | None
) -> dict[tuple[str, str], tuple[WarehouseConfig, str]]:
    """Returns the section and the prefix of table names of each chosen warehouse, by `sink` or `view` and name."""
    is_all = not sinks and not views
    found = {}
    for name in settings.sinks if is_all else sinks or ():
        section = sink_config(settings.sinks, name)
        if isinstance(section, WarehouseConfig):
            found["sink", name] = (section, settings.topics.prefix)
        elif not is_all:
            raise ConfigError(f"the sink {name} is not a warehouse", "name one whose type is warehouse")
    for name in settings.views if is_all else views or ():
        target = settings.views[name].target if name in settings.views else None
        if isinstance(target, WarehouseConfig):
            found["view", name] = (target, target_prefix(settings.topics.prefix, name))
        elif not is_all:
            raise ConfigError(
                f"no view {name!r} has a target of type warehouse", "name a view of section views that has one"
            )
    if not found:
        raise ConfigError(
            "the configuration has no sink of type warehouse, nor a view with such a target", "add one to section sinks"
        )
    return found
