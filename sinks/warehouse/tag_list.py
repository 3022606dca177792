"""The tags that a warehouse has, as any reader of Iceberg finds them. Does not use Spark."""

from dataclasses import dataclass

from cdc.model.lsn import Lsn, format_lsn
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.properties import listed_tables
from sinks.warehouse.tags import TagPosition, tag_name, tag_position


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag of one position of the source."""

    name: str
    epoch: int
    lsn: str
    snapshots: dict[str, int]  # full name of the table in the catalog → id of the tagged snapshot
    missing: tuple[str, ...]  # tables of the sink without it: newer, owed rows, not tagged yet, or deleted by somebody


def read_tags(place: CatalogPlace) -> list[Tag]:
    """Returns the tags of the sink's tables, the newest first. Raises SinkError."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.table.refs import SnapshotRefType

    found: dict[TagPosition, dict[str, int]] = {}
    tables: list[str] = []
    if not place.is_there():
        return []
    try:
        with place.opened() as catalog:
            for table in listed_tables(catalog.load_namespace_properties((place.namespace,))):
                rows = place.place(table).rows
                tables.append(".".join(rows))
                try:
                    refs = catalog.load_table(rows).refs()
                except (NoSuchTableError, FileNotFoundError):  # deleted by somebody, or its files
                    continue
                for name, ref in refs.items():
                    position = tag_position(name) if ref.snapshot_ref_type == SnapshotRefType.TAG else None
                    if position is not None:
                        found.setdefault(position, {})[tables[-1]] = ref.snapshot_id
    except (NoSuchNamespaceError, FileNotFoundError):
        return []
    return [
        Tag(
            name=tag_name(position),
            epoch=position.epoch,
            lsn=format_lsn(Lsn(position.lsn)),
            snapshots=found[position],
            missing=tuple(sorted(set(tables) - found[position].keys())),
        )
        for position in sorted(found, reverse=True)
    ]
