"""The sink that keeps rows in tables of an SQL database. Its tables are described in sinks/sql/tables.py.

Changes are staged in a temporary table, then merged in the same transaction. The transaction first locks the table's
**fence** (its row in `tables`), so that of two writers of one table one waits for the other's commit, and only then
compares versions and writes. A writer that is suspended at any point either holds the fence, and others wait; or does
not hold it, and later sees what they wrote. A writer whose schema is no longer the table's can't pass the fence.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import unquote

from sqlalchemy import ColumnElement, Connection, case, exists, func, or_, select, true
from sqlalchemy.schema import CreateTable

from cdc.config.store_shapes import SqlShape, shape_of
from cdc.config.stores import SqlConfig
from cdc.model.events import TableId, TableSchema
from sinks.contract import Change, Json, Outcome, Result, StoredRow, lost_writes
from sinks.errors import RefusedError, SinkError
from sinks.json_values import Unholdable
from sinks.retries import Retries
from sinks.schema_history import SchemaHistory
from sinks.slots import FIRST
from sinks.sql.dialects import Dialect, Row
from sinks.sql.preparation import Preparation, later, lost
from sinks.sql.server import STAGES, LostTable, RefusedStatement, RefusedValue, SqlServer
from sinks.sql.staged import StagedPieces
from sinks.sql.tables import OwnTables, TableForm, shape_text

# The limits of one transaction. A single row may be larger.
STAGE_ROWS_MAX: Final = 2_000
STAGE_BYTES_MAX: Final = 1024 * 1024
ROW_BYTES_MAX: Final = 500 * 1024 * 1024  # PostgreSQL takes no value of 1 GiB
PURGE_PAUSE_S: Final = 3600.0

_DEFAULT_SHAPE: Final = SqlShape()
_WRITTEN: Final = Result(Outcome.WRITTEN)
_STALE: Final = Result(Outcome.STALE)


T = TypeVar("T")


class _Staged(NamedTuple):
    """A change as a row of the stage."""

    number: int  # in the batch
    is_deleted: bool
    packed: Any


class SqlSink:
    """Implements sinks.contract.Sink."""

    def __init__(
        self,
        server: SqlServer,
        beginning: str,
        shapes: Mapping[str, SqlShape],
        tombstone_ttl_s: int,
        name: str = "sql",
        slot: str = FIRST,
    ) -> None:
        """`slot`: of the generation, see sinks.slots."""
        self.name = name
        self._server = server
        self._own = OwnTables(server.dialect, beginning, slot)
        self._preparation = Preparation(server, self._own, self._shape_text)
        self._shapes = shapes
        self._tombstone_ttl_s = tombstone_ttl_s
        self._forms: dict[TableId, TableForm] = {}
        self._purge_due_s = 0.0  # monotonic

    @classmethod
    def open(
        cls, config: SqlConfig, prefix: str, retries: Retries | None = None, name: str = "sql", slot: str = FIRST
    ) -> Self:
        """Raises SinkError for a database that does not answer or that the sink can't write."""
        server = SqlServer(config.url.get_secret_value(), retries or Retries())
        beginning = config.beginning(prefix)
        if len(beginning.encode()) > server.dialect.name_bytes_max:
            raise RefusedError(f"SQL store: the name {beginning!r} is too long", "set own_schema in the sink's section")
        try:
            server.transaction(lambda connection: connection.execute(select(1)))
        except SinkError:
            server.close()
            raise
        return cls(server, beginning, config.shapes, config.tombstone_ttl_s, name, slot)

    def generation(self) -> int | None:
        return self._preparation.generation()

    def begin_generation(self, generation: int) -> None:
        if self.generation() != generation:
            self._preparation.begin_generation(generation)

    def discard(self, table: TableId) -> None:
        self._preparation.discard(table)

    def reset_versions(self, table: TableId) -> None:
        self._preparation.discard(table)

    def save_position(self, text: str, before: str | None) -> None:
        self._preparation.save_position(text, before)

    def saved_position(self) -> str | None:
        return self._preparation.saved_position()

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        form = TableForm(self._server.dialect, self._own, schema, self._shape(schema.table))
        for other in self._forms.values():
            form.require_apart(other)
        self._preparation.prepare(SchemaHistory.of([*earlier, schema]), form)
        self._forms[schema.table] = form
        try:  # types of the configuration, from which no value may be cast
            self._server.transaction(lambda connection: self.stage(connection, form, []))
        except RefusedStatement as error:
            raise RefusedError(
                f"SQL table of {schema.table}: {error.message}", "correct types in the sink's shapes"
            ) from None

    def check(self, schema: TableSchema, others: Iterable[TableForm] = ()) -> TableForm:
        """Returns the form of the table that `prepare` would create, without creating it. Raises RefusedError if
        `prepare` would raise it. `others`: forms of the tables that it would create before.
        """
        form = TableForm(self._server.dialect, self._own, schema, self._shape(schema.table))
        for other in others:
            form.require_apart(other)
        self._preparation.check(form)
        return form

    def schemas(self, tables: Iterable[TableSchema]) -> list[str]:
        """The schemas that the sink needs for these tables, its own included."""
        dialect = self._server.dialect
        places = (dialect.place(self._shape(schema.table).table, schema.table) for schema in tables)
        return sorted({name for name in (self._own.schema, *(place[0] for place in places)) if name is not None})

    def attach(self, schema: TableSchema) -> None:
        self._forms[schema.table] = TableForm(self._server.dialect, self._own, schema, self._shape(schema.table))

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        results = [_STALE] * len(changes)
        # Changes of one table that lack the same columns are merged together.
        groups: dict[tuple[TableId, frozenset[str]], list[int]] = {}
        for number, change in enumerate(changes):
            groups.setdefault((change.table, change.unchanged), []).append(number)
        for (table, unchanged), numbers in groups.items():
            form = self.form(table)
            for rows in _parts(form, self._server.dialect, changes, numbers, results):
                self._merge(form, unchanged, rows, results)
        if self._server.take_loss():
            raise lost_writes(f"the SQL database at {self._server.name}")
        return results

    def sweep(self, table: TableId, floor: int) -> int:
        form = self.form(table)
        versions = form.versions
        is_below = versions.c.version < floor, versions.c.deleted_at.is_(None)

        def sweep(connection: Connection) -> int:
            self.fence(connection, form)
            below = select(versions.c.version).where(form.same_key(versions, form.rows), *is_below)
            connection.execute(form.rows.delete().where(exists(below.correlate(form.rows))))
            swept = versions.update().where(*is_below).values(version=floor, deleted_at=int(time.time()))
            return int(connection.execute(swept).rowcount)

        try:
            return self._of(table, lambda: self._server.transaction(sweep))
        except RefusedValue as error:
            raise RefusedError(
                f"SQL store: rows of {table} that no longer exist in the source can't be deleted ({error})",
                "alter the constraint that prevents it, such as a foreign key of another table, then restart the sink",
            ) from None

    def make_readable(self, tables: Collection[TableId]) -> None:
        """Does nothing for readers, who see each commit at once. Once an hour it purges the versions of rows of all
        tables that were deleted long ago.
        """
        del tables
        if time.monotonic() < self._purge_due_s:
            return
        self._purge_due_s = time.monotonic() + PURGE_PAUSE_S
        self.purge(self._forms, time.time() - self._tombstone_ttl_s)

    def purge(self, tables: Collection[TableId], before_s: float) -> None:
        """Removes the versions of rows that were deleted before `before_s` (seconds since 1970).
        sinks.search.tombstones explains why that is safe.
        """
        for table in tables:
            versions = self.form(table).versions
            old = versions.delete().where(versions.c.deleted_at < int(before_s))
            self._of(table, partial(self._server.transaction, partial(Connection.execute, statement=old)))

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        form = self.form(table)
        rows, versions = form.rows, form.versions
        shown = [column.shown(rows.c[name]).label(form.at[name]) for name, column in form.forms.items()]
        joined = rows.join(versions, form.same_key(versions, rows))
        try:
            with self._server.reading() as connection:
                for version, *values in connection.execute(select(versions.c.version, *shown).select_from(joined)):
                    row = {
                        name: None if value is None else column.read(value)
                        for (name, column), value in zip(form.forms.items(), values, strict=True)
                    }
                    yield StoredRow({name: row[name] for name in form.schema.key}, row, version)
        except LostTable:
            raise lost(table) from None

    def close(self) -> None:
        self._server.close()

    @property
    def server(self) -> SqlServer:
        return self._server

    @property
    def staged(self) -> StagedPieces:
        """The records that are staged for the generation."""
        return StagedPieces(self._server, self._own)

    def form(self, table: TableId) -> TableForm:
        """The table in the store. The table was prepared or attached."""
        form = self._forms.get(table)
        assert form is not None, f"{table} was not prepared"
        return form

    # ---- merging

    def _merge(
        self, form: TableForm, unchanged: frozenset[str], staged: Sequence[_Staged], results: list[Result]
    ) -> None:
        """Writes these changes. If the database refuses a value, it writes them in halves, down to the refused row."""
        packed = [one.packed for one in staged]
        has_deletes = any(one.is_deleted for one in staged)

        def merge(connection: Connection) -> set[int]:
            self.stage(connection, form, packed)
            self.fence(connection, form)
            return _merged(connection, form, unchanged, has_deletes)

        try:
            stale = self._of(form.schema.table, lambda: self._server.transaction(merge))
        except RefusedValue as error:
            if len(staged) == 1:
                results[staged[0].number] = Result(Outcome.REJECTED, self._reason(form, staged[0], str(error)))
                return
            middle = len(staged) // 2
            self._merge(form, unchanged, staged[:middle], results)
            self._merge(form, unchanged, staged[middle:], results)
            return
        for one in staged:
            results[one.number] = _STALE if one.number in stale else _WRITTEN

    def stage(self, connection: Connection, form: TableForm, packed: Sequence[Any]) -> None:
        """Put packed rows, and no others, into the table's stage."""
        made: set[str] = connection.info.setdefault(STAGES, set())
        if form.stage.name not in made:
            connection.execute(CreateTable(form.stage, if_not_exists=True))
            made.add(form.stage.name)
        if self._server.is_one_transaction:  # otherwise a commit has emptied it
            connection.exec_driver_sql(f"{self._server.dialect.empty} {form.stage.name}")
        self._server.dialect.fill(connection, form, packed)

    def fence(self, connection: Connection, form: TableForm) -> None:
        """Lock the table's row until the transaction ends. Raises SinkError where it has another schema or shape."""
        tables = self._own.tables
        is_it = tables.c.source == form.source
        passed = tables.update().where(
            is_it, tables.c.schema_version == form.schema.version, tables.c.shape == form.shape
        )
        if connection.execute(passed.values(batches=tables.c.batches + 1)).rowcount:
            return
        is_there = connection.execute(select(func.count()).select_from(tables).where(is_it)).scalar()
        raise later(form.schema.table) if is_there else lost(form.schema.table)

    def _reason(self, form: TableForm, staged: _Staged, condition: str) -> str:
        for name in form.forms:
            probe = partial(self._server.dialect.probe, form=form, packed=staged.packed, column=name)
            try:
                self._server.transaction(probe)
            except RefusedValue:
                return f"column {name}: its type {form.forms[name].ddl} refuses the value ({condition})"
        return f"the table refuses the row ({condition})"

    def _of(self, table: TableId, work: Callable[[], T]) -> T:
        try:
            return work()
        except LostTable:
            raise lost(table) from None

    def _shape(self, table: TableId) -> SqlShape:
        return shape_of(self._shapes, table, _DEFAULT_SHAPE)

    def _shape_text(self, source: str) -> str:
        table = TableId(*map(unquote, source.split(".", 1)))
        return shape_text(self._server.dialect, self._own, table, self._shape(table))


