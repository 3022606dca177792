"""Reads the three derived stores of a configuration as their readers do."""

from pathlib import Path
from typing import Any

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from cdc.model.events import TableId, TableSchema
from sinks.contract import StoredRow
from sinks.registry import make_sink
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.reader import WarehouseReader

ALL = ("search", "cache", "warehouse")


def sinks_section(folder: Path, opensearch: str, redis: str) -> dict[str, Any]:
    """Of a configuration file."""
    return {
        "search": {"url": opensearch},
        "cache": {"url": redis},
        "warehouse": {
            "catalog_uri": f"jdbc:sqlite:{folder}/warehouse/catalog.db",
            "location": f"{folder}/warehouse/tables",
        },
    }


def stored_rows(config: Config, store: str, schema: TableSchema) -> list[StoredRow]:
    """The table's live rows, in order of key."""
    section = config.sinks[store]
    if isinstance(section, WarehouseConfig):
        rows = list(WarehouseReader(catalog_place(section, config.topics.prefix)).rows(schema.table))
    else:
        sink = make_sink(store, section, config.topics.prefix)
        try:
            sink.prepare(schema)
            rows = list(sink.rows(schema.table))
        finally:
            sink.close()
    return sorted(rows, key=lambda row: list(row.key.values()))


def table_id(name: str) -> TableId:
    return TableId("public", name)
