"""The planned content of each sink, checked against the present tables before anything is written. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdc.config.store_mapping import StoredTables
from cdc.config.stores import StoreConfig, WarehouseConfig
from cdc.config.table_choice import is_pattern, matches
from cdc.model.errors import ConfigError
from cdc.model.events import TableSchema
from sinks.errors import RefusedError
from sinks.schema_history import SchemaHistory
from sinks.shaping.limits import unheld_columns
from sinks.shaping.table import TableShape


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """One table of one sink."""

    sink: str
    type: str
    table: str
    columns: tuple[str, ...]  # in the store
    where: str | None
    layout: str = ""  # of a warehouse's table
    # Columns, in the source's names, whose type has values that the store can't hold, and which values.
    unheld: Mapping[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = field(default=(), compare=False)  # in the source's names


def planned_tables(sinks: Mapping[str, StoreConfig], schemas: Iterable[TableSchema]) -> list[PlannedTable]:
    """Returns the tables that each sink will hold. Raises ConfigError that lists every mapping which does not fit its
    table.
    """
    schemas = [schema for schema in schemas if schema.key]  # no store holds rows without a key
    planned: list[PlannedTable] = []
    problems: list[str] = []
    for name, section in sinks.items():
        held = [schema for schema in schemas if section.holds(schema.table)]
        for schema in held:
            try:
                shape = TableShape(name, section, SchemaHistory((schema,)))
            except RefusedError as error:
                problems.append(error.message)
                continue
            layout = ""
            if isinstance(section, WarehouseConfig):
                try:
                    layout = _layout(section, shape.schema)
                except RefusedError as error:
                    problems.append(f"sink {name}: {error.message}")
                    continue
            columns = tuple(column.name for column in shape.schema.columns)
            where, unheld = section.mapped(schema.table)[1].where, unheld_columns(section, shape)
            table = str(schema.table)
            planned.append(PlannedTable(name, section.type, table, columns, where, layout, unheld, schema.key))
        problems += _unmatched(name, section, held)
    if problems:
        raise ConfigError("; ".join(problems), "correct section sinks of the configuration")
    return planned


def _layout(section: WarehouseConfig, stored: TableSchema) -> str:
    """Returns a description of a table's layout in the warehouse. Raises RefusedError."""
    try:
        from sinks.warehouse.layout import layout_of  # imports Arrow
    except ModuleNotFoundError:
        return ""  # the missing package is reported as a separate finding
    layout, shape = layout_of(section.shape(stored.table), stored), section.shape(stored.table)
    parts = [f"as {shape.mode}"] if shape.mode != "current" else []
    parts += [f"partitioned by {', '.join(shape.partition_by)}"] if layout.partitions else []
    parts += [f"sorted by {', '.join(shape.sort_by)}"] if layout.sorts else []
    return ", ".join(parts)


def _unmatched(sink: str, section: StoredTables, schemas: Sequence[TableSchema]) -> list[str]:
    """Returns problems with columns that an entry for several tables names, and that none of these tables has."""
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
        named = {
            *(entry.include or ()),
            *entry.exclude,
            *entry.rename,
            *entry.mask.columns,
            *entry.as_text,
            *entry.as_null,
        }
        problems += [
            f"sink {sink}: mapping of {pattern} names column {name}, which none of its tables has"
            for name in sorted(named - known)
        ]
    return problems
