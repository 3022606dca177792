"""The tables that the sink creates for one source table, as SQLAlchemy describes them. Pure.

| table                                   | content                                                                 |
|-----------------------------------------|-------------------------------------------------------------------------|
| the readers' table                      | exactly the source's rows, in the mapping's columns                     |
| `versions:<schema>.<table>`             | the version of each live row by its key, and those of deleted rows      |
|                                         | until they are purged                                                   |
| `tables`                                | one row for each prepared table: its fence                              |
| `sink`                                  | one row: the generation                                                 |

All but the readers' tables are in the schema `watershed_<prefix>`; where the database has no schemas, their names begin
with that text. A generation that readers do not see has all of these tables once more: the names of the sink's own
begin with its slot (sinks/slots.py), that of a readers' table ends with it.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, Column, ColumnElement, FromClause, LargeBinary, MetaData, Table, Text, and_
from sqlalchemy.types import UserDefinedType

from cdc.config.store_shapes import SqlShape
from cdc.model.control import table_key
from cdc.model.events import TableId, TableSchema
from sinks.errors import RefusedError
from sinks.slots import FIRST
from sinks.sql.dialects import Dialect
from sinks.sql.types import ColumnForm

QualifiedName = tuple[str | None, str]  # schema and name

_STAGES: Final[Iterator[int]] = itertools.count()
# Keys of all other types can be equal for the database while their texts differ: 0.0 and -0.0, 1.0 and 1.00.
_EXACT_KEYS: Final = frozenset({16, 17, 19, 20, 21, 23, 25, 26, 1043, 1082, 1083, 1114, 1184, 2950})


class Ddl(UserDefinedType[Any]):
    """A type that is named by its text. Values pass to and from the driver unchanged."""

    cache_ok = True

    def __init__(self, text: str) -> None:
        self.text = text

    def get_col_spec(self, **_: object) -> str:
        return self.text


class OwnTables:
    """The sink's own tables, except those of versions."""

    def __init__(self, dialect: Dialect, beginning: str, slot: str = FIRST) -> None:
        """`slot`: FIRST of the generation that readers see."""
        self.slot = slot
        self.schema = beginning if dialect.has_schemas else None
        self._beginning = ("" if dialect.has_schemas else f"{beginning}.") + (f"{slot}." if slot else "")
        self._dialect = dialect
        meta = MetaData(schema=self.schema)
        self.sink = Table(
            f"{self._beginning}sink",
            meta,
            Column("id", BigInteger, primary_key=True, autoincrement=False),
            Column("generation", BigInteger, nullable=False),
            Column("note", Text),  # see sinks.contract.Sink.note
        )
        self.tables = Table(
            f"{self._beginning}tables",
            meta,
            Column("source", Text, primary_key=True),
            Column("is_prepared", Boolean, nullable=False),  # in the generation that is held
            Column("schema_version", BigInteger, nullable=False),
            Column("shape", Text, nullable=False),
            Column("columns", Text, nullable=False),  # JSON: [[name, type], …]
            Column("key_columns", Text, nullable=False),  # JSON
            Column("batches", BigInteger, nullable=False),
        )
        # Of a transactional sink: the records of a batch until they are merged, see sinks/sql/staged.py.
        self.staged = Table(
            f"{self._beginning}staged",
            meta,
            Column("batch", Text, primary_key=True),
            *(
                Column(name, BigInteger, primary_key=True, autoincrement=False)
                for name in ("task", "attempt", "number")
            ),
            Column("content", LargeBinary, nullable=False),
            prefixes=["UNLOGGED"] if dialect.has_schemas else [],
        )

    def versions_name(self, source: str) -> str:
        """Returns the name of a table of versions. `source`: the source table's key in `tables`."""
        return self._dialect.bounded(f"{self._beginning}versions:{self._dialect.own_name(source)}")

    def place(self, named: QualifiedName) -> QualifiedName:
        """Returns this generation's place of the table that readers see by this name."""
        schema, name = named
        return named if self.slot == FIRST else (schema, self._dialect.bounded(f"{name}~{self.slot}"))


