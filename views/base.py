"""The base of a view: a PostgreSQL database in which a sink of type sql keeps the tables that the view's query reads.

| in schema `watershed_views_<prefix>` | holds                                                                |
|--------------------------------------|----------------------------------------------------------------------|
| `views`                              | one row for each view: its state, schema and last error              |
| `changes`                            | rows of base tables that have changed, in the columns that find keys |
| `keys`                               | keys of view rows that are to be computed again                      |
| `folds`                              | states of keys that events were folded to: see views/folding.py      |
| `rejected`                           | keys of rows that the target does not take, with the reason          |
| `topics`, `published`                | what topics hold that are targets: see views/published.py            |
| `log_…`                              | logs of events: see views/event_log_base.py                          |
| sequence `versions`                  | each computation takes a number: a later one is newer                |

Triggers on the base tables fill `changes` in the transaction that changes the table, so no change is missed whatever
ends at which moment. A table that is created again has no triggers: then the view is filled again.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, LiteralString, NamedTuple, Self
from urllib.parse import unquote

import psycopg
from psycopg import sql

from cdc.config.sink_settings import SqlConfig
from cdc.model.errors import ConfigError, SinkError, WatershedError
from cdc.model.events import Column, TableId
from cdc.postgres.catalog import column_types
from views import statements
from views.connection import Key, Texts, base_error, connect, explained, is_of_rows, said, texts
from views.definition import ViewDefinition
from views.event_log_tables import existing_logs
from views.figures import Counts, read_counts
from views.folding import Folding
from views.statements import schema_of
from views.triggers import Triggers, brief_locks

CHANNEL: Final = "watershed_views"
CHANGES_PER_ROUND: Final = 5_000
FILL_ROWS: Final = 500  # that are read together


class ViewState(NamedTuple):
    """The stored state of a view, from earlier runs."""

    fingerprint: str
    state: str  # filling, filled, serving, failed, rebuild
    generation: int
    schema_version: int
    columns: list[list[Any]]  # names and types of the rows' columns


class Base:
    """A connection to the base of a view. Methods raise SinkError for a database that does not answer."""

    def __init__(self, config: SqlConfig, prefix: str, kept: Collection[TableId] = ()) -> None:
        """`kept`: the tables that the base's sink keeps by its configuration, whether it has prepared them or not."""
        self.kept = frozenset(kept)
        self.schema = schema_of(prefix)
        self._own_schema = config.beginning(prefix)
        self._config = config
        self._connection = connect(config)
        self._triggers = Triggers(self._connection, self.schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the view's lock at once: the server notices the end of the connection a moment later only."""
        with suppress(psycopg.Error):
            self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._connection.close()

    # ---- tables

    def places(self) -> dict[TableId, tuple[str, str]]:
        """Returns schema and name of each source table and event log in the base. Empty before there are any."""
        with explained():
            logs = existing_logs(self._connection, self.schema, self.kept)
            own = sql.Identifier(self._own_schema, "tables")
            is_there = self._connection.execute("SELECT to_regclass(%s)", (own.as_string(),)).fetchone()
            if is_there is None or is_there[0] is None:
                return logs
            rows = self._connection.execute(
                sql.SQL("SELECT source, shape FROM {} WHERE is_prepared").format(own)
            ).fetchall()
        return logs | {
            TableId(*map(unquote, source.split(".", 1))): tuple(json.loads(shape)["place"]) for source, shape in rows
        }

    def columns(self, places: Mapping[TableId, tuple[str, str]]) -> dict[TableId, dict[str, str]]:
        """The columns of the tables that are there, each with its number and type."""
        names = {table: sql.Identifier(*place).as_string() for table, place in places.items()}
        with explained():
            found = {table: self._connection.execute(statements.COLUMNS, (name,)) for table, name in names.items()}
            return {table: dict(cursor.fetchall()) for table, cursor in found.items()}

    def check_shape(self, definition: ViewDefinition) -> None:
        """Raises SinkError if a table was created again, and may lack its rows still, or if a column that the query
        reads was dropped, made again or given another type. No trigger notes the values that this takes or makes."""
        if not self.has_triggers(definition):
            hint = "nothing: the view is filled again when its sink has filled the table"
            raise SinkError(f"view {definition.name}: a table of its base was created again", hint)
        if definition.query.shape(self.columns(definition.places)) != definition.shape:
            hint = "nothing: its query is checked against the columns as they are, and the view is filled again"
            raise SinkError(f"view {definition.name}: columns of its base have changed", hint)

    def changing(self, functions: Sequence[str]) -> list[str]:
        """Returns the functions that may give another value at each call, or after a change that no trigger notes."""
        return self._named(statements.CHANGING, functions)

    def aggregates(self, functions: Sequence[str]) -> list[str]:
        """Returns the functions that are aggregates."""
        return self._named(statements.AGGREGATES, functions)

    def _named(self, statement: LiteralString, functions: Sequence[str]) -> list[str]:
        with explained():
            return [name for (name,) in self._connection.execute(statement, (list(functions),))]

    def missing_indexes(self, definition: ViewDefinition) -> list[tuple[TableId, tuple[str, ...]]]:
        """Columns by which rows are found and that no index begins with."""
        missing = []
        with explained():
            for table, columns in definition.searched_columns():
                place = sql.Identifier(*definition.places[table]).as_string()
                index = statements.INDEX_OF_FOLD if definition.fold else statements.INDEX
                searched = {"table": place, "columns": list(columns), "keys": len(definition.config.key)}
                if self._connection.execute(index, searched).fetchone() is None:
                    missing.append((table, columns))
        return missing

    def described(self, definition: ViewDefinition) -> tuple[Column, ...]:
        """The columns of the view's rows. Raises ConfigError for a query that PostgreSQL refuses."""
        try:
            cursor = self._connection.execute(definition.probe)
        except psycopg.errors.Error as error:
            if error.sqlstate is None:
                raise base_error(error) from error
            raise ConfigError(
                f"view {definition.name}: PostgreSQL refuses its sql: {said(error)}", "correct it"
            ) from None
        result = cursor.pgresult
        assert result is not None, "a SELECT has a result"
        types = [(result.ftype(number), result.fmod(number)) for number in range(result.nfields)]
        with explained():
            known = column_types(self._connection, types)
        names = [(result.fname(number) or b"").decode() for number in range(result.nfields)]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"view {definition.name}: two of its columns are named {double}", "rename one with AS")
        columns = tuple(
            replace(known[one], name=name, nullable=name not in definition.config.key)
            for name, one in zip(names, types, strict=True)
        )
        definition.require_exact_key(columns)
        return columns

    # ---- state

    def install(self) -> None:
        """Creates the schema and its tables where they are missing."""
        with explained(), self._connection.transaction():
            self._connection.execute("SELECT pg_advisory_xact_lock(hashtext('watershed_views'))")
            self._connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema)))
            self._connection.execute(sql.SQL(statements.TABLES).format(s=sql.Identifier(self.schema)))
            self._connection.execute(self._sql(statements.ADVANCE_VERSIONS), (self._name("versions"),))

    def lock(self, view: str) -> bool:
        """Takes the view's lock, and listens for changes, until the connection ends; returns False if another process
        has it."""
        with explained():
            row = self._connection.execute(
                "SELECT pg_try_advisory_lock(hashtext(%s), hashtext(%s))", (self.schema, view)
            ).fetchone()
            self._connection.execute(f"LISTEN {CHANNEL}")
        return bool(row and row[0])

    def state(self, view: str) -> ViewState | None:
        with explained():
            row = self._connection.execute(
                self._sql(
                    "SELECT fingerprint, state, generation, schema_version, columns FROM {s}.views WHERE name = %s"
                ),
                (view,),
            ).fetchone()
        return None if row is None else ViewState(*row)

    def note(self, view: str, state: ViewState) -> None:
        """Writes the view's state; `rebuild` stays until the view begins to be filled. An error stays, unless the view
        had stopped for it, until its cause is known to be gone."""
        with explained():
            self._connection.execute(self._sql(statements.NOTE_STATE), (view, *state[:4], json.dumps(state.columns)))

    def note_error(self, view: str, error: WatershedError, state: str | None = None) -> None:
        """Writes what a view has stopped for, or what it waits for, also where it has never begun."""
        with explained():
            self._connection.execute(
                self._sql(statements.NOTE_ERROR),
                {"view": view, "error": error.message, "next": error.hint, "state": state},
            )

    def forget_error(self, view: str) -> None:
        """Removes the error of a view that goes on; not that of a filled one, which waits to serve. Another connection
        does it: a filling only reads in this one."""
        with explained(), connect(self._config) as connection:
            connection.execute(self._sql(statements.FORGET_ERROR), (view,))

    def ask_rebuild(self, view: str) -> bool:
        """Has the view filled again by its job. False: the view has never run."""
        with explained():
            done = self._connection.execute(
                self._sql(
                    "UPDATE {s}.views SET state = 'rebuild', error = NULL, next = NULL, failing_since = NULL "
                    "WHERE name = %s"
                ),
                (view,),
            )
            self._connection.execute("SELECT pg_notify('watershed_views', '')")
        return bool(done.rowcount)

    def counts(self, view: str) -> Counts | None:
        return read_counts(self._connection, self.schema, view)

    def versions(self, count: int = 1) -> list[int]:
        """The next numbers of computations."""
        with explained():
            rows = self._connection.execute(
                "SELECT nextval(%s::regclass) FROM generate_series(1, %s)", (self._name("versions"), count)
            ).fetchall()
        return [number for (number,) in rows]

    # ---- triggers

    def has_triggers(self, definition: ViewDefinition) -> bool:
        """Returns whether every table of the view has its triggers: none was created again since."""
        with explained():
            return self._triggers.are_there(definition)

    def install_triggers(self, definition: ViewDefinition) -> None:
        """Notes every change of the view's tables from here on; what was noted before is forgotten, as the view is
        filled from rows that are read later."""
        with explained(), brief_locks(self._connection, f"view {definition.name}"):
            self._triggers.install(definition)
            for own in ("changes", "keys", "folds", "rejected"):
                self._connection.execute(
                    sql.SQL("DELETE FROM {} WHERE view = %s").format(sql.Identifier(self.schema, own)),
                    (definition.name,),
                )

    def remove(self, view: str) -> None:
        """Removes the view's triggers and everything that is noted of it."""
        with explained(), brief_locks(self._connection, f"view {view}"):
            self._triggers.remove(view)
            for own, column in statements.OWN_TABLES:
                place = sql.Identifier(self.schema, own), sql.Identifier(column)
                self._connection.execute(sql.SQL("DELETE FROM {} WHERE {} = %s").format(*place), (view,))

    # ---- rows

    def collect(self, definition: ViewDefinition, key_types: Sequence[str]) -> int:
        """Turns changes that were noted into keys of view rows: CHANGES_PER_ROUND at most, or all where the key is
        split or the view is a fold. Returns their number."""
        taken = sql.Identifier("pg_temp", "watershed_taken")
        with explained(), self._connection.transaction():
            # A row that changes in between would be joined as it is then, without the change that says how it was.
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._connection.execute(
                sql.SQL(
                    "CREATE TEMP TABLE IF NOT EXISTS watershed_taken (source text, image jsonb, xid xid8) "
                    "ON COMMIT DELETE ROWS"
                )
            )
            count = self._connection.execute(
                self._sql(
                    "WITH gone AS (DELETE FROM {s}.changes WHERE view = %s AND id IN (SELECT id FROM {s}.changes "
                    "WHERE view = %s ORDER BY id LIMIT %s) RETURNING source, image, xid) "
                    "INSERT INTO pg_temp.watershed_taken SELECT source, image, xid FROM gone"
                ),
                (definition.name, definition.name, None if definition.takes_all else CHANGES_PER_ROUND),
            ).rowcount
            if count and (folding := self._folding(definition)):
                folding.discard(sql.SQL("TABLE {}").format(taken), key_types)
            if count:
                for trace in definition.query.traces:
                    self._connection.execute(
                        sql.SQL(
                            "INSERT INTO {} (view, key) SELECT {}, k.key FROM ({}) k(key) ON CONFLICT DO NOTHING"
                        ).format(
                            sql.Identifier(self.schema, "keys"),
                            sql.Literal(definition.name),
                            definition.touched(trace, taken, key_types),
                        )
                    )
        return count

    def keys(self, definition: ViewDefinition, count_max: int) -> list[Key]:
        """Returns keys that are to be computed."""
        with explained():
            rows = self._connection.execute(
                self._sql("SELECT key FROM {s}.keys WHERE view = %s LIMIT %s"),
                (definition.name, count_max),
            ).fetchall()
        return [tuple(key) for (key,) in rows]

    def rows_of(
        self, definition: ViewDefinition, key_types: Sequence[str], keys: Sequence[Key]
    ) -> tuple[dict[Key, Texts | None], dict[Key, str]]:
        """Returns the row of each key as it is now, None where there is none; and keys whose rows the query can't
        compute, with the reason. Raises NotUniqueError."""
        found: dict[Key, list[Texts]] = {}
        failed: dict[Key, str] = {}
        with explained():
            try:
                found, failed = self._rows_of(definition, key_types, keys)
            except psycopg.Error as error:
                if not is_of_rows(error):
                    raise
                for key in keys:  # each alone, to know which
                    try:
                        row, reason = self._rows_of(definition, key_types, [key])
                        found, failed = found | row, failed | reason
                    except psycopg.Error as of_key:
                        if not is_of_rows(of_key):
                            raise
                        failed[key] = f"the query fails: {said(of_key)}"
        self.check_shape(definition)
        rows: dict[Key, Texts | None] = {}
        for key, some in found.items():
            if len(some) > 1:
                count = self._selected(definition.count(key_types), key)[0]
                raise definition.not_unique(key, count, self._selected(definition.examples(), key))
            rows[key] = some[0] if some else None
        return rows, failed

    def _rows_of(
        self, definition: ViewDefinition, key_types: Sequence[str], keys: Sequence[Key]
    ) -> tuple[dict[Key, list[Texts]], dict[Key, str]]:
        if folding := self._folding(definition):
            return folding.rows_of(key_types, keys)
        statement = definition.row(key_types).as_string().encode()
        cursors = []
        with self._connection.pipeline():
            for key in keys:
                cursor = psycopg.RawCursor(self._connection)
                cursors.append(cursor.execute(statement, list(key)))
        return {key: list(texts(cursor)) for key, cursor in zip(keys, cursors, strict=True)}, {}

    def _selected(self, statement: sql.Composed, key: Sequence[str]) -> list[str]:
        """Returns the first column of a statement for one key, as texts."""
        with explained():
            cursor = psycopg.RawCursor(self._connection).execute(statement.as_string().encode(), list(key))
            return [str(value) for value, *_ in cursor]

    def all_rows(self, definition: ViewDefinition) -> Iterator[list[Texts]]:
        """All rows as of one moment, some at a time. Raises NotUniqueError before the first."""
        if folding := self._folding(definition):
            with explained():
                yield from folding.all_rows(lambda: self.check_shape(definition))
            return
        with explained(), self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            double = self._connection.execute(definition.doubles()).fetchone()
            if double is not None:
                raise definition.not_unique(double[:-1], double[-1], self._selected(definition.examples(), double[:-1]))
            self._connection.execute(sql.SQL("DECLARE watershed_fill CURSOR FOR {}").format(definition.rows()))
            self.check_shape(definition)  # of the tables that the cursor has locked
            fetch = sql.SQL("FETCH FORWARD {} FROM watershed_fill").format(sql.Literal(FILL_ROWS))
            while rows := list(texts(self._connection.execute(fetch))):
                yield rows

    def written(self, view: str, keys: Sequence[Key], rejected: Mapping[Key, str]) -> None:
        """Forgets keys that were computed and written; those that the target did not take are kept with the reason."""
        with explained(), self._connection.transaction():
            listed = [json.dumps(list(key)) for key in keys]
            for own in ("keys", "rejected"):
                self._connection.execute(
                    sql.SQL("DELETE FROM {} WHERE view = %s AND key = ANY(%s::jsonb[])").format(
                        sql.Identifier(self.schema, own)
                    ),
                    (view, listed),
                )
            for key, reason in rejected.items():
                self._connection.execute(
                    self._sql("INSERT INTO {s}.rejected (view, key, reason) VALUES (%s, %s, %s)"),
                    (view, json.dumps(list(key)), reason),
                )
            self._connection.execute(self._sql("UPDATE {s}.views SET applied_at = now() WHERE name = %s"), (view,))
            self._connection.execute(self._sql(statements.FORGET_ERROR), (view,))

    def wait(self, seconds: float) -> None:
        """Waits until a change is noted, or this time has passed."""
        with explained():
            for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                return

    def _folding(self, definition: ViewDefinition) -> Folding | None:
        return Folding(self._connection, self.schema, definition, definition.fold) if definition.fold else None

    def _name(self, own: str) -> str:
        return sql.Identifier(self.schema, own).as_string()

    def _sql(self, text: LiteralString) -> sql.Composed:
        return sql.SQL(text).format(s=sql.Identifier(self.schema))
