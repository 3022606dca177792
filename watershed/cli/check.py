"""`cdc check`: findings about source, brokers, stores, Java and jars, each with its remedy."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from typing import Annotated, Final

import typer
from rich.console import Console

from cdc.config.config_file import Config
from cdc.kafka.state_reader import read_lost_events
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.findings import Finding
from cdc.model.lost_events import NEXT as NEXT_AFTER_LOSS
from cdc.model.lost_events import LostEventsRecord
from cdc.model.topics import Topics
from cdc.ports.source_table import SourceTable
from cdc.postgres.catalog import schema_of
from sinks.registry import store_findings
from sinks.shaping.check import PlannedTable, planned_tables
from sinks.shaping.limits import limit_findings
from watershed.cli.exit_codes import FAILED, UNREACHABLE
from watershed.cli.findings.alter import alter_findings
from watershed.cli.findings.builds import build_findings
from watershed.cli.findings.capture import capture_findings
from watershed.cli.options import CONFIG, AsJson, ConfigFile, configuration

STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


def check(
    config: ConfigFile = CONFIG,
    as_json: AsJson = False,
    is_quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and failures.")] = False,
) -> None:
    """Check the source, brokers, stores, Java and jars. Writes nothing. Lists every finding as ok, warn or fail, with
    the statement or command that corrects it; failures last. Exits with 1 if a finding prevents capture or a sink from
    running, 3 if all such findings are servers that do not answer."""
    settings = configuration(config, log_level="error")
    tables: list[SourceTable] = []
    planned: list[PlannedTable] = []
    findings: list[Finding] = []
    for finding in all_findings(settings, tables, planned):
        findings.append(finding)
        if finding.level == "ok" and not as_json and not is_quiet:
            show(finding)
    lost = _lost_events(settings)
    failures = [finding for finding in findings if finding.level == "fail"]
    if as_json:
        report = {
            "is_fit": not failures,
            "findings": [asdict(finding) for finding in findings],
            "sinks": [asdict(one) for one in planned],
            "lost_events": [record.model_dump(mode="json") for record in lost],
            "tables": [{"table": str(t.table), "key": list(t.key), "columns": len(t.columns)} for t in tables],
        }
        typer.echo(json.dumps(report))
    else:
        for record in lost:
            then = "; rows that were still there are published again" if record.settled_us else f"; {NEXT_AFTER_LOSS}"
            typer.echo(f"epoch {record.epoch}: {record}{then}")
        for finding in [*(finding for finding in findings if finding.level == "warn"), *failures]:
            show(finding)
        counts = {level: sum(1 for finding in findings if finding.level == level) for level in STYLES}
        if not is_quiet:
            typer.echo(f"{counts['ok']} ok, {counts['warn']} warn, {counts['fail']} fail")
    if failures:
        raise typer.Exit(UNREACHABLE if all(finding.is_passing for finding in failures) else FAILED)


def all_findings(config: Config, tables: list[SourceTable], planned: list[PlannedTable]) -> Iterator[Finding]:
    """Yields each finding as soon as it is known. Adds tables that can be captured to `tables`, and the content of
    sinks to `planned`."""
    yield from capture_findings(config, tables)
    yield from _mapping_findings(config, tables, planned)
    yield from build_findings(config)
    yield from alter_findings(config)
    schemas = [schema_of(table, None, Topics(config.topics.prefix)) for table in tables]
    for name, section in config.sinks.items():
        yield from store_findings(name, section, config.topics.prefix, schemas)
    if config.sinks:
        yield from spark_findings(config)


def show(finding: Finding) -> None:
    """Failures go to standard error, like every error."""
    console = Console(stderr=finding.level == "fail", soft_wrap=True, highlight=False)
    console.print(f"{finding.level:4}", style=STYLES[finding.level], end=" ")
    console.print(f"{finding.about}: {finding.message}", markup=False)
    if finding.next:
        console.print(f"  next: {finding.next}", markup=False)


def _lost_events(config: Config) -> list[LostEventsRecord]:
    if not config.outbox.is_used:
        return []
    try:
        return read_lost_events(config)
    except WatershedError:
        return []  # unreachable brokers are a finding already


# ---- sinks


def _mapping_findings(config: Config, tables: list[SourceTable], planned: list[PlannedTable]) -> Iterator[Finding]:
    """Yields what each sink will hold, and adds it to `planned`."""
    topics = Topics(config.topics.prefix)
    try:
        planned += planned_tables(config.sinks, [schema_of(table, None, topics) for table in tables])
    except WatershedError as error:
        yield Finding.failed("mappings", error)
        return
    for one in planned:
        rows = f", rows where {one.where}" if one.where else ""
        rows += f", {one.layout}" if one.layout else ""
        yield Finding(f"sink {one.sink}", "ok", f"holds {one.table}: {', '.join(one.columns)}{rows}")
    for name, section in config.sinks.items():
        held = ((TableId.parse(one.table), frozenset(one.key), one.unheld) for one in planned if one.sink == name)
        yield from limit_findings(name, section, held)


def spark_findings(config: Config) -> Iterator[Finding]:
    """Yields the findings about Spark, Java and jars, which all sinks need, and views whose target is a warehouse."""
    if find_spec("pyspark") is None:
        yield Finding("Spark", "fail", "PySpark is not installed", "pip install 'watershed-cdc[spark]'")
        return
    yield Finding("Spark", "ok", "PySpark is installed")
    from spark_jobs.jar_sets import jar_sets
    from spark_jobs.jars.java import spark_java
    from spark_jobs.jars.resolver import missing_jars

    try:
        yield Finding("Java", "ok", str(spark_java()))
    except WatershedError as error:
        yield Finding.failed("Java", error)
    try:
        missing = missing_jars(jar_sets(config))
    except WatershedError as error:
        yield Finding.failed("jars", error)
        return
    if missing:
        what = f"{len(missing)} are not in the cache or are damaged; `cdc sink run` downloads them when it starts"
        yield Finding("jars", "warn", what, "python -m spark_jobs.jars")
    else:
        yield Finding("jars", "ok", "all are in the cache, with the locked checksums")
