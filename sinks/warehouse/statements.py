"""The SQL that the warehouse runs. Pure text: names are quoted here, values are literals."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sinks.warehouse.naming import UNCHANGED, VERSION, quoted

CATALOG = "watershed"  # also the catalog's name in the catalog's tables, so readers must use the same
SOURCE = "ws_source"  # the batch's rows
# Columns that the batch's rows have beside the table's.
DELETED = "ws_deleted"
OPERATION = "ws_operation"
AT = "ws_at"
DELETED_AT = "ws_deleted_at"  # of the table of deleted keys
DELETED_COLUMNS: Final[Mapping[str, str]] = {VERSION: "bigint", DELETED_AT: "timestamp"}

# Compaction skips files of this size, which bounds the work of one compaction.
SETTLED_FILE_BYTES: Final = 32 * 1024 * 1024

TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    # Deletion vectors: a commit writes the changed rows, not the files that contain them.
    "format-version": "3",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # Of two writers of the same new keys, one is refused.
    "write.merge.isolation-level": "serializable",
    "write.update.isolation-level": "serializable",
    "write.delete.isolation-level": "serializable",
    # A commit every few seconds leaves one metadata file each.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A writer holds a row group in memory, and checks its size after this many rows.
    "write.parquet.row-group-size-bytes": str(16 * 1024 * 1024),
    "write.parquet.row-group-check-min-record-count": "1",
    "write.target-file-size-bytes": str(128 * 1024 * 1024),
}


def full(name: tuple[str, ...]) -> str:
    """Returns a name with its catalog, quoted."""
    return quoted(CATALOG, *name)


def literal(text: str) -> str:
    """Returns a string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def create_namespace(namespace: tuple[str, ...]) -> str:
    return f"CREATE NAMESPACE IF NOT EXISTS {full(namespace)}"


def set_namespace_properties(namespace: tuple[str, ...], properties: Mapping[str, str]) -> str:
    return f"ALTER NAMESPACE {full(namespace)} SET PROPERTIES ({_properties(properties)})"


def set_table_properties(table: tuple[str, ...], properties: Mapping[str, str]) -> str:
    return f"ALTER TABLE {full(table)} SET TBLPROPERTIES ({_properties(properties)})"


def create_table(
    table: tuple[str, ...],
    columns: Mapping[str, str],
    properties: Mapping[str, str],
    partitions: Sequence[str] = (),
) -> str:
    """Returns the statement that creates a table. `columns`: name → Spark type, including the sink's own columns."""
    listed = ", ".join(f"{quoted(name)} {sql_type}" for name, sql_type in columns.items())
    every = {**TABLE_PROPERTIES, **properties}
    by = f" PARTITIONED BY ({', '.join(partitions)})" if partitions else ""
    return f"CREATE TABLE {full(table)} ({listed}) USING iceberg{by} TBLPROPERTIES ({_properties(every)})"


def partition(table: tuple[str, ...], change: str, transform: str) -> str:
    """Returns the statement that adds or drops a partition field. `change`: ADD or DROP. Existing files stay."""
    alter = f"ALTER TABLE {full(table)} {change} PARTITION FIELD"
    if not is_column(transform):
        return f"{alter} {transform}"
    # A field with its column's name would prevent that another column ever gets that name.
    name = f"{transform[:-1]}_value`"
    return f"{alter} {transform} AS {name}" if change == "ADD" else f"{alter} {name}"


def is_column(transform: str) -> bool:
    """Returns whether a partition is by a column's values without a transform."""
    return transform.startswith("`")


def order(table: tuple[str, ...], sorts: Sequence[str]) -> str:
    """Returns the statement that sets the sort order within each file. Existing files stay."""
    return f"ALTER TABLE {full(table)} WRITE " + (f"LOCALLY ORDERED BY {', '.join(sorts)}" if sorts else "UNORDERED")


def purge_table(table: tuple[str, ...]) -> str:
    return f"DROP TABLE IF EXISTS {full(table)} PURGE"


def source_columns(columns: Mapping[str, str], staged: Mapping[str, str]) -> str:
    """Returns the columns of staged files, as Spark declares a schema: the table's and the sink's own (name → Spark
    type).
    """
    return ", ".join(f"{quoted(name)} {sql_type}" for name, sql_type in {**columns, **staged}.items())


