"""The findings of `cdc check` about the tables of an SQL store, before anything is written."""

from collections.abc import Sequence
from contextlib import closing

from cdc.config.sink_settings import SqlConfig
from cdc.model.errors import ConfigError, RefusedError
from cdc.model.events import TableSchema
from sinks.lineage import Lineage
from sinks.shaping.table import TableShape
from sinks.sql.sink import SqlSink


def places(name: str, section: SqlConfig, prefix: str, schemas: Sequence[TableSchema]) -> list[str]:
    """Returns the names of the tables that the sink writes for these source tables. Raises SinkError for a database
    that can't be used, ConfigError that lists everything that prevents the sink from creating its tables.
    """
    problems: list[str] = []
    with closing(SqlSink.open(section, prefix, name=name)) as sink:
        stored = [
            TableShape(name, section, Lineage((schema,))).schema
            for schema in schemas
            if schema.key and section.holds(schema.table)
        ]
        owners: dict[str, TableSchema] = {}
        for schema in stored:
            try:
                place = sink.check(schema)
            except RefusedError as error:
                problems.append(error.message)
                continue
            other = owners.setdefault(place, schema)
            if other is not schema:
                problems.append(f"{other.table} and {schema.table} would both be the table {place}")
    if problems:
        raise ConfigError("; ".join(problems), f"correct shapes of the sink {name} in the configuration")
    return list(owners)
