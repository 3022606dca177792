"""One table: the one that an argument of the command line names, and its description."""

from collections.abc import Mapping, Sequence
from typing import Any

from cdc.config.config_file import Config
from cdc.kafka.state_reader import read_captured, read_in_force
from cdc.model.errors import ConfigError, WatershedError
from cdc.model.events import TableSchema
from cdc.model.sink_records import SinkRecord, newest
from cdc.model.suggestions import did_you_mean
from cdc.model.table_state import TableRecord
from sinks.places import reader_names
from sinks.shaping.check import planned_tables
from watershed.cli.options import table_id
from watershed.status.listing import Listing, wide_console


def published_table(config: Config, name: str) -> TableSchema:
    """Returns the newest schema of the table. Raises BadParameter for a text that names no table, ConfigError for one
    that is not captured, WatershedError for one whose schema is not published yet, UnreachableError, BrokerError."""
    config = read_in_force(config)
    table, configured = table_id(name), config.source.table_ids
    if config.source.is_outbox(table):
        raise ConfigError(
            f"the rows of {table} are events, which are in topics of their own", "docs/how-to/events.md names them"
        )
    if table not in configured:
        raise ConfigError(
            f"table {table} is not in source.tables{did_you_mean(table, configured)}",
            f"tables are: {', '.join(map(str, configured))}",
        )
    schema = read_captured(config).schemas.get(table)
    if schema is None:
        raise WatershedError(
            f"capture has not published {table} yet", "start `cdc run`; `cdc table list` says why if it runs"
        )
    return schema


def describe_table(
    config: Config, schema: TableSchema, record: TableRecord | None, partitions: int, sinks: Sequence[SinkRecord]
) -> dict[str, Any]:
    """Returns what `cdc table show` prints as JSON. `sinks`: the records of all generations. Raises ConfigError for a
    mapping that does not fit the table, RefusedError for a name that a store can't have."""
    planned = {one.sink: one for one in planned_tables(config.sinks, [schema])}
    return {
        "table": str(schema.table),
        "status": "not captured yet" if record is None else record.status,
        "message": "" if record is None else record.message,
        "next": "" if record is None else record.next,
        "topic": schema.topic,
        "partitions": partitions,
        "key": list(schema.key),
        "schema_version": schema.version,
        "columns": [
            {"name": column.name, "type": column.type_name, "nullable": column.nullable} for column in schema.columns
        ],
        "stores": [
            {
                "sink": name,
                "type": section.type,
                "is_held": name in planned,
                "generation": None if (serving := newest(sinks, name)) is None else serving.generation,
                "building": sorted(one.generation for one in sinks if one.sink == name and one.role == "building"),
                "names": dict(reader_names(section, config.topics.prefix, schema.table)) if name in planned else {},
                "columns": list(planned[name].columns) if name in planned else [],
                "where": planned[name].where if name in planned else None,
            }
            for name, section in config.sinks.items()
        ],
    }


def print_table(described: Mapping[str, Any]) -> None:
    """Prints a description as text."""
    console = wide_console()
    status = ": ".join(filter(None, [described["status"], described["message"]]))
    facts = Listing(described["table"], texts=[""])
    facts.add_row("state", status)
    if described["next"]:
        facts.add_row("next", described["next"])
    facts.add_row("topic", f"{described['topic']}, {described['partitions']} partitions")
    facts.add_row("key", ", ".join(described["key"]) or "none: its topic is a log, and no store holds it")
    facts.add_row("schema", f"version {described['schema_version']}")
    columns = Listing("column", "type", "")
    for column in described["columns"]:
        columns.add_row(column["name"], column["type"], "" if column["nullable"] else "not null")
    stores = Listing("store", "type", "generation", texts=["names", "columns", "rows"])
    for store in described["stores"]:
        stores.add_row(store["sink"], store["type"], *_store_cells(store, described))
    for shown in (facts, "", columns, "", stores if described["stores"] else "no sink is configured"):
        console.print(shown)


def _store_cells(store: Mapping[str, Any], described: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Returns generation, names, columns and condition."""
    if not store["is_held"]:
        return "", "does not hold the table", "", ""
    generation = "none yet" if store["generation"] is None else str(store["generation"])
    generation += "".join(f", {number} is built" for number in store["building"])
    is_whole = store["columns"] == [column["name"] for column in described["columns"]]
    return (
        generation,
        ", ".join(f"{kind} {name}" for kind, name in store["names"].items()),
        "" if is_whole else ", ".join(store["columns"]),
        f"where {store['where']}" if store["where"] else "",
    )
