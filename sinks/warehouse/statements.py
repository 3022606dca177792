"""The SQL that the warehouse runs. Pure text; names come quoted from here, values as literals."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sinks.warehouse.naming import DELETED, VERSION, Place, quoted

CATALOG = "watershed"  # also the catalog's name inside its own tables: readers need the same
SOURCE = "ws_source"  # the batch's rows
UNCHANGED = "ws_unchanged"  # names of the columns that it lacks, where some of the batch's rows do

# Files of this size are left alone by compaction, which bounds what one compaction rewrites.
SETTLED_FILE_BYTES: Final = 32 * 1024 * 1024

TABLE_PROPERTIES: Final[Mapping[str, str]] = {
    # Deletion vectors: a commit writes what changed, not the files that it changes.
    "format-version": "3",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # Two writers of the same new keys: one of them is refused.
    "write.merge.isolation-level": "serializable",
    "write.update.isolation-level": "serializable",
    "write.delete.isolation-level": "serializable",
    # A commit every few seconds leaves one metadata file each.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # A writer holds a row group in memory; it looks at its size after so many rows.
    "write.parquet.row-group-size-bytes": str(16 * 1024 * 1024),
    "write.parquet.row-group-check-min-record-count": "1",
    "write.target-file-size-bytes": str(128 * 1024 * 1024),
}


def full(name: tuple[str, ...]) -> str:
    """A name with its catalog."""
    return quoted(CATALOG, *name)


def literal(text: str) -> str:
    """A string in a statement."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def create_namespace(namespace: tuple[str, ...]) -> str:
    return f"CREATE NAMESPACE IF NOT EXISTS {full(namespace)}"


def set_namespace_properties(namespace: tuple[str, ...], properties: Mapping[str, str]) -> str:
    return f"ALTER NAMESPACE {full(namespace)} SET PROPERTIES ({_properties(properties)})"


def create_table(place: Place, columns: Iterable[tuple[str, str]], properties: Mapping[str, str]) -> str:
    """`columns`: name and Spark type, ours excluded."""
    listed = [f"{quoted(name)} {sql_type}" for name, sql_type in columns]
    listed += [f"{VERSION} bigint", f"{DELETED} boolean"]
    every = {**TABLE_PROPERTIES, **properties}
    return f"CREATE TABLE {full(place.rows)} ({', '.join(listed)}) USING iceberg TBLPROPERTIES ({_properties(every)})"


def purge_table(table: tuple[str, ...]) -> str:
    return f"DROP TABLE IF EXISTS {full(table)} PURGE"


def create_view(place: Place, columns: Iterable[str], properties: Mapping[str, str]) -> str:
    """Instead of the one that is there, if there is one."""
    return (
        f"CREATE OR REPLACE VIEW {full(place.live)} TBLPROPERTIES ({_properties(properties)}) AS "
        f"SELECT {', '.join(map(quoted, columns))} FROM {full(place.rows)} WHERE NOT {DELETED}"
    )


def source_columns(columns: Mapping[str, str], *, lacks: bool) -> str:
    """The columns of staged files, as Spark declares a schema. `columns`: name → Spark type, ours excluded."""
    listed = [f"{quoted(name)} {sql_type}" for name, sql_type in columns.items()]
    listed += [f"{VERSION} bigint", f"{DELETED} boolean"]
    return ", ".join([*listed, f"{UNCHANGED} array<string>"] if lacks else listed)


def one_of(values: Iterable[tuple[str, Sequence[int | str]]]) -> str:
    """The condition that each of these columns of the table has one of its values, in ascending order; empty for no
    columns. With bounds: Iceberg leaves out files by those, but not by more than 200 values."""
    parts: list[str] = []
    for name, some in values:
        said = [literal(value) if isinstance(value, str) else str(value) for value in some]
        column = f"t.{quoted(name)}"
        parts += [f"{column} >= {said[0]}", f"{column} <= {said[-1]}", f"{column} IN ({', '.join(said)})"]
    return " AND ".join(parts)


