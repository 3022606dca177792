"""The content of the SQL store, for comparison with the source: the readers' tables with the versions of their rows."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from sqlalchemy import Connection, Select, Text, cast, exists, literal, select, tuple_

from cdc.config.store_shapes import SqlShape, shape_of
from cdc.config.stores import SqlConfig
from cdc.model.events import TableId, TableSchema
from sinks.contents import Key, StoreContents, StoredEntry, batched
from sinks.contract import Json
from sinks.json_values import Unholdable
from sinks.retries import Retries
from sinks.sql.preparation import lost
from sinks.sql.server import LostTable, RefusedValue
from sinks.sql.sink import STAGE_ROWS_MAX, SqlSink, written
from sinks.sql.tables import TableForm

PAGE_ROWS: Final = 5_000
UNVERSIONED: Final = 0  # of a row that no sink's job has written

_DEFAULT_SHAPE: Final = SqlShape()


class SqlContents(StoreContents):
    """Implements sinks.contents.StoreContents."""

    def __init__(self, sink: SqlSink, section: SqlConfig) -> None:
        self._sink = sink
        self._server = sink.server
        self._section = section

    @classmethod
    def open(cls, section: SqlConfig, prefix: str, name: str) -> Self:
        return cls(SqlSink.open(section, prefix, Retries(attempt_count_max=4), name), section)

    def attach(self, schema: TableSchema) -> None:
        self._sink.attach(schema)

    def is_prepared(self, table: TableId) -> bool:
        page = _page(self._sink.form(table), []).limit(0)
        try:
            with self._server.reading() as connection:
                connection.execute(page)
        except LostTable:
            return False
        return True

    def is_partial(self, table: TableId) -> bool:  # noqa: ARG002 - the same for every table
        return False

    def uncompared(self, table: TableId) -> frozenset[str]:
        """Returns the columns whose types the configuration sets: the database may have changed their values."""
        return frozenset(shape_of(self._section.shapes, table, _DEFAULT_SHAPE).types)

    def rows(self, table: TableId) -> Iterator[tuple[Key, StoredEntry]]:
        """Yields the rows in order of the key, read in short transactions: a long one would block DDL."""
        form = self._sink.form(table)
        after: list[Any] = []
        while True:
            count = 0
            try:
                with self._server.reading() as connection:
                    for version, *values in connection.execute(_page(form, after)):
                        count += 1
                        after, row = values[: len(form.schema.key)], _row(form, values[len(form.schema.key) :])
                        yield {name: row[name] for name in form.schema.key}, _held(version, row)
            except LostTable:
                raise lost(table) from None
            if count < PAGE_ROWS:
                return

    def held(self, table: TableId, keys: Sequence[Key]) -> list[StoredEntry | None]:
        form = self._sink.form(table)
        found: list[StoredEntry | None] = [None] * len(keys)
        for part in batched(enumerate(keys), STAGE_ROWS_MAX):
            self._look(form, [packed for number, key in part for packed in self._packed(form, number, key, 0)], found)
        return found

    def remove(self, table: TableId, held: Sequence[tuple[Key, int]]) -> None:
        """Readers see the row until it is published again."""
        form = self._sink.form(table)
        for part in batched(enumerate(held), STAGE_ROWS_MAX):
            rows = [packed for number, (key, version) in part for packed in self._packed(form, number, key, version)]
            self._transaction(table, lambda connection, rows=rows: self._forget(connection, form, rows))

    def close(self) -> None:
        self._sink.close()

    def _packed(self, form: TableForm, number: int, key: Key, version: int) -> Iterator[Any]:
        """The key as a row of the stage; none for a key that no column can hold."""
        row: dict[str, Any] = {"number": number, "version": version, "is_deleted": False}
        try:
            row |= {form.at[name]: written(form, name, value) for name, value in key.items()}
        except Unholdable:
            return
        yield form.dialect.pack(row)[0]

    def _look(self, form: TableForm, packed: Sequence[Any], found: list[StoredEntry | None]) -> None:
        """Note what is held of these keys. Those that the database refuses as values of their columns have none."""
        stage, rows, versions = form.stage, form.rows, form.versions
        joined = stage.outerjoin(versions, form.same_key(versions, stage)).outerjoin(rows, form.same_key(rows, stage))
        is_live = form.key_of(rows)[0].is_not(None)
        wanted = select(stage.c.number, versions.c.version, is_live, *_shown(form)).select_from(joined)

        def look(connection: Connection) -> list[Any]:
            self._sink.stage(connection, form, packed)
            return list(connection.execute(wanted))

        try:
            answers = self._transaction(form.schema.table, look)
        except RefusedValue:
            if len(packed) > 1:
                middle = len(packed) // 2
                self._look(form, packed[:middle], found)
                self._look(form, packed[middle:], found)
            return
        for number, version, is_there, *values in answers:
            if is_there:
                found[number] = _held(version, _row(form, values))
            elif version is not None:
                found[number] = StoredEntry(version, None)

    def _forget(self, connection: Connection, form: TableForm, packed: Sequence[Any]) -> None:
        stage, versions = form.stage, form.versions
        self._sink.stage(connection, form, packed)
        self._sink.fence(connection, form)
        same = select(stage.c.number).where(form.same_key(stage, versions), stage.c.version == versions.c.version)
        connection.execute(versions.delete().where(exists(same.correlate(versions))))

    def _transaction(self, table: TableId, work: Any) -> Any:
        try:
            return self._server.transaction(work)
        except LostTable:
            raise lost(table) from None


def _page(form: TableForm, after: Sequence[Any]) -> Select[Any]:
    """Version, the key as it goes on, and columns of rows behind this key."""
    rows, versions = form.rows, form.versions
    keys = form.key_of(rows)
    # As text, which the driver can hold of any value; a database whose types mean little gives values as they are.
    as_text = form.dialect.alters_types
    marks = [cast(key, Text) if as_text else key for key in keys]
    joined = rows.outerjoin(versions, form.same_key(versions, rows))
    page = select(versions.c.version, *(mark.label(f"k{at}") for at, mark in enumerate(marks)), *_shown(form))
    page = page.select_from(joined).order_by(*keys).limit(PAGE_ROWS)
    if not after:
        return page
    reached = [
        cast(literal(value, Text), key.type) if as_text else literal(value, key.type)
        for value, key in zip(after, keys, strict=True)
    ]
    return page.where(tuple_(*keys) > tuple_(*reached))


def _shown(form: TableForm) -> list[Any]:
    return [column.shown(form.rows.c[name]).label(form.at[name]) for name, column in form.forms.items()]


def _row(form: TableForm, values: Sequence[Any]) -> dict[str, Json]:
    return {
        name: None if value is None else column.read(value)
        for (name, column), value in zip(form.forms.items(), values, strict=True)
    }


def _held(version: int | None, row: dict[str, Json]) -> StoredEntry:
    return StoredEntry(UNVERSIONED if version is None else version, row, is_edited=version is None)
