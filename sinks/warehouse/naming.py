"""Names in the warehouse: the location of a source table, and reserved column names."""

from collections.abc import Mapping
from dataclasses import dataclass

from cdc.config.store_shapes import WarehouseMode
from cdc.model.events import TableId, TableSchema
from sinks.errors import RefusedError

VERSION = "ws_version"
NEXT_VERSION = "ws_next_version"  # the version of the next row in a history, None for the newest
SEEN_VERSION = "ws_seen_version"  # the last version at which a history's row was read or written as it is
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

# Iceberg's metadata columns. A statement can't distinguish a column of such a name from them.
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
# Prefixes that Spark's MERGE uses for its own columns. It confuses a column of such a name, and its values, with them.
_MERGE_PREFIXES = ("__row_", "__original_row_id_")


@dataclass(frozen=True, slots=True)
class TableLocation:
    """The location of a source table's rows. Names are tuples of their parts, without the catalog."""

    rows: tuple[str, ...]  # the table for readers
    deleted: tuple[str, ...]  # the table of deleted keys


def table_location(namespace: str, table: TableId, *, is_flat: bool = False) -> TableLocation:
    """Characters outside A-Z, a-z, 0-9 and _ become _: the names are folders and files too. `is_flat`: the catalog has
    databases that contain tables and nothing else, with names in lower case."""
    schema, name = _safe(table.schema), _safe(table.name)
    if is_flat:
        database = flat_name(f"{namespace}_{schema}")
        return TableLocation(rows=(database, name.lower()), deleted=(f"{database}__deleted", name.lower()))
    return TableLocation(rows=(namespace, schema, name), deleted=(namespace, f"{schema}__deleted", name))


def flat_name(name: str) -> str:
    """The name of a database in a catalog that has no namespaces within namespaces."""
    return _safe(name).lower()


def quoted(*parts: str) -> str:
    """Returns a name as a quoted identifier."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def check_columns(schema: TableSchema, mode: WarehouseMode = "current") -> None:
    """Raises RefusedError for a table with a column name that the warehouse can't use."""
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
                f"warehouse: table {schema.table}: its column {folded} has the name of a column that mode {mode} adds",
                "give the table's column another name with rename in the sink's mapping",
            )
        if folded in seen:
            raise RefusedError(
                f"warehouse: table {schema.table}: columns {seen[folded]!r} and {column.name!r} differ only in case, "
                "which Spark does not distinguish",
                "rename one of them, or add the table to the sink's exclude_tables",
            )
        seen[folded] = column.name


def _folded(name: str) -> str:
    """Returns the same text for names that Spark considers equal. Spark compares like Java's equalsIgnoreCase: each
    character in upper case and the result in lower case, so that a dotless `ı` equals `i` and a final `ς` equals `σ`.
    """
    upper = "".join(_single(c, c.upper()) for c in name)
    return "".join(c.lower()[0] for c in upper)


def _single(c: str, changed: str) -> str:
    """Returns `changed` if it is one character, otherwise `c`: Java keeps characters that would become several ones."""
    return changed if len(changed) == 1 else c


def _safe(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
