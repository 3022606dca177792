"""Names in the warehouse: where a source table lives, and which column names are taken."""

from collections.abc import Mapping
from dataclasses import dataclass

from cdc.config.store_shapes import WarehouseMode
from cdc.model.errors import RefusedError
from cdc.model.events import TableId, TableSchema

VERSION = "ws_version"
NEXT_VERSION = "ws_next_version"  # of the row that follows in a history, None for the newest
SEEN_VERSION = "ws_seen_version"  # the last at which a history's row was read or written as it is
UNCHANGED = "ws_unchanged"  # names of the columns that a row lacks
RESERVED_PREFIX = "ws_"

# The columns that each mode adds to those of the source, with Spark's names of their types.
OWN_COLUMNS: Mapping[WarehouseMode, Mapping[str, str]] = {
    "current": {VERSION: "bigint"},
    "history": {
        "operation": "string",
        "valid_from": "timestamp",
        "valid_to": "timestamp",
        "is_current": "boolean",
        VERSION: "bigint",
        NEXT_VERSION: "bigint",
        SEEN_VERSION: "bigint",
    },
    "changelog": {"operation": "string", "committed_at": "timestamp", VERSION: "bigint", UNCHANGED: "array<string>"},
}

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

    rows: tuple[str, ...]  # the table that readers read
    deleted: tuple[str, ...]  # the versions of deleted keys


def place(namespace: str, table: TableId, *, is_flat: bool = False) -> Place:
    """Characters outside A-Z, a-z, 0-9 and _ become _: the names are folders and files too. `is_flat`: the catalog has
    databases that contain tables and nothing else, with names in lower case."""
    schema, name = _safe(table.schema), _safe(table.name)
    if is_flat:
        database = flat_name(f"{namespace}_{schema}")
        return Place(rows=(database, name.lower()), deleted=(f"{database}__deleted", name.lower()))
    return Place(rows=(namespace, schema, name), deleted=(namespace, f"{schema}__deleted", name))


def flat_name(name: str) -> str:
    """The name of a database in a catalog that has no namespaces within namespaces."""
    return _safe(name).lower()


def quoted(*parts: str) -> str:
    """A name in a statement."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def check_columns(schema: TableSchema, mode: WarehouseMode = "current") -> None:
    """Raises RefusedError for a table with a column name that the warehouse can't have."""
    seen: dict[str, str] = {}
    own = OWN_COLUMNS[mode]
    for column in schema.columns:
        folded = _folded(column.name)
        if folded.startswith((RESERVED_PREFIX, *_MERGE_PREFIXES)) or folded in _METADATA_COLUMNS:
            raise RefusedError(
                f"warehouse: table {schema.table}: the column name {column.name!r} is reserved (names that start with "
                f"{RESERVED_PREFIX!r}, Iceberg's metadata columns, and those of Spark's MERGE)",
                "rename the column, or add the table to the sink's exclude_tables",
            )
        if folded in own:
            raise RefusedError(
                f"warehouse: table {schema.table}: mode {mode} has a column {folded} of its own, and the table too",
                "give the table's column another name with rename in the sink's mapping",
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