def merge(table: tuple[str, ...], columns: Sequence[str], key: Sequence[str], condition: str = "") -> str:
    """The guarded write: in the commit itself a greater version wins. Key columns are written too: -0.0 has the key of
    0.0. `condition`: what is true of every row of the table that has a key of the source."""
    every = [*map(quoted, columns), VERSION, DELETED]
    return (
        f"MERGE INTO {full(table)} t USING {SOURCE} s ON {_same_key(key, condition)} "
        f"WHEN MATCHED AND s.{VERSION} > t.{VERSION} THEN "
        f"UPDATE SET {', '.join(f't.{name} = s.{name}' for name in every)} "
        f"WHEN NOT MATCHED THEN "
        f"INSERT ({', '.join(every)}) VALUES ({', '.join(f's.{name}' for name in every)})"
    )


def merge_columns(table: tuple[str, ...], columns: Sequence[str], key: Sequence[str], condition: str = "") -> str:
    """The same for rows that lack columns: live rows keep theirs, there is nothing to insert."""
    assigned = [
        f"t.{quoted(name)} = CASE WHEN array_contains(s.{UNCHANGED}, {literal(name)}) "
        f"THEN t.{quoted(name)} ELSE s.{quoted(name)} END"
        for name in columns
        if name not in key
    ]
    return (
        f"MERGE INTO {full(table)} t USING {SOURCE} s ON {_same_key(key, condition)} "
        f"WHEN MATCHED AND s.{VERSION} > t.{VERSION} AND NOT t.{DELETED} THEN "
        f"UPDATE SET {', '.join(assigned)}, t.{VERSION} = s.{VERSION}"
    )


def remove_doubles(table: tuple[str, ...], key: Sequence[str]) -> str:
    """Of the batch's keys, keep one row each: the newest, among equals the first by file and position."""
    same_row = "t._file = d.ws_file AND t._pos = d.ws_pos"
    ranked = (
        f"SELECT t._file AS ws_file, t._pos AS ws_pos, row_number() OVER (PARTITION BY "
        f"{', '.join(f't.{quoted(name)}' for name in key)} ORDER BY t.{VERSION} DESC, t._file, t._pos) AS ws_rank "
        f"FROM {full(table)} t JOIN {SOURCE} s ON {_same_key(key)}"
    )
    return (
        f"MERGE INTO {full(table)} t USING (SELECT ws_file, ws_pos FROM ({ranked}) WHERE ws_rank > 1) d "
        f"ON {same_row} WHEN MATCHED THEN DELETE"
    )


def count_below(table: tuple[str, ...], floor: int) -> str:
    return f"SELECT count(*) AS rows FROM {full(table)} WHERE {VERSION} < {floor} AND NOT {DELETED}"


def sweep(table: tuple[str, ...], columns: Sequence[str], key: Sequence[str], floor: int) -> str:
    emptied = [f"{quoted(name)} = NULL" for name in columns if name not in key]
    assigned = [*emptied, f"{VERSION} = {floor}L", f"{DELETED} = true"]
    return f"UPDATE {full(table)} SET {', '.join(assigned)} WHERE {VERSION} < {floor} AND NOT {DELETED}"


def compact(table: tuple[str, ...]) -> str:
    """Only files below SETTLED_FILE_BYTES, and others of which a good part is deleted: so it takes seconds at most."""
    return (
        f"CALL {CATALOG}.system.rewrite_data_files(table => {literal(quoted(*table))}, "
        f"options => map('min-file-size-bytes', '{SETTLED_FILE_BYTES}', 'min-input-files', '2'))"
    )


def expire(table: tuple[str, ...], older_than: str, retain_last: int) -> str:
    """`older_than`: a timestamp in UTC."""
    return (
        f"CALL {CATALOG}.system.expire_snapshots(table => {literal(quoted(*table))}, "
        f"older_than => TIMESTAMP {literal(older_than)}, retain_last => {retain_last})"
    )


def _same_key(key: Sequence[str], condition: str = "") -> str:
    return " AND ".join([*(f"t.{quoted(name)} = s.{quoted(name)}" for name in key), *filter(None, [condition])])


def _properties(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
