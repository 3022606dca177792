"""The configured tables as the catalog describes them when a session begins, and which of them can be captured."""

import psycopg

from cdc.config.settings import SourceConfig
from cdc.model.errors import SourceError
from cdc.model.events import TableId
from cdc.model.table_state import TableFacts
from cdc.ports.source_table import TableDescription
from cdc.postgres.catalog import Publication
from cdc.postgres.catalog_facts import read_facts
from cdc.postgres.source import checked_table, published_table


def describe_tables(
    connection: psycopg.Connection, source: SourceConfig, publication: Publication
) -> dict[TableId, TableDescription]:
    """Returns the description of each configured table. Raises ConnectionLost."""
    facts = read_facts(connection, source.table_ids)
    return {
        table: describe_table(connection, source, table, publication, facts.get(table)) for table in source.table_ids
    }


def describe_table(
    connection: psycopg.Connection,
    source: SourceConfig,
    table: TableId,
    publication: Publication,
    facts: TableFacts | None,
) -> TableDescription:
    """Returns the description of one table. Raises ConnectionLost."""
    entry, chosen = publication.entries.get(table, ""), source.chosen(table)
    found, error, barrier = None, None, None
    try:
        found = published_table(connection, table, publication, chosen)
    except SourceError as refusal:
        error = refusal
    try:
        addable = checked_table(connection, table, publication, chosen)
        found = found or addable
    except SourceError as refusal:
        barrier = refusal
    state = f"{facts.model_dump_json() if facts else None} {entry} {barrier.message if barrier else None}"
    return TableDescription(found, facts, entry, state, error, barrier)
