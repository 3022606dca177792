"""Folds of a view in its base: events are read in their order, states become rows, and are stored as snapshots.

A snapshot of a key is its state after all events up to the order `at`, as a database snapshot `read_at` showed them. A
computation begins with it and reads the later events only. It is deleted when a change at or before `at` is noted that
`read_at` does not show. Changes that are noted and not yet taken are tested in the transaction that reads the events,
the others were tested in the transaction that took them, so no such change is passed over.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from sinks.errors import SinkError
from watershed.views.connection import Key, Texts, error_text, is_of_rows, texts
from watershed.views.definition import ViewDefinition
from watershed.views.fold import NO_STATE, Fold, FoldError
from watershed.views.statements import restored

KEYS_TOGETHER: Final = 50  # whose events are read in one round trip
EVENTS_TOGETHER: Final = 200  # of each key
FILL_KEYS: Final = 500
_NEXT: Final = "correct the events or the function; until then the target keeps the former rows"
# Here and below each key is looked up, whatever statistics say of the snapshots.
_SNAPSHOTS: LiteralString = """
SELECT f.key, f.at::text, f.state
  FROM unnest(%s::jsonb[]) AS k(key)
 CROSS JOIN LATERAL (SELECT key, at, state, cluster FROM {folds} WHERE view = {view} AND key = k.key OFFSET 0) AS f
 WHERE f.cluster = (SELECT system_identifier FROM pg_control_system())
"""
# Numbers of transactions are those of one cluster: in a copy of the database they say nothing.
_KEEP: LiteralString = """
INSERT INTO {folds} (view, key, at, state, read_at, cluster)
SELECT {view}, k.key::jsonb, k.at::jsonb, k.state, pg_current_snapshot(), c.system_identifier
  FROM unnest(%s::text[], %s::text[], %s::text[]) AS k(key, at, state), pg_control_system() AS c
ON CONFLICT (view, key) DO UPDATE
   SET at = excluded.at, state = excluded.state, read_at = excluded.read_at, cluster = excluded.cluster
"""
_DISCARD: LiteralString = """
DELETE FROM {folds} WHERE ctid = ANY(ARRAY(
    SELECT f.ctid
      FROM (SELECT jsonb_build_array({keys}) AS key, {orders}, i.watershed_xid
              FROM (SELECT {columns}, c.xid AS watershed_xid FROM ({noted}) AS c OFFSET 0) AS i) AS e
     CROSS JOIN LATERAL (SELECT ctid, at, read_at FROM {folds} WHERE view = {view} AND key = e.key OFFSET 0) AS f
     WHERE NOT pg_visible_in_snapshot(e.watershed_xid, f.read_at)
       AND (({order}) > (SELECT {at} FROM jsonb_populate_record(NULL::{log}, f.at) AS a)) IS NOT TRUE))
"""
_EVENTS: LiteralString = """
SELECT {keys}row_to_json(v)::text, coalesce(({order}) = ({before}), false)
  FROM ({select}) AS v WHERE {where} WINDOW w AS ({partition}ORDER BY {order}) ORDER BY {sorted}
