"""The base of a view: a PostgreSQL database in which a sink of type sql keeps the tables that the view's query reads.

| in schema `watershed_views_<prefix>` | holds                                                                |
|--------------------------------------|----------------------------------------------------------------------|
| `views`                              | one row for each view: its state, schema and last error              |
| `changes`                            | rows of base tables that have changed, in the columns that find keys |
| `keys`                               | keys of view rows that are to be computed again                      |
| `folds`                              | states of keys that events were folded to: see folding.py            |
| `rejected`                           | keys of rows that the target does not take, with the reason          |
| `topics`, `published`                | what topics hold that are targets: see published.py                  |
| `log_…`                              | logs of events: see event_log_base.py                                |
| `minutes`                            | minutes that have passed: see clock.py                               |
| sequence `versions`                  | each computation takes a number: a later one is newer                |

Triggers on the base tables fill `changes` in the transaction that changes the table, so no change is missed whatever
ends at which moment. A table that is created again has no triggers: then the view is filled again.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, LiteralString
from urllib.parse import unquote

import psycopg
from psycopg import sql

from cdc.config.stores import SqlConfig
from cdc.model.errors import ConfigError
from cdc.model.events import Column, TableId
from cdc.model.findings import Finding
from cdc.postgres.catalog import column_types
from sinks.errors import SinkError
from watershed.views import statements
from watershed.views.connection import Key, Texts, base_error, error_text, explained, is_away, is_of_rows, texts
from watershed.views.definition import ViewDefinition
from watershed.views.dialects import advice
from watershed.views.event_log_tables import existing_logs
from watershed.views.folding import Folding
from watershed.views.states import States
from watershed.views.tracing import BaseColumn
from watershed.views.triggers import Triggers, brief_locks

CHANGES_PER_ROUND: Final = 5_000
FILL_ROWS: Final = 500  # that are read together
KEY_CHARS_SHOWN: Final = 200
KEY_CHECK_S: Final = 10.0  # how long `cdc view check` looks for rows with the same key
OTHER_KEY: Final = "choose a key whose columns are unique together, or group by it"
KEY_TOO_LONG: Final = f"the key has more than {statements.KEY_BYTES_MAX:,} bytes"


@contextmanager
def refused(definition: ViewDefinition) -> Iterator[None]:
    """Raises ConfigError for a query that PostgreSQL refuses, and SinkError for a database that does not answer."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"view {definition.name}: PostgreSQL refuses its sql: {error_text(error)}",
            "grant the user of its base SELECT on the tables, EXECUTE on the functions and TEMPORARY on the database",
        ) from None
    except psycopg.errors.Error as error:
        if is_away(error) or isinstance(error, psycopg.errors.UndefinedTable):  # dropped just now
            raise base_error(error) from error
        raise ConfigError(
            f"view {definition.name}: PostgreSQL refuses its sql: {error_text(error)}",
            advice(definition.config.sql) or "correct it",
        ) from None


def is_too_long(key: Key) -> bool:
    """Returns whether the key is longer than NOTE_KEYS allows."""
    return len(json.dumps(list(key), ensure_ascii=False).encode()) > statements.KEY_BYTES_MAX


def shortened(key: Key) -> Key:
    """Returns what is shown of a key that is too long."""
    return (json.dumps(list(key), ensure_ascii=False)[:KEY_CHARS_SHOWN],)


def not_deterministic(view: str, function: str) -> ConfigError:
    return ConfigError(
        f"view {view}: {function}() is not deterministic: it changes without a change of a row",
        "leave it out of the query",
    )


