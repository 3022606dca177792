"""One table: the one that an argument of the command line names, and its description."""

from collections.abc import Mapping
from typing import Any

from cdc.config.config_file import Config
from cdc.model.events import TableSchema
from watershed.cli.options import table_id
from watershed.status.listing import Listing, wide_console
from watershed.verify import one_table


def published_table(config: Config, name: str) -> TableSchema:
    """Does what one_table.published_table does. Raises BadParameter for a text that names no table."""
    return one_table.published_table(config, table_id(name))


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
        rules = "" if column["nullable"] else "not null", f"masked: {mask}" if (mask := column["mask"]) else ""
        columns.add_row(column["name"], column["type"], ", ".join(filter(None, rules)))
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
