"""Traces each table of a view's query to the view's key: from a row that changed to the view rows that it may change.

A query's base tables are its **occurrences**: a table that is used twice occurs twice. Two occurrences are linked where
the query demands that a column of one equals a column of the other: in WHERE, in the ON of an inner join, between a
subquery and the query around it. The links that lead from an occurrence to the columns of the key say which keys a row
of it concerns. Links have a direction: an outer join's ON says nothing about the rows of its left side, and a
correlated subquery says nothing about the rows around it, so these lead from the inside to the outside only.

More keys than necessary may be found, never fewer: conditions other than equalities are passed over. An equality
outside of a subquery that chooses among its rows (LIMIT, DISTINCT ON, a window function) is no link either: a row that
does not meet it may decide which other rows are chosen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from views.demands import conjuncts, equalities, memberships
from views.dialects import syntax_advice
from views.parsing import Named, base_tables, parsed, pieces, qualified, table_of
from views.refusals import DIALECT, SETS, called, is_chosen, refusals
from views.written import as_written

_REWRITTEN_EXACTLY: Final = (exp.And, exp.Or, exp.Cast, exp.Anonymous)  # of the calls that the parser writes again
NEXT: Final = "see the documentation of views for what a query may contain"


class Place(NamedTuple):
    """A column of an occurrence."""

    occurrence: int
    column: str


class BaseColumn(NamedTuple):
    """A column of a table in the base. A column that is dropped and created again has another number."""

    number: int
    type: str  # as SQL

    def __str__(self) -> str:
        return f"{self.number} {self.type}"


class Link(NamedTuple):
    """An equality, directed from a column of one occurrence to that of another."""

    start: Place
    end: Place


@dataclass(frozen=True, slots=True)
class Function:
    """A function in FROM, over columns as those of a key. Its result is column `value` of its alias."""

    alias: str
    call: exp.Expression


@dataclass(frozen=True, slots=True)
class Trace:
    """The keys that rows of one occurrence concern: a join of the changed rows with other tables, in order."""

    table: TableId
    occurrence: int
    # Each step joins an occurrence of a table to those before it: end = start for each of its links.
    steps: tuple[tuple[int, TableId, tuple[Link, ...]], ...]
    keys: tuple[exp.Expression, ...]  # over columns that are named `t<occurrence>.<column>`
    conditions: tuple[exp.Expression, ...]  # over the same columns: rows that do not meet them concern no key
    functions: tuple[Function, ...] = ()  # in FROM, that make columns of the key


@dataclass(frozen=True, slots=True)
class TracedQuery:
    """A query with its traces."""

    pieces: tuple[str | Named, ...]  # the text as it was written, and the tables that it names
    tables: tuple[TableId, ...]
    used: Mapping[TableId, tuple[str, ...]]  # the columns of each table that the query reads
    has_star: bool  # it names columns by *
    functions: frozenset[str]  # that it calls by name
    key_functions: frozenset[str]  # of these, those that compute its key
    traces: tuple[Trace, ...]

    def shape(self, columns: Mapping[TableId, Mapping[str, BaseColumn]]) -> str:
        """Changes whenever a column that the query reads is dropped, made again or given another type; where it has a
        star, also when one is added."""
        return "; ".join(
            f"{table}.{name} {columns[table].get(name)}"
            for table, names in sorted(self.used.items())
            for name in (columns[table] if self.has_star else names)
        )


@dataclass(slots=True)
class _Found:
    """The findings of the walk through the scopes."""

    occurrences: dict[tuple[int, str], int] = field(default_factory=dict)  # scope's id, alias → number
    tables: list[TableId] = field(default_factory=list)  # by number
    used: dict[TableId, set[str]] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)


def trace(name: str, text: str, key: Sequence[str], columns: Mapping[TableId, Sequence[str]]) -> TracedQuery:
    """`columns`: of the tables that the query may read. Raises ConfigError, naming the view and what is wrong with it:
    text that is not one SELECT, a table or column that is not there, a construct whose result depends on more rows
    than equalities say, a table whose rows can't be traced to the key."""
    try:
        return _traced(f"view {name}", text, key, columns)
    except ConfigError as error:
        raise ConfigError(error.message, syntax_advice(text) or error.hint) from None


