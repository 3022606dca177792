"""Findings of `cdc check` about the tables that sinks build again because their configuration has changed."""

from collections.abc import Iterator, Mapping
from typing import Final

from cdc.config.config_file import Config
from cdc.kafka.compacted import read_latest
from cdc.kafka.state_reader import read_captured, records_of
from cdc.model.errors import WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.findings import Finding
from cdc.model.job_records import MappingsRecord
from cdc.model.sink_records import SinkRecord, newest
from cdc.model.topics import Topics
from cdc.postgres.chunk_table import Size, size
from cdc.postgres.connection import connect
from sinks.schema_history import SchemaHistory
from spark_jobs.build_plan import BuildPlan, build_plan

NEXT: Final = (
    "nothing to do: the sink does it when it is started, or after cdc reload; to do without it, restore the former "
    "configuration of the sink"
)

NEXT_START: Final = (
    "start the process of the sink again (cdc sink run): cdc reload does not import functions again; to do without it, "
    "install the former version of the function"
)


def build_findings(config: Config) -> Iterator[Finding]:
    """Yields a finding for each sink that will build tables again, with the space that it needs."""
    if not config.sinks:
        return
    try:
        schemas = read_captured(config).schemas
        plans = build_plans(config, schemas)
        tables = {table for plan in plans for table in plan.tables}
        sizes = _sizes(config, [schemas[table] for table in sorted(tables)])
    except WatershedError:
        return  # servers that do not answer are findings already
    for plan in plans:
        yield Finding(
            f"sink {plan.sink}", "warn", f"{plan}{_space(plan, sizes)}", NEXT_START if plan.functions else NEXT
        )


def build_plans(config: Config, schemas: Mapping[TableId, TableSchema]) -> list[BuildPlan]:
    """Returns what each sink that has run before will do with the configuration. Raises BrokerError,
    UnreachableError."""
    topic = Topics(config.topics.prefix).progress
    values = read_latest(config.kafka, topic)
    records = records_of(SinkRecord, topic, values)
    known = {record.sink: record.mappings for record in records_of(MappingsRecord, topic, values)}
    histories = [SchemaHistory.of([schema]) for schema in schemas.values()]
    plans = [
        build_plan(name, section, histories, newest(records, name), known.get(name, {}))
        for name, section in config.sinks.items()
    ]
    return [plan for plan in plans if plan is not None]


def _sizes(config: Config, schemas: list[TableSchema]) -> dict[TableId, Size]:
    if not schemas:
        return {}
    with connect(config.source, application="watershed check") as connection:
        return {schema.table: size(connection, schema) for schema in schemas}


def _space(plan: BuildPlan, sizes: Mapping[TableId, Size]) -> str:
    """Returns how much is built, as the end of a sentence."""
    known = [sizes[table] for table in plan.tables if table in sizes]
    rows, size_bytes = sum(one.rows for one in known), sum(one.rows * one.row_bytes for one in known)
    if not rows:
        return "; how much it is, PostgreSQL knows after ANALYZE"
    space = ", and the store needs as much again for it meanwhile" if plan.needs_space else ""
    return f"; it is about {rows:,} rows with {size_bytes:,} bytes in PostgreSQL{space}"
