"""What each sink is to hold, checked against the tables as they are, before anything is written. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cdc.config.sink_settings import StoreConfig
from cdc.config.store_mapping import Held, is_pattern, matches
from cdc.model.errors import ConfigError, RefusedError
from cdc.model.events import TableSchema
from sinks.lineage import Lineage
from sinks.shaping.table import TableShape


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """One table of one sink."""

    sink: str
    type: str
    table: str
    columns: tuple[str, ...]  # in the store
    where: str | None


def planned_tables(sinks: Mapping[str, StoreConfig], schemas: Iterable[TableSchema]) -> list[PlannedTable]:
    """Raises ConfigError that tells every mapping which does not fit its table."""
    schemas = [schema for schema in schemas if schema.key]  # no store holds rows without a key
    planned: list[PlannedTable] = []
    problems: list[str] = []
    for name, section in sinks.items():
        held = [schema for schema in schemas if section.holds(schema.table)]
        for schema in held:
            try:
                stored = TableShape(name, section, Lineage((schema,))).schema
            except RefusedError as error:
                problems.append(error.message)
                continue
            columns = tuple(column.name for column in stored.columns)
            where = section.mapped(schema.table)[1].where
            planned.append(PlannedTable(name, section.type, str(schema.table), columns, where))
        problems += _unmatched(name, section, held)
    if problems:
        raise ConfigError("; ".join(problems), "correct section sinks of the configuration")
    return planned


def _unmatched(sink: str, section: Held, schemas: Sequence[TableSchema]) -> list[str]:
    """Columns that an entry for several tables names, and that none of them has."""
    problems = []
    for pattern, entry in section.mapping.items():
        if not is_pattern(pattern):
            continue
        known = {
            column.name
            for schema in schemas
            if matches(pattern, schema.table) and section.mapped(schema.table)[0] == pattern
            for column in schema.columns
        }
        named = {*(entry.include or ()), *entry.exclude, *entry.rename, *entry.mask.columns}
        problems += [
            f"sink {sink}: mapping of {pattern} names column {name}, which none of its tables has"
            for name in sorted(named - known)
        ]
    return problems
