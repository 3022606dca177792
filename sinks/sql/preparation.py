"""Preparation of the SQL store's tables: they are created, changed with the source's schema, and dropped. Each step is
one transaction.

A transaction first locks the row of `sink`, so that of two jobs which prepare at the same time one waits; then the
table's row in `tables` (its fence), which a job that writes the table also locks.
"""

import json
from collections.abc import Callable, Collection
from typing import Any

import structlog
from sqlalchemy import Connection, Index, MetaData, Table, inspect, or_
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable, DropIndex, DropTable

from cdc.model.control import table_key
from cdc.model.events import TableId
from sinks.contract import Json, lost_writes
from sinks.errors import RefusedError, SinkError
from sinks.json_values import Unholdable
from sinks.schema_history import SchemaHistory
from sinks.sql.server import LostTable, RefusedStatement, RefusedValue, SqlServer
from sinks.sql.tables import INDEX_BEGINNING, OwnTables, QualifiedName, TableForm

log = structlog.get_logger(__name__)


class Preparation:
    """Prepares the tables of one sink."""

    def __init__(self, server: SqlServer, own: OwnTables, shape: Callable[[str], str]) -> None:
        """`shape`: returns the configured shape for a table's key in `tables`."""
        self._server = server
        self._own = own
        self._shape = shape

    def generation(self) -> int | None:
        """Returns the generation that the store holds; None if it holds none, lacks a table that was prepared, or has a
        table of another shape than configured.
        """

        def read(connection: Connection) -> int | None:
            if not self._is_there(connection, (self._own.schema, self._own.tables.name)):
                return None
            held = connection.execute(self._own.sink.select()).mappings().one_or_none()
            for row in connection.execute(self._own.tables.select()).mappings():
                if not row["is_prepared"]:
                    continue
                if row["shape"] != self._shape(row["source"]):
                    log.warning("filling the SQL store again: the shape of a table has changed", table=row["source"])
                    return None
                if not all(self._is_there(connection, place) for place in self._places(row)):
                    return None
            return None if held is None else int(held["generation"])

        try:
            return self._server.transaction(read)
        except LostTable:  # dropped just now
            return None

    def begin_generation(self, generation: int) -> None:
        """Records the generation; no table is prepared in it yet."""
        own = self._own

        def begin(connection: Connection) -> None:
            if own.schema is not None:
                connection.execute(CreateSchema(own.schema, if_not_exists=True))
            connection.execute(DropTable(own.sink, if_exists=True))  # that of an earlier release lacks columns
            connection.execute(CreateTable(own.sink))
            connection.execute(CreateTable(own.tables, if_not_exists=True))
            connection.execute(own.sink.insert(), {"id": 1, "generation": generation})
            connection.execute(own.tables.update().values(is_prepared=False))

        try:
            self._make(begin)
        except RefusedValue as error:
            raise SinkError(
                f"SQL store: the sink's own tables could not be created ({error})",
                "nothing to do: the sink restarts; stop a second job, if there is one",
            ) from None

    def save_position(self, text: str, before: str | None) -> None:
        """Implements sinks.contract.Sink.save_position. The row is written behind all rows of the tables that were
        committed before, so a database that lost these lost the note, too. Where another server or file may have taken
        the place of the one that has the rows, nothing is written: it may have the note before, and not these rows."""
        sink, refusal = self._own.sink, lost_writes(f"the SQL database at {self._server.name}")

        def write(connection: Connection) -> bool:
            self._server.observe(connection)
            if self._server.take_loss():  # also one that this call is repeated after
                raise refusal
            changed = sink.update().values(note=text)
            if before is not None:
                # The same text again: the answer to the first attempt was lost.
                changed = changed.where(or_(sink.c.note == before, sink.c.note == text))
            return connection.execute(changed).rowcount == 1

        try:
            is_written = self._server.transaction(write)
        except LostTable:
            is_written = False
        if not is_written:
            raise refusal

    def saved_position(self) -> str | None:
        """Implements sinks.contract.Sink.saved_position."""

        def read(connection: Connection) -> str | None:
            self._server.observe(connection)
            held = connection.execute(self._own.sink.select()).first()
            return None if held is None else held.note

        try:
            return self._server.transaction(read)
        except LostTable:
            return None

    def discard(self, table: TableId) -> None:
        """Drops the table and its versions if the sink created it."""

        def drop(connection: Connection) -> None:
            self._lock(connection, table)
            row = self._row(connection, table_key(table))
            if row is not None:
                self._drop(connection, row)

        self._run(drop, table)

    def prepare(self, schema_history: SchemaHistory, form: TableForm) -> None:
        """Implements sinks.contract.Sink.prepare."""
        table = schema_history.newest.table

        def prepare(connection: Connection) -> None:
            self._lock(connection, table)
            row = self._row(connection, form.source)
            if row is not None:
                are_there = [self._is_there(connection, place) for place in self._places(row)]
                if row["is_prepared"] and not all(are_there):
                    raise lost(table)
                if row["is_prepared"] and row["shape"] != form.shape:
                    raise later(table)
                if row["shape"] != form.shape or not all(are_there) or self._lacks_values(schema_history, form, row):
                    self._drop(connection, row)
                    row = None
            if row is None:
                self._create(connection, form)
            else:
                self._evolve(connection, schema_history, form, row)
            self._index(connection, form)

        self._run(prepare, table)

    def check(self, form: TableForm) -> None:
        """Raises RefusedError for types that the database does not have, and for a table that the sink did not
        create.
        """

        def check(connection: Connection) -> None:
            if self._server.dialect.alters_types:  # otherwise any type is accepted
                nulls = ", ".join(f"CAST(NULL AS {column.ddl})" for column in form.forms.values())
                connection.exec_driver_sql(f"SELECT {nulls}")
            is_known = self._is_there(connection, (self._own.schema, self._own.tables.name))
            row = self._row(connection, form.source) if is_known else None
            if row is None or form.place not in self._places(row):
                self._check_free(connection, form)

        self._run(check, form.schema.table)

    def _make(self, work: Callable[[Connection], None]) -> None:
        """Runs `work` in a transaction, and a second time after a duplicate key: another job created the same schema or
        table at the same moment.
        """
        try:
            self._server.transaction(work)
        except RefusedValue:
            self._server.transaction(work)

    def _run(self, work: Callable[[Connection], None], table: TableId) -> None:
        try:
            self._make(work)
        except (RefusedStatement, RefusedValue) as error:
            reason = error.message if isinstance(error, SinkError) else f"its rows do not fit ({error})"
            raise RefusedError(
                f"SQL table of {table}: {reason}",
                "correct types and indexes in the sink's shapes, drop objects that depend on the table, or add the "
                "table to the sink's exclude_tables; then restart the sink",
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

    def _places(self, row: Any) -> list[QualifiedName]:
        """Returns the places of the readers' table and of the table of versions."""
        schema, name = json.loads(row["shape"])["place"]
        return [(schema, name), (self._own.schema, self._own.versions_name(row["source"]))]

    def _is_there(self, connection: Connection, place: QualifiedName) -> bool:
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
                f"SQL table of {form.schema.table}: {form.name} already exists, and the sink did not create it for "
                "this table",
                "correct topics.prefix if it was changed or mistyped: the table may be that of another prefix, or of "
                "another program; otherwise set another table in the sink's shapes, or rename that one",
            )

    def _described(self, form: TableForm) -> dict[str, Any]:
        return {
            "is_prepared": True,
            "schema_version": form.schema.version,
            "shape": form.shape,
            "columns": json.dumps(form.columns),
            "key_columns": json.dumps(form.schema.key),
        }

    def _lacks_values(self, schema_history: SchemaHistory, form: TableForm, row: Any) -> bool:
        """Says of a table of an earlier generation whether a new column has a value in its rows. They will be written
        again with the versions that they have, which changes nothing in a row that is there."""
        held = dict(json.loads(row["columns"]))
        return not row["is_prepared"] and any(
            name in schema_history.ever_filled and name not in held for name in form.forms
        )

    def _evolve(self, connection: Connection, schema_history: SchemaHistory, form: TableForm, row: Any) -> None:
        """Changes the table's columns. A column that stays the same keeps its values; others are dropped and added
        again, with the constant that rows have which did not change since, or as NULL.
        """
        table, version = schema_history.newest.table, row["schema_version"]
        if row["is_prepared"] and version > schema_history.newest.version:
            raise later(table)
        if json.loads(row["key_columns"]) != list(form.schema.key):
            raise _other_key(form, "it has another key")
        # Versions that an earlier generation recorded may be those of other schemas.
        carried: Collection[str] = schema_history.carried(version) if row["is_prepared"] else list(form.forms)
        filled = schema_history.filled(version) if row["is_prepared"] else {}
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
                self._add(connection, rows, name, form, filled.get(name))
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

    def _add(self, connection: Connection, rows: str, name: str, form: TableForm, value: Json) -> None:
        """Adds a column, with this value of a record in all rows. It is a default for this moment, with which databases
        add a column without writing the rows."""
        column, held = connection.dialect.identifier_preparer.quote(name), form.forms[name]
        statement = f"ALTER TABLE {rows} ADD COLUMN {column} {held.ddl}"
        if value is None:
            connection.exec_driver_sql(statement)
            return
        try:
            literal = self._server.dialect.literal(connection, held, held.write(value))
        except Unholdable as error:
            raise RefusedError(f"its new column {name} can't have its default: {error}") from None
        # The driver looks for parameters in the text.
        escaped = literal.replace("%", "%%") if connection.dialect.paramstyle in ("format", "pyformat") else literal
        connection.exec_driver_sql(f"{statement} DEFAULT {escaped}")
        # Elsewhere it stays, and does nothing: rows are written with all columns.
        if self._server.dialect.alters_types:
            connection.exec_driver_sql(f"ALTER TABLE {rows} ALTER COLUMN {column} DROP DEFAULT")

    def _fits(self, held: str, wanted: str) -> bool:
        """Returns whether a column's type can be changed to the other one in place."""
        return held == wanted or self._server.dialect.alters_types

    def _widen(self, connection: Connection, table: str, column: str, ddl: str) -> None:
        """Changes a column's type through text, so that a real becomes the double with the same digits."""
        connection.exec_driver_sql(
            f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {ddl} USING CAST(CAST({column} AS text) AS {ddl})"
        )

    def _index(self, connection: Connection, form: TableForm) -> None:
        """Creates the configured indexes, and drops indexes of an earlier configuration."""
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
        "nothing to do: the sink restarts and fills the store again from the topics",
    )


def later(table: TableId) -> SinkError:
    return SinkError(
        f"SQL store: the table of {table} was prepared with a later schema or another shape",
        "nothing to do: the sink restarts and reads the newest schema; stop a second job, if there is one",
    )


def _other_key(form: TableForm, what: str) -> RefusedError:
    return RefusedError(
        f"SQL table of {form.schema.table}: {form.name} can't be changed to the source table's present form: {what}",
        f"undo the change of the sink's shapes, if there was one; otherwise rename the table {form.name}, or drop it "
        "if nothing reads it, and restart the sink: it then fills a new table from the topics",
    )
