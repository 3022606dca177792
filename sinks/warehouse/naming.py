"""Names in the warehouse: where a source table lives, and which column names are taken."""

from dataclasses import dataclass

from cdc.errors import RefusedError
from cdc.events import TableId, TableSchema

VERSION = "ws_version"
DELETED = "ws_deleted"
RESERVED_PREFIX = "ws_"

# Iceberg's metadata columns: a column of such a name can't be told from them in a statement.
_METADATA_COLUMNS = frozenset(
    {
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
    }
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a source table's rows are. Each is a name in parts, the catalog's left out."""

    rows: tuple[str, ...]  # the Iceberg table, deleted rows included
    live: tuple[str, ...]  # the view without them


def place(namespace: str, table: TableId) -> Place:
    """Characters outside A-Z, a-z, 0-9 and _ become _: the names are folders and files too."""
    schema, name = _safe(table.schema), _safe(table.name)
    return Place(rows=(namespace, schema, f"{name}_with_deleted"), live=(namespace, schema, name))


def quoted(*parts: str) -> str:
    """A name in a statement."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def check_columns(schema: TableSchema) -> None:
    """Raises RefusedError for a table with a column name that the warehouse can't have."""
    seen: dict[str, str] = {}
    for column in schema.columns:
        folded = column.name.lower()
        if folded.startswith(RESERVED_PREFIX) or folded in _METADATA_COLUMNS:
            raise RefusedError(
                f"warehouse: table {schema.table}: the column name {column.name!r} is reserved (names that start with "
                f"{RESERVED_PREFIX!r}, and Iceberg's metadata columns)",
                "rename the column, or leave the table out of source.tables",
            )
        if folded in seen:
            raise RefusedError(
                f"warehouse: table {schema.table}: columns {seen[folded]!r} and {column.name!r} differ only in case, "
                "which Spark doesn't tell apart",
                "rename one of them, or leave the table out of source.tables",
            )
        seen[folded] = column.name


def _safe(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
