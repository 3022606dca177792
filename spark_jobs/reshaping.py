"""Finds tables whose rows a store holds in another form than the present mapping gives them. Pure."""

from collections.abc import Collection, Iterable, Mapping

from cdc.config.store_mapping import Held
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord
from sinks.lineage import Lineage


def reshaped_tables(section: Held, lineages: Iterable[Lineage], last: SinkRecord | None) -> list[TableId]:
    """Returns these tables. `last`: the newest record of the sink. A table of which the sink has read nothing has no
    form yet."""
    if last is None:
        return []
    known = [
        lineage.newest
        for lineage in lineages
        if lineage.newest.topic in last.end_offsets or str(lineage.newest.table) in last.mappings
    ]
    wanted = section.fingerprints(schema.table for schema in known)
    return sorted(
        schema.table for schema in known if wanted.get(str(schema.table)) != last.mappings.get(str(schema.table))
    )


def recorded_mappings(section: Held, tables: Collection[TableId], earlier: Mapping[str, str]) -> dict[str, str]:
    """Returns the fingerprints for the sink's record. A table that the sink does not hold now keeps its `earlier` one:
    rows of that form may still be in the store when the table is included again."""
    names = set(map(str, tables))
    kept = {table: mark for table, mark in earlier.items() if table not in names}
    return kept | section.fingerprints(tables)