def _traced(where: str, text: str, key: Sequence[str], columns: Mapping[TableId, Sequence[str]]) -> TracedQuery:
    tree = parsed(where, text)
    root = qualified(where, tree, columns, text)
    for problem in refusals(root):
        raise ConfigError(f"{where}: {problem}", NEXT)
    found = _Found()
    _walk(root, found)
    if len(found.tables) != len(base_tables(tree)):
        raise ConfigError(f"{where}: its sql joins tables in a way that can't be traced to a key", NEXT)
    output = [projection.alias_or_name for projection in root.expression.expressions]
    if missing := next((column for column in key if column not in output), None):
        raise ConfigError(
            f"{where}: its key has column {missing}, which the query does not return",
            f"it returns {', '.join(output)}",
        )
    parts = _Key(where, text, root, found)
    keys = [parts.part(column) for column in key]
    needed = _owners([*keys, *(one.call for one in parts.functions)])
    conditions = _conditions(needed, root, found)
    traces = tuple(
        Trace(table, number, _steps(where, number, needed, found), tuple(keys), tuple(conditions), (*parts.functions,))
        for number, table in enumerate(found.tables)
    )
    return TracedQuery(
        pieces(text, tree),
        tuple(dict.fromkeys(found.tables)),
        {table: tuple(sorted(used)) for table, used in found.used.items()},
        any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)),
        frozenset(called(tree)),
        frozenset(name for part in keys for name in called(part)),
        traces,
    )


# ---- links


def _walk(scope: Scope, found: _Found) -> None:
    for child in scope.traverse():
        for alias, source in child.sources.items():
            if isinstance(source, exp.Table) and (id(child), alias) not in found.occurrences:
                # A correlated subquery lists the tables around it, too.
                if any(alias in outer.sources and outer.sources[alias] is source for outer in _around(child)):
                    continue
                found.occurrences[id(child), alias] = len(found.tables)
                found.tables.append(table_of(source))
                found.used.setdefault(table_of(source), set())
    for child in scope.traverse():
        for column in child.columns:
            place = _place(column, child, found)
            if place is not None:
                found.used[found.tables[place.occurrence]].add(place.column)
        found.links += _links(child, found)


def _around(scope: Scope) -> Iterator[Scope]:
    outer = scope.parent
    while outer is not None:
        yield outer
        outer = outer.parent


def _owner(column: exp.Column, scope: Scope) -> Scope | None:
    """The innermost scope whose FROM has the column's table."""
    for one in (scope, *_around(scope)):
        if column.table in one.selected_sources:
            return one
    return None


def _place(column: exp.Expr, scope: Scope, found: _Found) -> Place | None:
    """The base table's column that a column is, through derived tables; None: it is computed."""
    if not isinstance(column, exp.Column):
        return None
    owner = _owner(column, scope)
    if owner is None:
        return None
    source = owner.sources[column.table]
    if isinstance(source, exp.Table):
        return Place(found.occurrences[id(owner), column.table], column.name)
    if not isinstance(source, Scope):
        return None
    projection = _projection(column.name, source)
    return None if projection is None else _place(projection.unalias(), source, found)


def _projection(name: str, source: Scope) -> exp.Expression | None:
    """The expression that a derived table's column is; None where a row depends on rows with other values of it."""
    select = source.expression
    if not isinstance(select, exp.Select):
        return None
    for projection in select.expressions:
        if projection.alias_or_name == name:
            return None if is_chosen(select, projection) else projection
    return None


def _links(scope: Scope, found: _Found) -> Iterator[Link]:
    select = scope.expression
    if not isinstance(select, exp.Select):
        return
    where = select.args.get("where")
    for left, right in equalities(where.this if where else None):
        yield from _linked(left, right, scope, found, None)
    for columns, subquery in memberships(where.this if where else None):
        inner = next((one for one in scope.subquery_scopes if one.expression is subquery), None)
        if inner is None or len(columns) != len(subquery.expressions):
            continue
        for column, projection in zip(columns, subquery.expressions, strict=True):
            start = None if is_chosen(subquery, projection) else _place(projection.unalias(), inner, found)
            end = _place(column, scope, found)
            if start and end:
                yield Link(start, end)
    for join in select.args.get("joins") or ():
        nullable = join.alias_or_name if join.side == "LEFT" else None
        for left, right in equalities(join.args.get("on")):
            yield from _linked(left, right, scope, found, nullable)