"""


class _State(NamedTuple):
    """The state of a key, and the order of the last event in it, if there was one."""

    state: str
    at: str | None


class Folding:
    """The fold of one view, in a connection to its base."""

    def __init__(
        self, connection: psycopg.Connection[Any], schema: str, definition: ViewDefinition, fold: Fold
    ) -> None:
        self._connection = connection
        self._definition = definition
        self._fold = fold
        self._traced = definition.traced_columns(fold.log)
        self._changes = sql.Identifier(schema, "changes")
        self._names = {
            "folds": sql.Identifier(schema, "folds"),
            "view": sql.Literal(definition.name),
            "log": sql.Identifier(*definition.places[fold.log]),
        }

    def discard(self, noted: sql.Composable, key_types: Sequence[str]) -> None:
        """Deletes the snapshots that changes invalidate. `noted`: a query of image and xid."""
        order = [sql.SQL("o{}").format(sql.SQL(str(number))) for number in range(len(self._fold.order))]
        self._connection.execute(
            sql.SQL(_DISCARD).format(
                **self._names,
                keys=_listed(
                    sql.SQL("format('%s', CAST(i.{} AS {}))").format(sql.Identifier(name), sql.SQL(key_type))
                    for name, key_type in zip(self._fold.key, key_types, strict=True)
                ),
                orders=_listed(
                    sql.SQL("i.{} AS {}").format(sql.Identifier(name), alias)
                    for name, alias in zip(self._fold.order, order, strict=True)
                ),
                columns=restored(self._definition.types(self._fold.log, self._traced)),
                noted=noted,
                order=_listed(sql.SQL("e.{}").format(alias) for alias in order),
                at=_columns("a", self._fold.order),
            )
        )

    def rows_of(self, key_types: Sequence[str], keys: Sequence[Key]) -> tuple[dict[Key, list[Texts]], dict[Key, str]]:
        """Returns the row of each key, if it has one, and the keys whose fold fails, with the reason."""
        known: dict[Key, _State] = {}
        failed: dict[Key, str] = {}
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            noted = sql.SQL("SELECT image, xid FROM {} WHERE view = {}").format(self._changes, self._names["view"])
            self.discard(noted, key_types)
            begun = self._snapshots(keys)
            for start in range(0, len(keys), KEYS_TOGETHER):
                some = keys[start : start + KEYS_TOGETHER]
                for key, events in zip(some, self._opened(key_types, some, begun), strict=True):
                    state, at = begun.get(key, _State(NO_STATE, None))
                    try:
                        state, last = self._fold.over(state, events)
                    except FoldError as error:
                        failed[key] = str(error)
                    else:
                        known[key] = _State(state, last or at)
                self._connection.execute("CLOSE ALL")
            self._keep({key: state for key, state in known.items() if state != begun.get(key)})
        rows, unfit = self._rows(known)
        return rows, failed | unfit

    def all_rows(self, check_shape: Callable[[], None]) -> Iterator[list[Texts]]:
        """Folds every key from its first event. Raises SinkError for a key whose fold fails."""
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self._connection.execute(_declared("watershed_fill", self._events(None)))
            check_shape()  # of the table that the cursor has locked
            known: dict[Key, _State] = {}
            for key, events in groupby(self._fetched("watershed_fill"), itemgetter(slice(-2))):
                try:
                    known[key] = _State(*self._fold.over(NO_STATE, (event[-2:] for event in events)))
                except FoldError as error:
                    raise self._failed(key, str(error)) from None
                if len(known) == FILL_KEYS:
                    yield self._filled(known)
                    known = {}
            yield self._filled(known)

    def _filled(self, known: Mapping[Key, _State]) -> list[Texts]:
        rows, failed = self._rows(known)
        for key, reason in failed.items():
            raise self._failed(key, reason)
        self._keep(known)
        return [row for some in rows.values() for row in some]

    def _failed(self, key: Key, reason: str) -> SinkError:
        shown = ", ".join(f"{name} = {value}" for name, value in zip(self._definition.config.key, key, strict=True))
        return SinkError(f"view {self._definition.name}: the key {shown} has no state: {reason}", _NEXT)

    # ---- events

    def _opened(
        self, key_types: Sequence[str], keys: Sequence[Key], begun: Mapping[Key, _State]
    ) -> list[Iterator[tuple[str, bool]]]:
        """The events of each key after those in its state, which are read when they are asked for, but for the first
        ones, which are read together."""
        first = []
        with self._connection.pipeline():
            for number, key in enumerate(keys):
                one = sql.SQL(" AND ").join(
                    sql.SQL("v.{} = CAST({} AS {})").format(sql.Identifier(name), sql.Literal(text), sql.SQL(key_type))
                    for name, text, key_type in zip(self._definition.config.key, key, key_types, strict=True)
                )
                at = begun[key].at if key in begun else None
                if at is not None:
                    one = sql.SQL("{} AND ({}) > (SELECT {} FROM jsonb_populate_record(NULL::{}, {}) AS a)").format(
                        one,
                        _columns("v", self._fold.config.order),
                        _columns("a", self._fold.order),
                        self._names["log"],
                        sql.Literal(at),
                    )
                name = f"watershed_fold_{number}"
                self._connection.execute(_declared(name, self._events(one)), prepare=False)
                first.append((name, self._connection.execute(_fetch(name), prepare=False)))
        return [self._fetched(name, cursor.fetchall()) for name, cursor in first]

    def _events(self, one: sql.Composable | None) -> sql.Composed:
        """Selects the events of one key; None: of all, each after the texts of its key."""
        key, order = self._definition.config.key, self._fold.config.order
        printed = [sql.SQL("format('%s', v.{}), ").format(sql.Identifier(name)) for name in key]
        keys = _columns("v", key)
        ordered = _columns("v", order)
        return sql.SQL(_EVENTS).format(
            keys=sql.SQL("") if one else sql.Composed(printed),
            order=ordered,
            before=_listed(sql.SQL("lag(v.{}) OVER w").format(sql.Identifier(name)) for name in order),
            select=self._definition.select,
            where=one or self._definition.has_key,
            partition=sql.SQL("") if one else sql.SQL("PARTITION BY {} ").format(keys),
            sorted=ordered if one else sql.SQL("{}, {}").format(keys, ordered),
        )

    def _fetched(self, name: str, rows: list[Any] | None = None) -> Iterator[Any]:
        """The rows of a cursor, `rows` first."""
        while rows is None or len(rows) == EVENTS_TOGETHER:
            yield from rows or ()
            rows = self._connection.execute(_fetch(name), prepare=False).fetchall()
        yield from rows

    # ---- states

    def _snapshots(self, keys: Sequence[Key]) -> dict[Key, _State]:
        found = self._connection.execute(sql.SQL(_SNAPSHOTS).format(**self._names), ([_text(key) for key in keys],))
        return {tuple(key): _State(state, at) for key, at, state in found}

    def _keep(self, known: Mapping[Key, _State]) -> None:
        """Stores snapshots as of the transaction."""
        kept = [(_text(key), at, state) for key, (state, at) in known.items() if at is not None]
        if kept:
            columns = [list(column) for column in zip(*kept, strict=True)]
            self._connection.execute(sql.SQL(_KEEP).format(**self._names), columns)

    def _rows(self, known: Mapping[Key, _State]) -> tuple[dict[Key, list[Texts]], dict[Key, str]]:
        """Converts states to the types of their columns. Returns the rows, and the states that can't be converted."""
        states = {key: one.state for key, one in known.items()}
        try:
            return self._typed(states), {}
        except psycopg.Error as error:
            if not is_of_rows(error):
                raise
        rows: dict[Key, list[Texts]] = {}
        failed: dict[Key, str] = {}
        for key, state in states.items():  # each alone, to know which
            try:
                rows |= self._typed({key: state})
            except psycopg.Error as error:
                if not is_of_rows(error):
                    raise
                failed[key] = f"the state does not fit the columns of the fold: {error_text(error)}"
        return rows, failed

    def _typed(self, states: Mapping[Key, str]) -> dict[Key, list[Texts]]:
        statement = sql.SQL("SELECT r.* FROM {}").format(self._fold.record(sql.SQL("$1::json"))).as_string().encode()
        rows: dict[Key, list[Texts]] = {key: [] for key in states}
        cursors = {}
        with self._connection.transaction(), self._connection.pipeline():
            for key, state in states.items():
                if state != NO_STATE:
                    cursors[key] = psycopg.RawCursor(self._connection).execute(statement, [state])
        for key, cursor in cursors.items():
            rows[key] = [(*key, *row) for row in texts(cursor)]
        return rows


def _declared(name: str, query: sql.Composable) -> sql.Composed:
    return sql.SQL("DECLARE {} NO SCROLL CURSOR FOR {}").format(sql.Identifier(name), query)


def _fetch(name: str) -> sql.Composed:
    return sql.SQL("FETCH FORWARD {} FROM {}").format(sql.Literal(EVENTS_TOGETHER), sql.Identifier(name))


def _columns(alias: str, names: Iterable[str]) -> sql.Composed:
    return _listed(sql.Identifier(alias, name) for name in names)


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _text(key: Key) -> str:
    return json.dumps(list(key))