def _parts(
    form: TableForm, dialect: Dialect, changes: Sequence[Change], numbers: Sequence[int], results: list[Result]
) -> Iterator[list[_Staged]]:
    """Yields changes as rows of the stage, in parts for one transaction each. Rejects those that a column can't
    hold.
    """
    part: list[_Staged] = []
    room = STAGE_BYTES_MAX
    for number in numbers:
        change = changes[number]
        row: Row = {"number": number, "version": change.version, "is_deleted": change.row is None}
        try:
            for name, value in (change.key if change.row is None else change.row).items():
                row[form.at[name]] = None if value is None else written(form, name, value)
        except Unholdable as error:
            results[number] = Result(Outcome.REJECTED, str(error))
            continue
        packed, size_bytes = dialect.pack(row)
        if size_bytes > ROW_BYTES_MAX:
            results[number] = Result(Outcome.REJECTED, "the row is larger than the database takes in one statement")
            continue
        if part and (size_bytes > room or len(part) == STAGE_ROWS_MAX):
            yield part
            part, room = [], STAGE_BYTES_MAX
        part.append(_Staged(number, change.row is None, packed))
        room -= size_bytes
    if part:
        yield part


def written(form: TableForm, name: str, value: Json) -> Any:
    """A value of a record as the stage takes it. Raises Unholdable."""
    try:
        return form.forms[name].write(value)
    except Unholdable as error:
        raise Unholdable(f"column {name}: {error}") from None
    except (TypeError, ValueError, ArithmeticError):
        raise Unholdable(f"column {name}: not a value of type {form.forms[name].ddl}") from None


