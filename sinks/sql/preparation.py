"""The tables of the SQL store: made, changed with the source's schema, dropped. Each step is one transaction.

A transaction locks the row of `sink` first, so that of two jobs which prepare at the same time one waits; then the
table's row in `tables`, its fence, which a job that writes the table locks, too.
"""

import json
from collections.abc import Callable, Collection
from typing import Any

import structlog
from sqlalchemy import Connection, Index, MetaData, Table, inspect
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable, DropIndex, DropTable

from cdc.model.errors import RefusedError, SinkError
from cdc.model.events import TableId
from cdc.model.sql_names import sql_name
from cdc.records.control import table_key
from sinks.lineage import Lineage
from sinks.sql.server import LostTable, RefusedStatement, RefusedValue, SqlServer
from sinks.sql.tables import INDEX_BEGINNING, OwnTables, Place, TableForm

log = structlog.get_logger(__name__)


class Preparation:
    """Of the tables of one sink."""

    def __init__(self, server: SqlServer, own: OwnTables, shape: Callable[[str], str]) -> None:
        """`shape`: a table's key in `tables` → its shape as the configuration has it."""
        self._server = server
        self._own = own
        self._shape = shape

    def generation(self) -> int | None:
        """The generation that the store holds; None where it holds none, lacks a table that was prepared, or has one
        of another shape than the configuration."""

        def read(connection: Connection) -> int | None:
            if not self._is_there(connection, (self._own.schema, self._own.tables.name)):
                return None
            held = connection.execute(self._own.sink.select()).mappings().one_or_none()
            for row in connection.execute(self._own.tables.select()).mappings():
                if not row["is_prepared"]:
                    continue
                if row["shape"] != self._shape(row["source"]):
                    log.warning("SQL store is filled again: the shape of a table has changed", table=row["source"])
                    return None
                if not all(self._is_there(connection, place) for place in self._places(row)):
                    return None
            return None if held is None else int(held["generation"])

        try:
            return self._server.transaction(read)
        except LostTable:  # dropped just now
            return None

    def begin_generation(self, generation: int) -> None:
        """The store holds this generation; no table is prepared in it yet."""
        own = self._own

        def begin(connection: Connection) -> None:
            if own.schema is not None:
                connection.execute(CreateSchema(own.schema, if_not_exists=True))
            connection.execute(CreateTable(own.sink, if_not_exists=True))
            connection.execute(CreateTable(own.tables, if_not_exists=True))
            connection.execute(own.sink.delete())
            connection.execute(own.sink.insert(), {"id": 1, "generation": generation})
            connection.execute(own.tables.update().values(is_prepared=False))

        try:
            self._make(begin)
        except RefusedValue as error:
            raise SinkError(
                f"SQL store: the sink's own tables could not be made ({error})",
                "nothing: the sink starts again; stop a second job, if there is one",
            ) from None

    def discard(self, table: TableId) -> None:
        """Drop the table with its versions, if it is the sink's."""

        def drop(connection: Connection) -> None:
            self._lock(connection, table)
            row = self._row(connection, table_key(table))
            if row is not None:
                self._drop(connection, row)

        self._run(drop, table)

    def prepare(self, lineage: Lineage, form: TableForm) -> None:
        """See sinks.contract.Sink.prepare."""
        table = lineage.newest.table

        def prepare(connection: Connection) -> None:
            self._lock(connection, table)
            row = self._row(connection, form.source)
            if row is not None:
                are_there = [self._is_there(connection, place) for place in self._places(row)]
                if row["is_prepared"] and not all(are_there):
                    raise lost(table)
                if row["is_prepared"] and row["shape"] != form.shape:
                    raise later(table)
                if row["shape"] != form.shape or not all(are_there):
                    self._drop(connection, row)
                    row = None
            if row is None:
                self._create(connection, form)
            else:
                self._evolve(connection, lineage, form, row)
            self._index(connection, form)

        self._run(prepare, table)

    def check(self, form: TableForm) -> None:
        """Raises RefusedError for types that the database does not have, and for a table that is another's."""

        def look(connection: Connection) -> None:
            if self._server.dialect.alters_types:  # else it takes any type
                nulls = ", ".join(f"CAST(NULL AS {column.ddl})" for column in form.forms.values())
                connection.exec_driver_sql(f"SELECT {nulls}")
            is_known = self._is_there(connection, (self._own.schema, self._own.tables.name))
            row = self._row(connection, form.source) if is_known else None
            if row is None or form.place not in self._places(row):
                self._check_free(connection, form)

        self._run(look, form.schema.table)

    def _make(self, work: Callable[[Connection], None]) -> None:
        """Another job that makes the same schema or table at the same moment is a duplicate key, once."""
        try:
            self._server.transaction(work)
        except RefusedValue:
            self._server.transaction(work)

    def _run(self, work: Callable[[Connection], None], table: TableId) -> None:
        try:
            self._make(work)
        except (RefusedStatement, RefusedValue) as error:
            said = error.message if isinstance(error, SinkError) else f"its rows do not fit ({error})"
            raise RefusedError(
                f"SQL table of {table}: {said}",
                "correct types and indexes in the sink's shapes, drop what depends on the table, or add the table to "
                "the sink's exclude_tables; then start the sink again",
            ) from None
        except LostTable:
            raise lost(table) from None

    def _lock(self, connection: Connection, table: TableId) -> None:
        if not self._is_there(connection, (self._own.schema, self._own.sink.name)):
            raise lost(table)
        sink, tables = self._own.sink, self._own.tables
        if not connection.execute(sink.update().values(id=sink.c.id)).rowcount:
            raise lost(table)
        connection.execute(
            tables.update().where(tables.c.source == table_key(table)).values(batches=tables.c.batches + 1)
        )

    def _row(self, connection: Connection, source: str) -> Any:
        tables = self._own.tables
        return connection.execute(tables.select().where(tables.c.source == source)).mappings().one_or_none()

    def _places(self, row: Any) -> list[Place]:
        """Where the readers' table and that of versions are."""
        schema, name = json.loads(row["shape"])["place"]
        return [(schema, name), (self._own.schema, self._own.versions_name(row["source"]))]

    def _is_there(self, connection: Connection, place: Place) -> bool:
        schema, name = place
        return inspect(connection).has_table(name, schema)

    def _drop(self, connection: Connection, row: Any) -> None:
        for schema, name in self._places(row):
            connection.execute(DropTable(Table(name, MetaData(), schema=schema), if_exists=True))
        connection.execute(self._own.tables.delete().where(self._own.tables.c.source == row["source"]))

    def _create(self, connection: Connection, form: TableForm) -> None:
        self._check_free(connection, form)
        schema, _ = form.place
        if schema is not None:
            connection.execute(CreateSchema(schema, if_not_exists=True))
        connection.execute(DropTable(form.versions, if_exists=True))
        connection.execute(CreateTable(form.rows))
        connection.execute(CreateTable(form.versions))
        described = {**self._described(form), "source": form.source, "batches": 0}
        connection.execute(self._own.tables.insert(), described)

    def _check_free(self, connection: Connection, form: TableForm) -> None:
        if self._is_there(connection, form.place):
            raise RefusedError(
                f"SQL table of {form.schema.table}: {form.name} is there already, and the sink did not make it for "
                "this table",
                f"DROP TABLE {sql_name(*filter(None, form.place))}, if nobody needs it; or set another table in the "
                "sink's shapes",
            )

    def _described(self, form: TableForm) -> dict[str, Any]:
        return {
            "is_prepared": True,
            "schema_version": form.schema.version,
            "shape": form.shape,
            "columns": json.dumps(form.columns),
            "key_columns": json.dumps(form.schema.key),
        }

    def _evolve(self, connection: Connection, lineage: Lineage, form: TableForm, row: Any) -> None:
        """A column stays if it is the same one all the time; others are dropped and added anew, as NULL."""
        table, version = lineage.newest.table, row["schema_version"]
        if row["is_prepared"] and version > lineage.newest.version:
            raise later(table)
        if json.loads(row["key_columns"]) != list(form.schema.key):
            raise _other_key(form, "it has another key")
        # What an earlier generation noted may count other versions.
        carried: Collection[str] = lineage.carried(version) if row["is_prepared"] else list(form.forms)
        held, wanted = dict(json.loads(row["columns"])), dict(form.columns)
        stay = {name for name in wanted if name in held and name in carried and self._fits(held[name], wanted[name])}
        if lost_key := next((name for name in form.schema.key if name not in stay), None):
            raise _other_key(form, f"column {lost_key} of its key has another type")
        rows, quote = self._quoted(connection, form.rows), connection.dialect.identifier_preparer.quote
        for name in held:
            if name not in stay:
                connection.exec_driver_sql(f"ALTER TABLE {rows} DROP COLUMN {quote(name)}")
        for name, ddl in wanted.items():
            if name not in stay:
                connection.exec_driver_sql(f"ALTER TABLE {rows} ADD COLUMN {quote(name)} {ddl}")
            elif held[name] != ddl:
                self._widen(connection, rows, quote(name), ddl)
                if name in form.schema.key:
                    at = form.schema.key.index(name)
                    self._widen(connection, self._quoted(connection, form.versions), f"k{at}", ddl)
        changed = [name for name in {*held, *wanted} if held.get(name) != wanted.get(name) or name not in stay]
        if changed:
            log.info("SQL table changed", table=str(table), columns=" ".join(sorted(changed)))
        tables = self._own.tables
        connection.execute(tables.update().where(tables.c.source == form.source).values(**self._described(form)))

    def _fits(self, held: str, wanted: str) -> bool:
        """Whether a column's type can become the other in place."""
        return held == wanted or self._server.dialect.alters_types

    def _widen(self, connection: Connection, table: str, column: str, ddl: str) -> None:
        """Through text: a real becomes the double that has its digits."""
        connection.exec_driver_sql(
            f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {ddl} USING CAST(CAST({column} AS text) AS {ddl})"
        )

    def _index(self, connection: Connection, form: TableForm) -> None:
        """The indexes of the configuration, and none that it had before. Their names may be those of another slot."""
        schema, name = form.place
        held = {
            tuple(found["column_names"]): str(found["name"])
            for found in inspect(connection).get_indexes(name, schema)
            if str(found["name"]).startswith(INDEX_BEGINNING)
        }
        wanted = {tuple(names): index for index, names in form.indexes.items()}
        for names in held.keys() - wanted.keys():
            columns = [form.rows.c[form.schema.key[0]]]
            connection.execute(DropIndex(Index(held[names], *columns, _table=form.rows)))
        for names in wanted.keys() - held.keys():
            connection.execute(CreateIndex(Index(wanted[names], *(form.rows.c[column] for column in names))))

    def _quoted(self, connection: Connection, table: Table) -> str:
        return connection.dialect.identifier_preparer.format_table(table)


def lost(table: TableId | str) -> SinkError:
    return SinkError(
        f"SQL store: the table of {table}, or the sink's own tables, were dropped: rows may be missing",
        "nothing: the sink starts again and fills the store anew from the topics",
    )


def later(table: TableId) -> SinkError:
    return SinkError(
        f"SQL store: the table of {table} was prepared with a later schema or another shape",
        "nothing: the sink starts again and reads the newest schema; stop a second job, if there is one",
    )


def _other_key(form: TableForm, what: str) -> RefusedError:
    return RefusedError(
        f"SQL table of {form.schema.table}: {form.name} can't become what the source's table is now: {what}",
        f"drop the table {form.name} and start the sink again: it is then filled from the topics",
    )
