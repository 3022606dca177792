"""Names in the warehouse: where a source table lives, and which column names are taken."""

from dataclasses import dataclass

from cdc.model.errors import RefusedError
from cdc.model.events import TableId, TableSchema

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
# What Spark's MERGE gives to columns of its own: one of such a name is mixed up with them, values included.
_MERGE_PREFIXES = ("__row_", "__original_row_id_")


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
        folded = _folded(column.name)
        if folded.startswith((RESERVED_PREFIX, *_MERGE_PREFIXES)) or folded in _METADATA_COLUMNS:
            raise RefusedError(
                f"warehouse: table {schema.table}: the column name {column.name!r} is reserved (names that start with "
                f"{RESERVED_PREFIX!r}, Iceberg's metadata columns, and those of Spark's MERGE)",
                "rename the column, or add the table to the sink's exclude_tables",
            )
        if folded in seen:
            raise RefusedError(
                f"warehouse: table {schema.table}: columns {seen[folded]!r} and {column.name!r} differ only in case, "
                "which Spark doesn't tell apart",
                "rename one of them, or add the table to the sink's exclude_tables",
            )
        seen[folded] = column.name


def _folded(name: str) -> str:
    """The same for names that Spark takes for one. It compares as Java's equalsIgnoreCase does: each character in
    upper case and that in lower case, so that a dotless `ı` is an `i` and a final `ς` a `σ`."""
    upper = "".join(_single(c, c.upper()) for c in name)
    return "".join(c.lower()[0] for c in upper)


def _single(c: str, changed: str) -> str:
    """Java leaves alone what would become several characters."""
    return changed if len(changed) == 1 else c


def _safe(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
