"""The columns of a table in Spark, and rows as Arrow's batches. Pure.

Types are those of the warehouse (`sinks.warehouse.columns`), so that a value has one form in Spark, whichever way it
took. A value that its type can't hold is refused, never changed; the column can then be read as text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from cdc.model.errors import ConfigError
from cdc.model.events import TableSchema
from sinks.contract import Change, Json
from sinks.json_values import Unholdable
from sinks.records import encode_json
from sinks.warehouse.columns import ColumnType, column_type
from spark_jobs.source.errors import SchemaChangedError, UnheldValueError
from spark_jobs.source.options import SourceOptions

OP: Final = "_op"
SWEPT: Final = "t"  # the operation of a sweep
VERSION: Final = "_version"
COMMIT_LSN: Final = "_commit_lsn"
COMMIT_TS: Final = "_commit_ts"
KEY: Final = "_key"
UNCHANGED: Final = "_unchanged"
OWN_COLUMNS: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    OP: ("string", pa.string()),  # c, u, r as in the record, d for a delete, t for a sweep
    VERSION: ("bigint", pa.int64()),
    COMMIT_LSN: ("bigint", pa.int64()),  # null for a tombstone without its delete
    COMMIT_TS: ("timestamp", pa.timestamp("us", tz="UTC")),
    KEY: ("string", pa.string()),  # the record's key, JSON
    UNCHANGED: ("array<string>", pa.list_(pa.string())),  # columns whose values are not known; null: none
}


class DecodedRecord(NamedTuple):
    """One record of a table's topic."""

    change: Change
    operation: str
    commit_lsn: int | None
    at_us: int | None  # µs since 1970
    key: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class RowForm:
    """The columns that a query reads of a table."""

    schema: TableSchema
    columns: dict[str, ColumnType]

    @classmethod
    def of(cls, schema: TableSchema, options: SourceOptions) -> "RowForm":
        """Raises ConfigError for columns that the table does not have, or whose names are ours."""
        known = {column.name: column for column in schema.columns}
        names = tuple(known) if options.columns is None else options.columns
        if unknown := [name for name in (*names, *sorted(options.text_columns)) if name not in known]:
            raise ConfigError(
                f'format("watershed"): table {schema.table} has no column {unknown[0]}',
                f"its columns are {', '.join(known)}",
            )
        if taken := [name for name in names if name.lower() in OWN_COLUMNS]:
            raise ConfigError(
                f'format("watershed"): column {taken[0]} of table {schema.table} has a name of the data source\'s own',
                "leave it out by option columns",
            )
        types = {name: _TEXT if name in options.text_columns else column_type(known[name]) for name in names}
        return cls(schema, types)

    @property
    def ddl(self) -> str:
        """The columns in Spark's SQL."""
        return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in self._types())

    def _types(self) -> list[tuple[str, str]]:
        table = [(name, kind.sql) for name, kind in self.columns.items()]
        return [*table, *((name, sql) for name, (sql, _) in OWN_COLUMNS.items())]

    def require(self, given: Sequence[tuple[str, str]]) -> None:
        """Raises SchemaChangedError if a query has other columns. `given`: names and Spark's types."""
        if list(given) != self._types():
            raise SchemaChangedError(
                f"table {self.schema.table} has schema version {self.schema.version}, whose columns are not those of "
                "this DataFrame",
                "load it again; a stream: restart the query, from its checkpoint. The data source makes the schema "
                "itself: choose columns by option columns, not by schema()",
            )

    def sweep(self, floor: int, as_of_lsn: int) -> pa.RecordBatch:
        """Returns the row of a sweep: only its floor and position are not null."""
        own: dict[str, Json] = {OP: SWEPT, VERSION: floor, COMMIT_LSN: as_of_lsn}
        arrays = [pa.nulls(1, kind.arrow) for kind in self.columns.values()]
        arrays += [pa.array([own.get(name)], kind) for name, (_, kind) in OWN_COLUMNS.items()]
        return pa.RecordBatch.from_arrays(arrays, names=[*self.columns, *OWN_COLUMNS])

    def batch(self, rows: Sequence[DecodedRecord]) -> pa.RecordBatch:
        """Returns the rows. Raises UnheldValueError."""
        held: list[Mapping[str, Json]] = [row.change.key if row.change.row is None else row.change.row for row in rows]
        arrays = [self._array(name, kind, rows, held) for name, kind in self.columns.items()]
        own = {
            OP: [row.operation for row in rows],
            VERSION: [row.change.version for row in rows],
            COMMIT_LSN: [row.commit_lsn for row in rows],
            COMMIT_TS: [row.at_us for row in rows],
            KEY: [row.key for row in rows],
            UNCHANGED: [sorted(row.change.unchanged) or None for row in rows],
        }
        arrays += [pa.array(own[name], kind) for name, (_, kind) in OWN_COLUMNS.items()]
        return pa.RecordBatch.from_arrays(arrays, names=[*self.columns, *OWN_COLUMNS])

    def _array(
        self, name: str, kind: ColumnType, rows: Sequence[DecodedRecord], held: Sequence[Mapping[str, Json]]
    ) -> pa.Array:
        values = [row.get(name) for row in held]
        try:
            return kind.array(values)
        except Unholdable:
            for row, value in zip(rows, values, strict=True):
                try:
                    kind.array([value])
                except Unholdable as error:
                    raise UnheldValueError(
                        f"topic {self.schema.topic}, partition {row.partition}, offset {row.offset}: column {name} of "
                        f"table {self.schema.table} has a value that {kind.sql} can't hold: {error}",
                        f"read it as text: option textColumns={name}",
                    ) from None
            raise


def _any_text(value: Json) -> str:
    return value if isinstance(value, str) else encode_json(value).decode()


_TEXT: Final = ColumnType("string", pa.string(), _any_text, frozenset({str}))
