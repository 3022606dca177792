"""Traces each table of a view's query to the view's key: from a row that changed to the view rows that it may change.

The links (links.py) that lead from a place where the query names a table to the columns of the key say which keys
a row of it concerns. More keys than necessary may be found, never fewer: conditions other than equalities are passed
over.

A query with UNION, INTERSECT or EXCEPT is traced once for each of its branches (watershed/views/branches.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlglot import exp
from sqlglot.optimizer.scope import Scope, build_scope

from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from watershed.views.branches import single_branches
from watershed.views.dialects import syntax_advice
from watershed.views.links import ColumnRef, JoinEdge, ScopeFindings, column_ref, conjuncts, projection_of, walk
from watershed.views.parsing import Named, as_written, base_tables, parsed, pieces, qualified
from watershed.views.refusals import DIALECT, SETS, called, is_chosen, refusals

_REWRITTEN_EXACTLY: Final = (exp.And, exp.Or, exp.Cast, exp.Anonymous)  # of the calls that the parser writes again
NEXT: Final = "see the documentation of views for what a query may contain"


class BaseColumn(NamedTuple):
    """A column of a table in the base. A column that is dropped and created again has another number."""

    number: int
    type: str  # as SQL

    def __str__(self) -> str:
        return f"{self.number} {self.type}"


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
    steps: tuple[tuple[int, TableId, tuple[JoinEdge, ...]], ...]
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
    starts = sorted(table.this.meta["start"] for table in base_tables(tree))
    numbers = {start: number for number, start in enumerate(starts)}
    traces: dict[str, Trace] = {}
    used: dict[TableId, set[str]] = {}
    for branch in single_branches(where, qualified(where, tree, columns, text)):
        found = ScopeFindings(numbers)
        for one in _traces(where, text, key, branch, found):
            # A table outside of a UNION may have the same way to the key in several of its branches.
            traces.setdefault(repr(one), one)
        for table, names in found.used.items():
            used.setdefault(table, set()).update(names)
    return TracedQuery(
        pieces(text, tree),
        tuple(used),
        {table: tuple(sorted(names)) for table, names in used.items()},
        any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)),
        frozenset(called(tree)),
        frozenset(name for one in traces.values() for part in one.keys for name in called(part)),
        tuple(traces.values()),
    )


def _traces(where: str, text: str, key: Sequence[str], tree: exp.Expression, found: ScopeFindings) -> Iterator[Trace]:
    """Yields the traces of a query without set operations."""
    root = build_scope(tree)
    assert root is not None, "a SELECT has a scope"
    for problem in refusals(root):
        raise ConfigError(f"{where}: {problem}", NEXT)
    walk(root, found)
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
    for number, table in sorted(found.tables.items()):
        steps = _steps(where, number, needed, found)
        yield Trace(table, number, steps, tuple(keys), tuple(conditions), (*parts.functions,))


# ---- from an occurrence to the key


class _Key:
    """The key's columns over columns of base tables, which are named `t<occurrence>.<column>`, and over functions in
    FROM."""

    def __init__(self, where: str, text: str, root: Scope, found: ScopeFindings) -> None:
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
        if len(tables) != 1 and not _is_constant(part):
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
        is_given = isinstance(projection, exp.Alias) and projection.args["alias"].meta.get("is_given")
        if is_given and not is_plain and not _is_constant(expression):  # its text can't be found
            raise self._refused(
                name, "is computed in a part of a UNION, which does not name it", f"write AS {name} there"
            )

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
        place = column_ref(column, scope, self._found)
        if place is not None:
            return _column(place)
        source = scope.selected_sources.get(column.table, (None, None))
        if isinstance(source[1], Scope) and (projection := projection_of(column.name, source[1])) is not None:
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


def _conditions(needed: set[int], root: Scope, found: ScopeFindings) -> list[exp.Expression]:
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
        places = {column: column_ref(column, root, found) for column in columns}
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


def _is_constant(expression: exp.Expr) -> bool:
    """Says whether an expression consists of literals and casts."""
    return expression.find(exp.Column) is None and all(
        isinstance(one, exp.Cast) for one in expression.find_all(exp.Func)
    )


def _column(place: ColumnRef) -> exp.Column:
    return exp.column(
        exp.to_identifier(place.column, quoted=True), exp.to_identifier(f"t{place.occurrence}", quoted=True)
    )


def _owners(parts: Sequence[exp.Expression]) -> set[int]:
    """The occurrences that parts of a key need."""
    columns = [column for part in parts for column in part.find_all(exp.Column)]
    return {int(column.table[1:]) for column in columns if column.table.startswith("t")}


def _steps(
    where: str, start: int, needed: set[int], found: ScopeFindings
) -> tuple[tuple[int, TableId, tuple[JoinEdge, ...]], ...]:
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