class Base(States):
    """A connection to the base of a view. Methods raise SinkError for a database that does not answer."""

    def __init__(self, config: SqlConfig, prefix: str, kept: Collection[TableId] = ()) -> None:
        """`kept`: the tables that the base's sink keeps by its configuration, whether it has prepared them or not."""
        super().__init__(config, prefix)
        self.kept = frozenset(kept)
        self._own_schema = config.beginning(prefix)
        self._triggers = Triggers(self._connection, self.schema)
        # Changes are taken in passes over the queue, each up to the last change at its beginning. A round begins behind
        # the one before, not at the deleted rows that PostgreSQL has not removed; lower numbers, of transactions that
        # committed later, are taken in the next pass.
        self._taken_to = self._pass_end = 0
        self._key_places: dict[Key, str] = {}  # of the keys that were read last

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

    def columns(self, places: Mapping[TableId, tuple[str, str]]) -> dict[TableId, dict[str, BaseColumn]]:
        """Returns the columns of the tables; a table that does not exist has none."""
        names = {table: sql.Identifier(*place).as_string() for table, place in places.items()}
        with explained():
            found = {table: self._connection.execute(statements.COLUMNS, (name,)) for table, name in names.items()}
            return {
                table: {column: BaseColumn(number, kind) for column, number, kind in cursor}
                for table, cursor in found.items()
            }

    def check_shape(self, definition: ViewDefinition) -> None:
        """Raises SinkError if a table was created again, and may lack its rows still, or if a column that the query
        reads was dropped, made again or given another type. No trigger notes the values that this takes or makes."""
        if not self.has_triggers(definition):
            hint = "nothing to do: the view is filled again when its sink has filled the table"
            raise SinkError(f"view {definition.name}: a table of its base was dropped and created again", hint)
        if definition.query.shape(self.columns(definition.places)) != definition.shape:
            hint = "nothing to do: its query is checked against the columns as they are, and the view is filled again"
            raise SinkError(f"view {definition.name}: columns of its base have changed", hint)

    def with_read_columns(self, definition: ViewDefinition) -> ViewDefinition:
        """Returns the definition with every column that its query reads, as PostgreSQL derives them from the query: it
        knows places that the parser does not, such as arguments of functions with a syntax of their own. Nothing is
        left in the base. Raises ConfigError for a query that PostgreSQL refuses, and for one that calls a function of
        somebody else, such as that of an operator, whose result may change although no row does."""
        with refused(definition), self._connection.transaction(force_rollback=True):
            self._connection.execute(sql.SQL(statements.STORED).format(definition.select))
            rows = self._connection.execute(statements.READ).fetchall()
            changing = self._connection.execute(statements.CALLED).fetchone()
        if changing is not None:
            raise not_deterministic(definition.name, changing[0])
        tables = {place: table for table, place in definition.places.items()}
        used = {table: set(names) for table, names in definition.query.used.items()}
        for schema, name, column in rows:
            used[tables[schema, name]].add(column)
        query = replace(definition.query, used={table: tuple(sorted(names)) for table, names in used.items()})
        return replace(definition, query=query)

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
        """Returns columns by which rows are searched and with which no index begins."""
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
        """Returns the columns of the view's rows. Raises ConfigError for a query that PostgreSQL rejects."""
        with refused(definition):
            cursor = self._connection.execute(definition.probe)
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
        # Notes of former triggers are all committed now. Writers do not wait while they are deleted.
        with explained(), self._connection.transaction():
            for own in ("changes", "keys", "folds", "rejected"):
                self._connection.execute(
                    sql.SQL("DELETE FROM {} WHERE view = %s").format(sql.Identifier(self.schema, own)),
                    (definition.name,),
                )

    def remove(self, view: str) -> None:
        """Removes the view's triggers and all records about the view."""
        with explained(), brief_locks(self._connection, f"view {view}"):
            self._triggers.remove(view)
            self._forget(view)

    # ---- rows

    def collect(self, definition: ViewDefinition, key_types: Sequence[str]) -> int:
        """Turns changes that were noted into keys of view rows: CHANGES_PER_ROUND at most, or all where the key is
        split or the view is a fold. Returns their number."""
        with explained():
            for _ in self._connection.notifies(timeout=0):
                pass  # these changes are read now; a view that never waits would keep the notifications
            try:
                return self._collect(definition, key_types)
            except psycopg.Error as error:
                if not is_of_rows(error):
                    raise
            # A value of a changed row fits no condition of the query, as 'n/a' in `name::int > 0`. Without them there
            # are more keys, and the row of each is computed or rejected alone. A function in FROM needs them.
            if not any(trace.functions for trace in definition.query.traces):
                with suppress(psycopg.DataError):
                    return self._collect(definition, key_types, has_conditions=False)
        # It fits no key either, so no row can be computed: the query fails until the row is corrected.
        self.ask_rebuild(definition.name)
        return 1

    def _collect(self, definition: ViewDefinition, key_types: Sequence[str], *, has_conditions: bool = True) -> int:
        taken = sql.Identifier("pg_temp", "watershed_taken")
        with self._connection.transaction():
            # A row that changes in between would be joined as it is then, without the change that says how it was.
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._connection.execute(statements.TAKEN)
            count, taken_to = self._take(definition)
            if count and (folding := self._folding(definition)):
                folding.discard(sql.SQL("TABLE {}").format(taken), key_types)
            for trace in definition.query.traces if count else ():
                self._connection.execute(
                    sql.SQL(statements.NOTE_KEYS).format(
                        s=sql.Identifier(self.schema),
                        view=sql.Literal(definition.name),
                        touched=definition.touched(trace, taken, key_types, has_conditions=has_conditions),
                        bytes_max=sql.Literal(statements.KEY_BYTES_MAX),
                        shown=sql.Literal(KEY_CHARS_SHOWN),
                        reason=sql.Literal(KEY_TOO_LONG),
                    )
                )
        self._taken_to = taken_to
        return count

    def _take(self, definition: ViewDefinition) -> tuple[int, int]:
        """Moves changes to the table of taken ones. Returns their number, and behind which the next round begins."""
        count_max = None if definition.takes_all else CHANGES_PER_ROUND
        after, count, last = self._taken_to, 0, 0
        self._connection.execute(statements.BY_INDEX)
        while True:
            named = {"view": definition.name, "count_max": count_max, "after": after}
            found = self._connection.execute(self._sql(statements.TAKE), named).fetchone()
            assert found is not None, "an aggregate has a row"
            count, last, newest = found
            if after == 0:
                self._pass_end = newest
            if count or after == 0:
                break
            after = 0
        self._connection.execute(statements.BY_ANY_PLAN)
        return count, last if count == count_max and last < self._pass_end else 0

    def keys(self, definition: ViewDefinition, count_max: int) -> list[Key]:
        """Returns keys that are to be computed, those first that have waited longest."""
        with explained(), self._connection.transaction():
            self._connection.execute(statements.BY_INDEX)
            rows = self._connection.execute(self._sql(statements.KEYS), (definition.name, count_max)).fetchall()
        self._key_places = {tuple(key): place for key, place in rows}
        return list(self._key_places)

    def rows_of(
        self, definition: ViewDefinition, key_types: Sequence[str], keys: Sequence[Key]
    ) -> tuple[dict[Key, Texts | None], dict[Key, str]]:
        """Returns the row of each key as it is now, None where there is none; and keys whose rows the query can't
        compute, or of which it has several, with the reason. Rows that one transaction of the source changed may be in
        the base at different moments, so two rows may have one key for a moment."""
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
                        failed[key] = f"the query fails: {error_text(of_key)}"
        self.check_shape(definition)
        rows: dict[Key, Texts | None] = {}
        for key, some in found.items():
            if len(some) > 1:
                count = self._selected(definition.count(key_types), key)[0]
                failed[key] = definition.not_unique(key, count, self._selected(definition.examples(), key))
            else:
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
        """Yields all rows as of one moment, in parts. Raises SinkError before the first if two have the same key."""
        if folding := self._folding(definition):
            with explained():
                yield from folding.all_rows(lambda: self.check_shape(definition))
            return
        with explained(), self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            if double := self._double(definition):
                raise SinkError(
                    f"view {definition.name}: {double}",
                    f"{OTHER_KEY}; the job tries again, and until then the target keeps the former rows",
                )
            self._connection.execute(sql.SQL("DECLARE watershed_fill CURSOR FOR {}").format(definition.rows()))
            self.check_shape(definition)  # of the tables that the cursor has locked
            fetch = sql.SQL("FETCH FORWARD {} FROM watershed_fill").format(sql.Literal(FILL_ROWS))
            while rows := list(texts(self._connection.execute(fetch))):
                yield rows

    def key_finding(self, definition: ViewDefinition, within_s: float = KEY_CHECK_S) -> Finding:
        """Says whether each row of the view has a key of its own; a query that takes longer than `within_s` is ended.
        A fold has one row for each key."""
        if definition.fold:
            return Finding("key", "ok", "each key is one row: it is folded")
        with explained(), self._connection.transaction():
            limit = sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(int(within_s * 1000)))
            self._connection.execute(limit)
            try:
                double = self._double(definition)
            except psycopg.errors.QueryCanceled:
                unknown = f"not compared: the rows of the view took longer than {within_s:g} s"
                return Finding(
                    "key", "warn", unknown, "nothing to do: `cdc view run` compares them when it fills the view"
                )
        if double:
            return Finding("key", "fail", double, OTHER_KEY)
        return Finding("key", "ok", "no two rows have the same key")

    def _double(self, definition: ViewDefinition) -> str:
        """Returns which rows have one key, empty if each has its own."""
        double = self._connection.execute(definition.doubles()).fetchone()
        if double is None:
            return ""
        return definition.not_unique(double[:-1], double[-1], self._selected(definition.examples(), double[:-1]))

    def written(self, view: str, keys: Sequence[Key], rejected: Mapping[Key, str]) -> None:
        """Forgets keys that were computed and written; those that the target did not take are kept with the reason."""
        with explained(), self._connection.transaction():
            listed = [json.dumps(list(key)) for key in keys]
            places = [self._key_places[key] for key in keys if key in self._key_places]
            self._connection.execute(self._sql(statements.FORGET_KEYS), (places, listed, view))
            self._connection.execute(
                self._sql("DELETE FROM {s}.rejected WHERE view = %s AND key = ANY(%s::jsonb[])"), (view, listed)
            )
            for key, reason in rejected.items():
                self._connection.execute(
                    self._sql("INSERT INTO {s}.rejected (view, key, reason) VALUES (%s, %s, %s)"),
                    (view, json.dumps(list(key)), reason),
                )
            self._connection.execute(self._sql("UPDATE {s}.views SET applied_at = now() WHERE name = %s"), (view,))
            self._connection.execute(self._sql(statements.FORGET_ERROR), (view,))

    def _folding(self, definition: ViewDefinition) -> Folding | None:
        return Folding(self._connection, self.schema, definition, definition.fold) if definition.fold else None
