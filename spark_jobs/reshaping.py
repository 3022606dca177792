"""Which tables' rows a store holds in another shape than the mapping of today gives them. Pure."""

from collections.abc import Collection, Iterable, Mapping

from cdc.config.store_mapping import Held
from cdc.model.events import TableId
from cdc.records.control import SinkRecord
from sinks.lineage import Lineage


def reshaped_tables(section: Held, lineages: Iterable[Lineage], last: SinkRecord | None) -> list[TableId]:
    """`last`: the newest record of the sink. A table of which the sink has read nothing has no shape yet."""
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


def noted_mappings(section: Held, tables: Collection[TableId], earlier: Mapping[str, str]) -> dict[str, str]:
    """The fingerprints for the sink's record. A table that the sink does not hold now keeps its `earlier` one: rows of
    that shape may still be in the store when it comes back."""
    names = set(map(str, tables))
    kept = {table: mark for table, mark in earlier.items() if table not in names}
    return kept | section.fingerprints(tables)