def one_of(values: Iterable[tuple[str, Sequence[int | str]]]) -> str:
    """Returns the condition that each of these columns of the table has one of its values; "" for no columns. `values`
    are in ascending order. The condition includes bounds, because Iceberg skips files by bounds, but not by more than
    200 values.
    """
    parts: list[str] = []
    for name, some in values:
        literals = [literal(value) if isinstance(value, str) else str(value) for value in some]
        column = f"t.{quoted(name)}"
        parts += [f"{column} >= {literals[0]}", f"{column} <= {literals[-1]}", f"{column} IN ({', '.join(literals)})"]
    return " AND ".join(parts)


def same_key(key: Sequence[str], *conditions: str, left: str = "t", right: str = "s") -> str:
    """Returns the condition that two rows have the same key, and meet `conditions`."""
    equal = [f"{left}.{quoted(name)} = {right}.{quoted(name)}" for name in key]
    return " AND ".join([*equal, *filter(None, conditions)])


def merge(
    table: tuple[str, ...], columns: Sequence[str], key: Sequence[str], condition: str = "", source: str = SOURCE
) -> str:
    """Returns the guarded write: in the commit itself, a greater version wins. Key columns are written, too, because
    -0.0 and 0.0 are the same key. `condition`: is true of every row of the table that has a key of the source.
    """
    every = [*map(quoted, columns), VERSION]
    return (
        f"MERGE INTO {full(table)} t USING {source} s ON {same_key(key, condition)} "
        f"WHEN MATCHED AND s.{VERSION} > t.{VERSION} AND s.{DELETED} THEN DELETE "
        f"WHEN MATCHED AND s.{VERSION} > t.{VERSION} THEN "
        f"UPDATE SET {', '.join(f't.{name} = s.{name}' for name in every)} "
        f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN "
        f"INSERT ({', '.join(every)}) VALUES ({', '.join(f's.{name}' for name in every)})"
    )


def merge_columns(table: tuple[str, ...], columns: Sequence[str], key: Sequence[str], condition: str = "") -> str:
    """Returns the guarded write for rows that lack columns: existing rows keep theirs, and nothing is inserted."""
    assigned = [
        f"t.{quoted(name)} = CASE WHEN array_contains(s.{UNCHANGED}, {literal(name)}) "
        f"THEN t.{quoted(name)} ELSE s.{quoted(name)} END"
        for name in columns
        if name not in key
    ]
    return (
        f"MERGE INTO {full(table)} t USING {SOURCE} s ON {same_key(key, condition)} "
        f"WHEN MATCHED AND s.{VERSION} > t.{VERSION} THEN "
        f"UPDATE SET {', '.join([*assigned, f't.{VERSION} = s.{VERSION}'])}"
    )


def remove_duplicates(table: tuple[str, ...], identity: Sequence[str], kind: str = "", *, of_source: bool) -> str:
    """Returns the statement that keeps one row for each value of these columns, and of the expression `kind` of a row
    `t`: the newest, and among equal versions the first by file and position. `of_source`: only for values of the
    columns that the source has.
    """
    same = ", ".join([*(f"t.{quoted(name)}" for name in identity), *filter(None, [kind])])
    same_row = "t._file = d.ws_file AND t._pos = d.ws_pos"
    among = f"LEFT SEMI JOIN {SOURCE} s ON {same_key(identity)}" if of_source else ""
    ranked = (
        f"SELECT t._file AS ws_file, t._pos AS ws_pos, row_number() OVER (PARTITION BY {same} "
        f"ORDER BY t.{VERSION} DESC, t._file, t._pos) AS ws_rank "
        f"FROM {full(table)} t {among}"
    )
    return (
        f"MERGE INTO {full(table)} t USING (SELECT ws_file, ws_pos FROM ({ranked}) WHERE ws_rank > 1) d "
        f"ON {same_row} WHEN MATCHED THEN DELETE"
    )


# ---- deleted keys, of tables that hold the source's rows


def without_deleted(deleted: tuple[str, ...], key: Sequence[str], lowest: int) -> str:
    """Returns the source without rows whose key was deleted at a later version. `lowest`: the lowest of the source's
    versions.
    """
    return (
        f"(SELECT s.* FROM {SOURCE} s LEFT ANTI JOIN {full(deleted)} d ON "
        f"{same_key(key, left='s', right='d')} AND d.{VERSION} >= {lowest}L AND d.{VERSION} >= s.{VERSION} "
        f"AND NOT s.{DELETED})"
    )