def _linked(
    left: exp.Expression, right: exp.Expression, scope: Scope, found: _Found, nullable: str | None
) -> Iterator[Link]:
    """`nullable`: the alias that an outer join adds, if the equality is of its ON."""
    for one, other in ((left, right), (right, left)):
        start, end = _place(one, scope, found), _place(other, scope, found)
        if start is None or end is None or start.occurrence == end.occurrence:
            continue
        assert isinstance(one, exp.Column)
        assert isinstance(other, exp.Column)
        starts_here, ends_here = _owner(one, scope) is scope, _owner(other, scope) is scope
        if not starts_here or (nullable is not None and one.table != nullable):
            continue  # from the outside to the inside
        if nullable is not None and ends_here and other.table == nullable:
            continue
        yield Link(start, end)


# ---- from an occurrence to the key


class _Key:
    """The key's columns over columns of base tables, which are named `t<occurrence>.<column>`, and over functions in
    FROM."""

    def __init__(self, where: str, text: str, root: Scope, found: _Found) -> None:
        self._where = where
        self._text = text
        self._root = root
        self._found = found
        self.functions: list[Function] = []
        self._aliases: dict[int, str] = {}  # by the function's call

    def part(self, name: str) -> exp.Expression:
        """Raises ConfigError for a column that is not made of one table's columns."""
        projection = next(one for one in self._root.expression.expressions if one.alias_or_name == name)
        if what := is_chosen(self._root.expression, projection):
            raise ConfigError(
                f"{self._where}: a row depends on rows of other keys, because of {what}",
                "have DISTINCT ON, or PARTITION BY of each window, list every column of the key",
            )
        part = self._over_tables(name, projection, self._root)
        calls = {one.alias: one.call for one in self.functions}
        sources = [part, *(calls[one.table] for one in part.find_all(exp.Column) if one.table in calls)]
        tables = {one.table for source in sources for one in source.find_all(exp.Column) if one.table not in calls}
        if len(tables) != 1:
            raise self._refused(name, "is not made of one table's columns", "choose another key")
        return part

    def _over_tables(self, name: str, projection: exp.Expr, scope: Scope) -> exp.Expression:
        expression = projection.unalias()
        if expression.find(exp.AggFunc, exp.Select, exp.Window):
            raise self._refused(name, "is computed from many rows", "choose another key")
        if expression.find(exp.Collate):
            raise self._refused(
                name,
                "has a COLLATE under which different texts can be equal",
                "leave it out; lower() makes texts equal that differ only in case",
            )
        is_plain = isinstance(expression, exp.Column)

        def renamed(node: exp.Expression) -> exp.Expression:
            return self._column(name, node, scope, is_plain=is_plain) if isinstance(node, exp.Column) else node

        def text_of(column: exp.Column) -> str:
            return written(self._column(name, column, scope, is_plain=is_plain))

        part = expression.copy().transform(renamed)
        if not is_plain:
            part.meta["written"] = as_written(self._text, projection, text_of, part)
        return part

    def _column(self, name: str, column: exp.Column, scope: Scope, *, is_plain: bool) -> exp.Expression:
        join = next(
            (one for one in scope.expression.args.get("joins") or () if one.alias_or_name == column.table), None
        )
        if join is not None and join.side and not is_plain:
            # A row without a partner has a key, too, which no row of the table says.
            raise self._refused(
                name, f"is computed from {column.table}, which an outer join adds", "choose another key, or write JOIN"
            )
        place = _place(column, scope, self._found)
        if place is not None:
            return _column(place)
        source = scope.selected_sources.get(column.table, (None, None))
        if isinstance(source[1], Scope) and (projection := _projection(column.name, source[1])) is not None:
            inner = self._over_tables(name, projection, source[1])
            if is_plain or isinstance(inner, exp.Column):
                return inner
            if inner.find(exp.UDTF) or not SETS.isdisjoint(called(inner)):
                raise self._refused(
                    name, "is computed from several rows that a function returns", "call the function in FROM"
                )
            around = exp.paren(inner, copy=False)
            around.meta["written"] = f"({written(inner)})"
            return around
        if isinstance(source[0], exp.Lateral) and (made := self._made(name, column, source[0], scope)) is not None:
            return made
        raise self._refused(
            name,
            f"can't be traced to a column of a table ({column.sql(DIALECT)})",
            "choose columns of tables, or expressions of them; have DISTINCT ON, or PARTITION BY of each window of a "
            "subquery, list it",
        )

    def _made(self, name: str, column: exp.Column, source: exp.Lateral, scope: Scope) -> exp.Expression | None:
        """A row of the arguments of a function in FROM is joined to the results of this call and to no others, so the
        keys that it concerns are among these, before and after a change: whatever else the query demands makes them
        fewer."""
        alias = source.args.get("alias")
        names = [one.name for one in alias.columns] if alias is not None else []
        if not isinstance(source.this, exp.Func) or source.args.get("ordinality") or names != [column.name]:
            return None
        if id(source) not in self._aliases:
            call = self._over_tables(name, source.this, scope)
            self._aliases[id(source)] = f"f{len(self._aliases)}"
            self.functions.append(Function(self._aliases[id(source)], call))
        return exp.column("value", self._aliases[id(source)])

    def _refused(self, name: str, why: str, instead: str) -> ConfigError:
        return ConfigError(f"{self._where}: column {name} of its key {why}", instead)