def _merged(connection: Connection, form: TableForm, unchanged: frozenset[str], has_deletes: bool) -> set[int]:
    """Merges the staged rows, and returns the numbers of changes that were stale. The caller holds the fence, so nobody
    else writes.
    """
    stage, versions, rows = form.stage, form.versions, form.rows
    held = select(versions.c.version).where(form.same_key(versions, stage)).correlate(stage)
    is_stale: list[ColumnElement[bool]] = [exists(held.where(versions.c.version >= stage.c.version))]
    if unchanged:
        is_stale.append(~exists(held.where(versions.c.deleted_at.is_(None))))
    if not form.has_exact_key:  # of several changes whose keys the database considers equal, the newest counts
        newest_first = func.row_number().over(partition_by=form.key_of(stage), order_by=stage.c.version.desc())
        ranked = select(stage.c.number, newest_first.label("rank")).subquery()
        is_stale.append(stage.c.number.in_(select(ranked.c.number).where(ranked.c.rank > 1)))
    stale = set(connection.execute(stage.delete().where(or_(*is_stale)).returning(stage.c.number)).scalars())
    insert = form.dialect.insert
    deleted_at = case((stage.c.is_deleted, int(time.time())))
    noted = insert(versions).from_select(
        versions.c.keys(), select(*form.key_of(stage), stage.c.version, deleted_at).where(true())
    )
    connection.execute(
        noted.on_conflict_do_update(
            index_elements=form.key_of(versions),
            set_={"version": noted.excluded.version, "deleted_at": noted.excluded.deleted_at},
        )
    )
    values = {name: stage.c[at] for name, at in form.at.items() if name not in unchanged}
    if unchanged:
        connection.execute(rows.update().values(values).where(form.same_key(rows, stage)))
        return stale
    if has_deletes:
        gone = select(stage.c.version).where(form.same_key(stage, rows), stage.c.is_deleted).correlate(rows)
        connection.execute(rows.delete().where(exists(gone)))
    put = insert(rows).from_select(list(values), select(*values.values()).where(~stage.c.is_deleted))
    connection.execute(
        put.on_conflict_do_update(index_elements=form.key_of(rows), set_={name: put.excluded[name] for name in values})
    )
    return stale