def note_deleted(deleted: tuple[str, ...], key: Sequence[str]) -> str:
    """Returns the statement that records the source's deletes. A key may be recorded several times: its highest version
    counts.
    """
    return (
        f"INSERT INTO {full(deleted)} SELECT {', '.join(map(quoted, key))}, {VERSION}, current_timestamp() "
        f"FROM {SOURCE} WHERE {DELETED}"
    )


def note_swept(table: tuple[str, ...], deleted: tuple[str, ...], key: Sequence[str], floor: int) -> str:
    """Returns the statement that records the keys that a sweep deletes."""
    return (
        f"INSERT INTO {full(deleted)} SELECT {', '.join(map(quoted, key))}, {floor}L, current_timestamp() "
        f"FROM {full(table)} WHERE {VERSION} < {floor}"
    )


def remove_deleted(table: tuple[str, ...], deleted: tuple[str, ...], key: Sequence[str], from_version: int = 0) -> str:
    """Returns the statement that deletes rows whose key was deleted at a later version. `from_version`: only deletions
    at this version or a later one are read.
    """
    keys = ", ".join(map(quoted, key))
    return (
        f"MERGE INTO {full(table)} t USING (SELECT {keys}, max({VERSION}) AS {VERSION} FROM {full(deleted)} "
        f"WHERE {VERSION} >= {from_version}L GROUP BY {keys}) s ON {same_key(key)} "
        f"WHEN MATCHED AND s.{VERSION} > t.{VERSION} THEN DELETE"
    )


def highest_version(table: tuple[str, ...]) -> str:
    return f"SELECT coalesce(max({VERSION}), 0) AS highest FROM {full(table)}"


def forget_deleted(deleted: tuple[str, ...], older_than: str) -> str:
    """Returns the statement that removes old deletions. `older_than`: a timestamp in UTC."""
    return f"DELETE FROM {full(deleted)} WHERE {DELETED_AT} < TIMESTAMP {literal(older_than)}"


def count_below(table: tuple[str, ...], floor: int) -> str:
    return f"SELECT count(*) AS rows FROM {full(table)} WHERE {VERSION} < {floor}"


def compact(table: tuple[str, ...]) -> str:
    """Returns the call that rewrites files below SETTLED_FILE_BYTES, and others of which a good part is deleted. It
    takes seconds at most.
    """
    return (
        f"CALL {CATALOG}.system.rewrite_data_files(table => {literal(quoted(*table))}, "
        f"options => map('min-file-size-bytes', '{SETTLED_FILE_BYTES}', 'min-input-files', '2'))"
    )


def rewrite(table: tuple[str, ...], *, is_sorted: bool) -> str:
    """Returns the call that rewrites all files that do not have the table's target size. Files are rewritten in small
    groups with one commit each: a group that conflicts with a batch is given up, the others are completed.
    """
    strategy = "strategy => 'sort', " if is_sorted else ""
    return (
        f"CALL {CATALOG}.system.rewrite_data_files(table => {literal(quoted(*table))}, {strategy}"
        f"options => map('min-input-files', '2', 'partial-progress.enabled', 'true', "
        f"'partial-progress.max-commits', '1000', 'partial-progress.max-failed-commits', '1000', "
        f"'max-file-group-size-bytes', '{4 * SETTLED_FILE_BYTES}'))"
    )


def snapshots(table: tuple[str, ...]) -> str:
    return f"SELECT snapshot_id, unix_micros(committed_at) / 1e6 AS at_s FROM {full(table)}.snapshots"


def expire(table: tuple[str, ...], snapshot_ids: Sequence[int], older_than: str) -> str:
    """Returns the call that expires these snapshots. `older_than`: a timestamp in UTC; all snapshots before it are
    expired, too.
    """
    return (
        f"CALL {CATALOG}.system.expire_snapshots(table => {literal(quoted(*table))}, "
        f"snapshot_ids => ARRAY({', '.join(f'{number}L' for number in snapshot_ids)}), "
        f"older_than => TIMESTAMP {literal(older_than)}, retain_last => 1)"
    )


def _properties(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