def _conditions(needed: set[int], root: Scope, found: _Found) -> list[exp.Expression]:
    """The conditions of WHERE that concern the key's tables alone. A row that does not meet them is part of no row of
    the view, neither before nor after its change, so no key is computed from it: its values may be absurd. That is not
    so for the tables that an outer join adds, whose absence is a row, too."""
    owners = {f"t{number}" for number in needed}
    outer = {join.alias_or_name for join in root.expression.args.get("joins") or () if join.side}
    where = root.expression.args.get("where")
    conditions = []
    for part in conjuncts(where.this if where else None):
        if part.find(exp.Select) or any(not isinstance(call, _REWRITTEN_EXACTLY) for call in part.find_all(exp.Func)):
            continue
        columns = list(part.find_all(exp.Column))
        places = {column: _place(column, root, found) for column in columns}
        is_own = all(
            place is not None
            and f"t{place.occurrence}" in owners
            and column.table not in outer
            and isinstance(root.sources[column.table], exp.Table)
            for column, place in places.items()
        )
        if columns and is_own:
            by_text = {column.sql(DIALECT): place for column, place in places.items() if place is not None}
            conditions.append(
                part.copy().transform(
                    lambda node, by_text=by_text: (
                        _column(by_text[node.sql(DIALECT)]) if isinstance(node, exp.Column) else node
                    )
                )
            )
    return conditions


def written(part: exp.Expression) -> str:
    """A part of a key as it was written, over its new columns."""
    return str(part.meta.get("written") or part.sql(DIALECT))


def _column(place: Place) -> exp.Column:
    return exp.column(
        exp.to_identifier(place.column, quoted=True), exp.to_identifier(f"t{place.occurrence}", quoted=True)
    )


def _owners(parts: Sequence[exp.Expression]) -> set[int]:
    """The occurrences that parts of a key need."""
    columns = [column for part in parts for column in part.find_all(exp.Column)]
    return {int(column.table[1:]) for column in columns if column.table.startswith("t")}


def _steps(
    where: str, start: int, needed: set[int], found: _Found
) -> tuple[tuple[int, TableId, tuple[Link, ...]], ...]:
    """The shortest ways from this occurrence to those that the key's parts need."""
    before: dict[int, int] = {start: start}
    queue = [start]
    for one in queue:
        for link in found.links:
            if link.start.occurrence == one and link.end.occurrence not in before:
                before[link.end.occurrence] = one
                queue.append(link.end.occurrence)
    if unreached := needed - before.keys():
        raise ConfigError(
            f"{where}: a change of {found.tables[start]} can't be traced to the view's key, because no equality leads "
            f"from it to {found.tables[min(unreached)]}",
            "join the tables by column = column, or correlate the subquery with the row around it; a column of a "
            "subquery with LIMIT, or one that DISTINCT ON or PARTITION BY does not list, can't be the column",
        )
    wanted: set[int] = set()
    for one in needed:
        while one != start:
            wanted.add(one)
            one = before[one]
    steps = []
    for one in queue[1:]:
        if one in wanted:
            links = {
                link for link in found.links if link.start.occurrence == before[one] and link.end.occurrence == one
            }
            steps.append((one, found.tables[one], tuple(sorted(links))))
    return tuple(steps)
