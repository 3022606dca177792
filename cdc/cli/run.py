"""`cdc run` and `cdc check`."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from cdc.config.settings import load_config
from cdc.daemon.failpoints import armed_probe
from cdc.daemon.logs import configure_logs
from cdc.daemon.service import Service
from cdc.kafka.state_reader import read_lost_events
from cdc.model.topics import Topics
from cdc.outbox.lost import NEXT as NEXT_AFTER_LOSS
from cdc.postgres.catalog import schema_of
from sinks.shaping.check import planned_tables

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.", envvar="CDC_CONFIG")]
LogLevelOption = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(envvar="CDC_LOG_LEVEL")]
LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON objects.", envvar="CDC_LOG_JSON")]


def run(
    config: ConfigOption = Path("watershed.yml"), log_level: LogLevelOption = "info", log_json: LogJsonOption = False
) -> None:
    """Capture: publish every committed change of the source to Kafka, until SIGTERM."""
    configure_logs(level=log_level, as_json=log_json)
    Service(load_config(config), armed_probe(os.environ)).run()


def check(
    config: ConfigOption = Path("watershed.yml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at source and brokers as `run` would, and at what sinks are to hold; write nothing."""
    configure_logs(level="warning")
    settings = load_config(config)
    service = Service(settings, armed_probe({}))
    source = service.check()
    service.check_history(source)
    topics = Topics(settings.topics.prefix)
    planned = planned_tables(settings.sinks, [schema_of(table, None, topics) for table in source.tables])
    lost = read_lost_events(settings) if settings.outbox.is_used else []
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "database": source.identity.database,
                    "system_identifier": source.identity.system_identifier,
                    "timeline": source.identity.timeline,
                    "publication_exists": source.publication is not None,
                    "unpublished": [str(table) for table in source.unpublished],
                    "lost_events": [record.model_dump(mode="json") for record in lost],
                    "sinks": [asdict(one) for one in planned],
                    "tables": [
                        {"table": str(t.table), "key": list(t.key), "columns": len(t.columns)} for t in source.tables
                    ],
                }
            )
        )
        return
    table = Table("table", "key", "columns")
    for found in source.tables:
        table.add_row(str(found.table), ", ".join(found.key), str(len(found.columns)))
    console = Console()
    console.print(table)
    if planned:
        held = Table("sink", "type", "table", "columns in the store", "rows")
        for one in planned:
            held.add_row(one.sink, one.type, one.table, ", ".join(one.columns), one.where or "all")
        console.print(held)
    will = "exists" if source.publication is not None else "will be created"
    if source.publication is not None and source.unpublished:
        will = f"will take in {', '.join(map(str, source.unpublished))}"
    for record in lost:
        then = "; rows that were still there are published again" if record.settled_us else f"; {NEXT_AFTER_LOSS}"
        console.print(f"epoch {record.epoch}: {record}{then}", soft_wrap=True)
    console.print(f"source and brokers are fit for capture; publication {settings.source.publication} {will}")
