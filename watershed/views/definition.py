"""A view as it runs: its query over the tables of its base, the statements that keep it, and the schema of its rows."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql
from sqlglot import exp

from cdc.config.views import ViewConfig
from cdc.model.errors import ConfigError
from cdc.model.events import Column, TableId
from watershed.views.fold import Fold
from watershed.views.statements import restored
from watershed.views.tracing import BaseColumn, Trace, TracedQuery, written

# numeric; and char(n), of which equal values of no certain length have different spaces at their ends
_EXACT_IF_LONG: Final = frozenset({1700, 1042})
# Types whose equal values are printed alike: boolean, bytea, "char", name, integers, text, oid, network addresses,
# varchar(n), dates and times, bit strings, uuid.
_EXACT: Final = frozenset(
    {16, 17, 18, 19, 20, 21, 23, 25, 26, 650, 774, 829, 869, 1043, 1082, 1083, 1114, 1184, 1560, 1562, 2950}
)
EXAMPLE_CHARS_MAX: Final = 200  # of a row in an error
SCHEMA_OF_VIEWS: Final = "views"  # a view's rows are stored as those of a table `views.<name>`
_FORM_OF_CHANGES: Final = 2  # a view whose triggers note changes in another form is filled again


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """One view over the tables of its base."""

    name: str
    config: ViewConfig
    query: TracedQuery
    places: Mapping[TableId, tuple[str, str]]  # source table → schema and name in the base
    columns: Mapping[TableId, Mapping[str, BaseColumn]]  # of the tables in the base
    fold: Fold | None = None  # of the query's rows

    @property
    def table(self) -> TableId:
        """The name under which the target holds the rows."""
        return TableId(SCHEMA_OF_VIEWS, self.name)

    @property
    def shape(self) -> str:
        """The columns that the query reads, with their types."""
        return self.query.shape(self.columns)

    @property
    def fingerprint(self) -> str:
        """A digest that changes with everything that determines the content of the rows."""
        places = {str(table): place for table, place in sorted(self.places.items())}
        parts = [self.config.sql, self.config.key, places, self.shape, _FORM_OF_CHANGES]
        parts += [self.fold.identity] if self.fold else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def select(self) -> sql.Composed:
        """The query as it was written, with the base's names of tables. Each keeps its alias, or its own name as its
        alias."""
        parts: list[sql.Composable] = []
        for piece in self.query.pieces:
            if isinstance(piece, str):
                parts.append(sql.SQL(piece))  # the configuration's text, without a value from outside
                continue
            parts.append(sql.Identifier(*self.places[piece.table]))
            if not piece.has_alias:
                parts.append(sql.SQL(" AS {}").format(sql.Identifier(piece.name)))
        return sql.Composed([*parts, sql.SQL("\n")])  # the text may end with a comment

    @property
    def probe(self) -> sql.Composed:
        """Has the columns of the view's rows, and no row."""
        if self.fold is None:
            return sql.SQL("SELECT v.* FROM ({}) v LIMIT 0").format(self.select)
        key, order = (
            sql.SQL(", ").join(sql.Identifier("v", name) for name in names)
            for names in (self.config.key, self.fold.config.order)
        )
        statement = sql.SQL("SELECT {}, r.* FROM ({}) v, {} ORDER BY {} LIMIT 0")
        return statement.format(key, self.select, self.fold.record(sql.SQL("'{}'")), order)

    @property
    def has_key(self) -> sql.Composed:
        """True for rows `v` that are part of the view: a key has no NULL."""
        return sql.SQL(" AND ").join(
            sql.SQL("v.{} IS NOT NULL").format(sql.Identifier(name)) for name in self.config.key
        )

    def rows(self) -> sql.Composed:
        """Selects all rows."""
        return sql.SQL("SELECT v.* FROM ({}) v WHERE {}").format(self.select, self.has_key)

    def row(self, key_types: Sequence[str]) -> sql.Composed:
        """Selects the rows of one key, two at most, whose columns are the parameters as texts. An equality with a
        constant reaches the scans of the tables, where a list of keys does not."""
        return sql.SQL("SELECT v.* FROM ({}) v WHERE {} LIMIT 2").format(self.select, self._has_same(key_types))

    def count(self, key_types: Sequence[str]) -> sql.Composed:
        """Counts the rows of one key."""
        return sql.SQL("SELECT count(*) FROM ({}) v WHERE {}").format(self.select, self._has_same(key_types))

    def _has_same(self, key_types: Sequence[str]) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("v.{} = CAST({} AS {})").format(sql.Identifier(name), sql.SQL(f"${number}"), sql.SQL(key_type))
            for number, (name, key_type) in enumerate(zip(self.config.key, key_types, strict=True), 1)
        )

    def doubles(self) -> sql.Composed:
        """Selects a key that several rows have, as texts, with their number."""
        keys = [sql.SQL("v.{}").format(sql.Identifier(name)) for name in self.config.key]
        return sql.SQL("SELECT {}, count(*)::text FROM ({}) v WHERE {} GROUP BY {} HAVING count(*) > 1 LIMIT 1").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(key) for key in keys),
            self.select,
            self.has_key,
            sql.SQL(", ").join(keys),
        )

    def examples(self) -> sql.Composed:
        """Selects two rows of one key, whose columns are the parameters as texts. Each is the beginning of its JSON."""
        same = sql.SQL(" AND ").join(
            sql.SQL("format('%s', v.{}) = {}").format(sql.Identifier(name), sql.SQL(f"${number}"))
            for number, name in enumerate(self.config.key, 1)
        )
        text = sql.SQL("left(row_to_json(v)::text, {})").format(sql.Literal(EXAMPLE_CHARS_MAX))
        return sql.SQL("SELECT {} FROM ({}) v WHERE {} ORDER BY 1 LIMIT 2").format(text, self.select, same)

    def not_unique(self, key: Sequence[object], count: str, examples: Sequence[str]) -> str:
        """Says which rows of the view have one key."""
        shown = ", ".join(f"{name} = {value}" for name, value in zip(self.config.key, key, strict=True))
        rows = f", such as {' and '.join(examples)}" if examples else ""
        return f"{count} rows have the key {shown}{rows}"

    @property
    def takes_all(self) -> bool:
        """True if all changes that are noted are taken together. A fold tests those that are left with each batch."""
        return self.has_split_key or self.fold is not None

    @property
    def has_split_key(self) -> bool:
        """True if columns of the key come from several occurrences. Then rows that changed together have to be joined
        with each other as they were: two rows that made a view row may both have changed since."""
        for one in self.query.traces:
            parts = (*one.keys, *(function.call for function in one.functions))
            tables = {column.table for part in parts for column in part.find_all(exp.Column)}
            if len(tables - {function.alias for function in one.functions}) > 1:
                return True
        return False

    def require_exact_key(self, columns: Sequence[Column]) -> None:
        """A row is found by the text of its key, so equal keys must have equal texts. Raises ConfigError."""
        for column in columns:
            kind = column.base_type_oid or column.type_oid
            has_length = max(column.type_modifier, column.base_type_modifier or -1) >= 0
            is_exact = column.type_kind == "e" or (has_length if kind in _EXACT_IF_LONG else kind in _EXACT)
            if column.name in self.config.key and not is_exact:
                raise ConfigError(
                    f"view {self.name}: column {column.name} of its key has type {column.type_name}, whose equal "
                    "values can have different texts, such as 1.0 and 1.00",
                    f"cast it in the sql: ({column.name})::bigint, ::numeric(20,2) or ::text",
                )

    def touched(
        self, trace: Trace, taken: sql.Composable, key_types: Sequence[str], *, has_conditions: bool = True
    ) -> sql.Composed:
        """Selects the keys, each a jsonb array of texts, that changed rows of one occurrence concern. `taken`: a table
        with columns source and image; for a split key it has every change that is noted. `has_conditions`: whether rows
        that do not meet the query's conditions are passed over, which spares keys."""
        is_split = self.has_split_key
        parts: list[sql.Composable] = [
            sql.SQL("({}) AS {}").format(self._images(trace.table, taken), _alias(trace.occurrence))
        ]
        for number, table, links in trace.steps:
            on = sql.SQL(" AND ").join(
                sql.SQL("{}.{} = {}.{}").format(
                    _alias(link.end.occurrence),
                    sql.Identifier(link.end.column),
                    _alias(link.start.occurrence),
                    sql.Identifier(link.start.column),
                )
                for link in links
            )
            rows: sql.Composable = sql.Identifier(*self.places[table])
            if is_split:
                columns = sql.SQL(", ").join(map(sql.Identifier, self.traced_columns(table)))
                rows = sql.SQL("(SELECT {} FROM {} UNION ALL ({}))").format(columns, rows, self._images(table, taken))
            parts.append(sql.SQL("JOIN {} AS {} ON {}").format(rows, _alias(number), on))
        for one in trace.functions:
            # A row of an outer join has no result of the function.
            made = sql.SQL("CROSS JOIN LATERAL (SELECT v FROM {} AS f(v) UNION ALL SELECT NULL) AS {}(value)")
            parts.append(made.format(_raw(one.call), sql.Identifier(one.alias)))
        numbered = list(enumerate(zip(trace.keys, key_types, strict=True)))
        return sql.SQL("SELECT DISTINCT jsonb_build_array({}) FROM (SELECT {} FROM {} WHERE {}) k WHERE {}").format(
            # The text that PostgreSQL prints, as for a column of the query: a cast gives another one for some types.
            sql.SQL(", ").join(sql.SQL("format('%s', k.k{})").format(sql.SQL(str(number))) for number, _ in numbered),
            sql.SQL(", ").join(
                sql.SQL("CAST({} AS {}) AS k{}").format(_raw(part), sql.SQL(key_type), sql.SQL(str(number)))
                for number, (part, key_type) in numbered
            ),
            sql.SQL(" ").join(parts),
            sql.SQL(" AND ").join(
                [sql.SQL("true"), *(sql.SQL("({})").format(_raw(one)) for one in trace.conditions if has_conditions)]
            ),
            sql.SQL(" AND ").join(sql.SQL("k.k{} IS NOT NULL").format(sql.SQL(str(number))) for number, _ in numbered),
        )

    def _images(self, table: TableId, taken: sql.Composable) -> sql.Composed:
        """Selects the changed rows of a table, in its traced columns. OFFSET keeps the casts away from rows of other
        tables, whose column of this name may have another type."""
        return sql.SQL("SELECT {} FROM {} AS c WHERE c.source = {} OFFSET 0").format(
            restored(self.types(table, self.traced_columns(table))), taken, sql.Literal(str(table))
        )

    def types(self, table: TableId, names: Sequence[str]) -> dict[str, str]:
        """Returns the SQL types of columns of a table in the base."""
        return {name: self.columns[table][name].type for name in names}

    def traced_columns(self, table: TableId) -> list[str]:
        """Returns the columns of the table by which keys are found."""
        found: set[str] = set(self.fold.order) if self.fold else set()
        for trace in self.query.traces:
            own = {f"t{number}" for number, named, _ in trace.steps if named == table}
            if trace.table == table:
                own.add(f"t{trace.occurrence}")
            ends = [end for _, _, links in trace.steps for link in links for end in link]
            found |= {end.column for end in ends if f"t{end.occurrence}" in own}
            parts = (*trace.keys, *trace.conditions)
            parts += tuple(one.call for one in trace.functions)
            found |= {one.name for part in parts for one in part.find_all(exp.Column) if one.table in own}
        return sorted(found)

    def searched_columns(self) -> list[tuple[TableId, tuple[str, ...]]]:
        """The columns by which other tables' changes find rows: each wants an index. Those of a fold are in order."""
        if self.fold:
            return [(self.fold.log, (*self.fold.key, *self.fold.order))]
        found = {
            (table, tuple(sorted({link.end.column for link in links})))
            for trace in self.query.traces
            for _, table, links in trace.steps
        }
        inner = {
            (
                trace.table,
                tuple(
                    sorted(
                        {link.start.column for link in trace.steps[0][2] if link.start.occurrence == trace.occurrence}
                    )
                ),
            )
            for trace in self.query.traces
            if trace.steps
        }
        return sorted(found | {(table, columns) for table, columns in inner if columns})


def _alias(occurrence: int) -> sql.Identifier:
    return sql.Identifier(f"t{occurrence}")


def _raw(tree: exp.Expression) -> sql.Composable:
    """SQL of the query over its traced columns; it contains the configuration's text and no value from outside."""
    return sql.Composed([sql.SQL(written(tree))])