class TableForm:
    """One source table in the store. Raises RefusedError for a shape that does not fit the table."""

    def __init__(self, dialect: Dialect, own: OwnTables, schema: TableSchema, shape: SqlShape) -> None:
        self.dialect = dialect
        self.schema = schema
        self.source = table_key(schema.table)
        self.place = own.place(dialect.place(shape.table, schema.table))
        self.shape = shape_text(dialect, own, schema.table, shape)
        where = f"SQL table of {schema.table}"
        names = [column.name for column in schema.columns]
        for option, named in (("types", list(shape.types)), ("indexes", [n for one in shape.indexes for n in one])):
            if unknown := next((name for name in named if name not in names), None):
                raise RefusedError(
                    f"{where}: {option} names column {unknown}, which it does not have",
                    f"its columns are {', '.join(names)}",
                )
        if long := next((name for name in names if len(name.encode()) > dialect.name_bytes_max), None):
            raise RefusedError(f"{where}: the column name {long!r} is too long", "rename it in the sink's mapping")
        for number, name in enumerate(names):
            other = next((one for one in names[:number] if dialect.folded(one) == dialect.folded(name)), None)
            if other is not None:
                raise RefusedError(
                    f"{where}: its columns {other} and {name} differ only in case, and are the same to this database",
                    "give one of them another name with rename in the sink's mapping, or leave it out with exclude",
                )
        self.forms: dict[str, ColumnForm] = {
            column.name: dialect.form(column, shape.types.get(column.name)) for column in schema.columns
        }
        self.columns = [(name, form.ddl) for name, form in self.forms.items()]
        self.indexes = {dialect.bounded(_index_name(self.source, index, own.slot)): index for index in shape.indexes}
        self.at = {name: f"c{number}" for number, name in enumerate(self.forms)}
        self.rows = self._rows()
        self.versions = self._versions(own)
        self.stage = self._stage()
        oids = {column.name: column.base_type_oid or column.type_oid for column in schema.columns}
        self.has_exact_key = all(oids[name] in _EXACT_KEYS and name not in shape.types for name in schema.key)

    @property
    def name(self) -> str:
        """The name of the readers' table, for messages."""
        return ".".join(filter(None, self.place))

    def require_apart(self, other: "TableForm") -> None:
        """Raises RefusedError if both tables would be the same table in the database."""
        mine, theirs = (tuple(map(self.dialect.folded, filter(None, form.place))) for form in (self, other))
        if mine == theirs and other.schema.table != self.schema.table:
            what = f"the table {self.name}"
            if self.name != other.name:
                what = f"one table, as {other.name} and {self.name} differ only in case"
            raise RefusedError(
                f"SQL tables of {other.schema.table} and {self.schema.table} would be {what}",
                "set another table for one of them in the sink's shapes",
            )

    def same_key(self, left: FromClause, right: FromClause) -> ColumnElement[bool]:
        """Returns the condition that rows of two of the three tables have the same key."""
        return and_(*(a == b for a, b in zip(self.key_of(left), self.key_of(right), strict=True)))

    def key_of(self, table: FromClause) -> list[ColumnElement[Any]]:
        """Returns the key's columns in one of the three tables, in the key's order."""
        if table is self.versions:
            return [table.c[f"k{number}"] for number in range(len(self.schema.key))]
        return [table.c[name if table is self.rows else self.at[name]] for name in self.schema.key]

    def _rows(self) -> Table:
        schema, name = self.place
        columns: list[Column[Any]] = [
            Column(column, Ddl(form.ddl), primary_key=column in self.schema.key, autoincrement=False)
            for column, form in self.forms.items()
        ]
        return Table(name, MetaData(), *columns, schema=schema)

    def _versions(self, own: OwnTables) -> Table:
        keys: list[Column[Any]] = [
            Column(f"k{number}", Ddl(self.forms[name].ddl), primary_key=True, autoincrement=False)
            for number, name in enumerate(self.schema.key)
        ]
        rest = Column("version", BigInteger, nullable=False), Column("deleted_at", BigInteger)  # s since 1970
        return Table(own.versions_name(self.source), MetaData(), *keys, *rest, schema=own.schema)

    def _stage(self) -> Table:
        """Returns a temporary table for this form only, since other versions of the schema have other columns."""
        columns: list[Column[Any]] = [Column(self.at[name], Ddl(form.ddl)) for name, form in self.forms.items()]
        return Table(
            f"watershed_stage_{next(_STAGES)}",
            MetaData(),
            Column("number", BigInteger, nullable=False),  # in the batch
            Column("version", BigInteger, nullable=False),
            Column("is_deleted", Boolean, nullable=False),
            *columns,
            prefixes=["TEMPORARY"],
            postgresql_on_commit="DELETE ROWS",
        )


def shape_text(dialect: Dialect, own: OwnTables, table: TableId, shape: SqlShape) -> str:
    """Returns the part of a shape, as JSON, that can't change while the tables exist. Indexes can change."""
    place = own.place(dialect.place(shape.table, table))
    return json.dumps({"place": place, "types": dict(sorted(shape.types.items()))})


def moved(shape: str, place: QualifiedName) -> str:
    """Returns a shape's text after the readers' table was renamed."""
    return json.dumps(json.loads(shape) | {"place": place})


INDEX_BEGINNING: Final = "watershed_"


def _index_name(source: str, columns: Sequence[str], slot: str) -> str:
    """An index keeps its name when its table is renamed."""
    identity = json.dumps([source, *columns] if slot == FIRST else [source, *columns, slot])
    return f"{INDEX_BEGINNING}{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
