"""Columns whose type has values that a sink's store can't hold, found before the first such value comes. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import yaml

from cdc.config.partitioning import parse_sort, parse_transform
from cdc.config.stores import StoreConfig, WarehouseConfig
from cdc.model.events import TableId
from cdc.model.findings import Finding
from sinks.shaping.table import TableShape

_OUTCOMES: Final = {
    "dead_letter": "a row with such a value becomes a dead letter",
    "stop": "such a value stops the sink",
}


def unheld_columns(section: StoreConfig, shape: TableShape) -> dict[str, str]:
    """Returns column → the values that the store can't hold, of the columns that have such. Columns have the source's
    names. The other stores keep every value: search, caches and SQL databases as their own type or as text."""
    if not isinstance(section, WarehouseConfig):
        return {}
    try:
        from sinks.warehouse.columns import unheld_values  # brings Arrow
    except ModuleNotFoundError:
        return {}  # what is not installed is a finding of its own
    sources = {stored: name for name, stored in shape.names.items()}
    values = ((sources.get(column.name), unheld_values(column)) for column in shape.schema.columns)
    return {name: text for name, text in values if name is not None and text}


def limit_findings(
    name: str, section: StoreConfig, tables: Iterable[tuple[TableId, frozenset[str], Mapping[str, str]]]
) -> Iterator[Finding]:
    """Yields one finding that names all such columns of a sink, with the lines of configuration that make the store
    hold their values. `tables`: each with its key and its columns as `unheld_columns` returns them."""
    parts: list[str] = []
    as_text: dict[str, set[str]] = {}
    for table, key, columns in tables:
        if not columns:
            continue
        parts.append(f"{table}: {', '.join(f'{column} ({values})' for column, values in columns.items())}")
        free = columns.keys() - key - _laid_out(section, table)
        if free:
            pattern, mapping = section.mapped(table)
            as_text.setdefault(pattern, set(mapping.as_text)).update(free)
    if not parts:
        return
    sections = {pattern: {"as_text": sorted(names)} for pattern, names in as_text.items()}
    lines = yaml.safe_dump({"sinks": {name: {"mapping": sections}}}, default_flow_style=True, width=10**6).strip()
    yield Finding(
        f"sink {name}",
        # Such values are rare, and as a dead letter none is lost: a warning for each timestamp would hide others.
        "warn" if section.on_rejected == "stop" else "ok",
        f"the store can't hold every value of these columns' types; {_OUTCOMES[section.on_rejected]}: "
        + "; ".join(parts),
        f"nothing to do if no such values occur; otherwise store the affected columns as text, of these: {lines}"
        if sections
        else "nothing to do if no such values occur; keys and columns of partitions and sort orders can't be text",
    )


def _laid_out(section: StoreConfig, table: TableId) -> set[str]:
    """Returns the columns by which the warehouse's table is partitioned or sorted, which keep their types."""
    if not isinstance(section, WarehouseConfig):
        return set()
    shape = section.shape(table)
    renamed = {stored: name for name, stored in section.mapped(table)[1].rename.items()}
    named = [parse_transform(text).column for text in shape.partition_by]
    named += [parse_sort(text).column for text in shape.sort_by]
    return {renamed.get(column, column) for column in named}
