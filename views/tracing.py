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

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlglot import TokenType, exp, parse, tokenize
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, build_scope

from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from views.refusals import DIALECT, called, choice_of, refusals

NEXT: Final = "see the documentation of views for what a query may contain"
_LAST_SCHEMA: Final = "public"  # of a table without one


class Place(NamedTuple):
    """A column of an occurrence."""

    occurrence: int
    column: str


class Link(NamedTuple):
    """An equality, directed from a column of one occurrence to that of another."""

    start: Place
    end: Place


class Named(NamedTuple):
    """A place of the query's text that names a table."""

    table: TableId
    has_alias: bool
    name: str


@dataclass(frozen=True, slots=True)
class Trace:
    """The keys that rows of one occurrence concern: a join of the changed rows with other tables, in order."""

    table: TableId
    occurrence: int
    # Each step joins an occurrence of a table to those before it: end = start for each of its links.
    steps: tuple[tuple[int, TableId, tuple[Link, ...]], ...]
    keys: tuple[exp.Expression, ...]  # over columns that are named `t<occurrence>.<column>`
    conditions: tuple[exp.Expression, ...]  # over the same columns: rows that do not meet them concern no key


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

    def shape(self, columns: Mapping[TableId, Mapping[str, str]]) -> str:
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
    where = f"view {name}"
    tree = _parsed(where, text)
    root = _qualified(where, tree, columns)
    for problem in refusals(root):
        raise ConfigError(f"{where}: {problem}", NEXT)
    found = _Found()
    _walk(root, found)
    if len(found.tables) != sum(1 for table in tree.find_all(exp.Table) if _is_base(table, tree)):
        raise ConfigError(f"{where}: its sql joins tables in a way that can't be traced to a key", NEXT)
    output = {projection.alias_or_name: projection.unalias() for projection in root.expression.expressions}
    if missing := next((column for column in key if column not in output), None):
        raise ConfigError(
            f"{where}: its key has column {missing}, which the query does not return",
            f"it returns {', '.join(output)}",
        )
    keys = [_key_part(where, column, output[column], root, found) for column in key]
    conditions = _conditions(keys, root, found)
    traces = tuple(_trace(where, number, keys, conditions, found) for number in range(len(found.tables)))
    return TracedQuery(
        _pieces(text, tree),
        tuple(dict.fromkeys(found.tables)),
        {table: tuple(sorted(used)) for table, used in found.used.items()},
        any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)),
        frozenset(called(tree)),
        frozenset(name for part in keys for name in called(part)),
        traces,
    )


def _pieces(text: str, tree: exp.Expression) -> tuple[str | Named, ...]:
    """PostgreSQL runs the text as it was written: what the parser would write may have another meaning."""
    pieces: list[str | Named] = []
    at = 0
    ctes = {cte.alias for cte in tree.find_all(exp.CTE)}
    tables = [table for table in tree.find_all(exp.Table) if table.db or table.name not in ctes]
    for table in sorted(tables, key=lambda one: int(one.this.meta["start"])):
        first = table.args.get("db") or table.this
        pieces += [text[at : first.meta["start"]], Named(table_of(table), bool(table.alias), table.name)]
        at = table.this.meta["end"] + 1
    last = [token for token in tokenize(text, dialect=DIALECT) if token.token_type is not TokenType.SEMICOLON][-1]
    return (*pieces, text[at : last.end + 1])


def table_of(table: exp.Table) -> TableId:
    """The table that a query names; without a schema it is one of `public`."""
    return TableId(table.db or _LAST_SCHEMA, table.name)


def _is_base(table: exp.Table, tree: exp.Expression) -> bool:
    return bool(table.db) or all(cte.alias != table.name for cte in tree.find_all(exp.CTE))


def named_tables(name: str, text: str) -> tuple[TableId, ...]:
    """Returns the tables that the query of a view names, whether they exist or not. Raises ConfigError for text that is
    not one SELECT."""
    tree = _parsed(f"view {name}", text)
    return tuple(dict.fromkeys(table_of(table) for table in tree.find_all(exp.Table) if _is_base(table, tree)))


# ---- parsing


def _parsed(where: str, text: str) -> exp.Expression:
    try:
        statements = [one for one in parse(text, dialect=DIALECT) if one is not None]
    except SqlglotError as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"{where}: its sql can't be read: {said}", "write one SELECT in PostgreSQL's SQL") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Select):
        raise ConfigError(f"{where}: its sql is not one SELECT", "write one SELECT in PostgreSQL's SQL")
    return statements[0]


def _qualified(where: str, tree: exp.Expression, columns: Mapping[TableId, Sequence[str]]) -> Scope:
    """The query's scopes, with every column under its table's alias, and every `*` written out."""
    ctes = Counter(cte.alias for cte in tree.find_all(exp.CTE))
    references = Counter(table.name for table in tree.find_all(exp.Table) if not table.db and table.name in ctes)
    for name in ctes:
        # Two uses of one subquery would be one occurrence, with the links of both.
        if ctes[name] > 1 or references[name] > 1:
            raise ConfigError(f"{where}: it uses {name} of its WITH twice", "write the subquery in each place")
    for table in tree.find_all(exp.Table):
        if not table.db and table.name in ctes:
            continue
        if table_of(table) not in columns:
            raise ConfigError(
                f"{where}: it reads {table_of(table)}, which its base does not hold",
                f"the base holds {', '.join(map(str, columns)) or 'no table'}; write schema.table",
            )
    copy = tree.copy()
    for table in copy.find_all(exp.Table):
        if not table.db and table.name not in ctes:
            table.set("db", exp.to_identifier(_LAST_SCHEMA, quoted=True))
    known: dict[str, Any] = {}
    for table_id, names in columns.items():
        known.setdefault(table_id.schema, {})[table_id.name] = dict.fromkeys(names, "text")
    try:
        qualified = qualify(copy, schema=known, dialect=DIALECT, validate_qualify_columns=True, expand_alias_refs=False)
    except SqlglotError as error:
        raise ConfigError(f"{where}: {str(error).partition(chr(10))[0]}", "correct the names of its columns") from None
    scope = build_scope(qualified)
    assert scope is not None, "a SELECT has a scope"
    return scope


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


def _place(column: exp.Expression, scope: Scope, found: _Found) -> Place | None:
    """The base table's column that a column is, through derived tables; None: it is computed."""
    if not isinstance(column, exp.Column):
        return None
    owner = _owner(column, scope)
    if owner is None:
        return None
    source = owner.sources[column.table]
    if isinstance(source, exp.Table):
        return Place(found.occurrences[id(owner), column.table], column.name)
    if not isinstance(source, Scope) or not isinstance(source.expression, exp.Select):
        return None
    if choice_of(source.expression):
        return None
    for projection in source.expression.expressions:
        if projection.alias_or_name == column.name:
            return _place(projection.unalias(), source, found)
    return None


def _links(scope: Scope, found: _Found) -> Iterator[Link]:
    select = scope.expression
    if not isinstance(select, exp.Select):
        return
    where = select.args.get("where")
    for left, right in _equalities(where.this if where else None):
        yield from _linked(left, right, scope, found, None)
    for column, subquery in _memberships(where.this if where else None):
        inner = next((one for one in scope.subquery_scopes if one.expression is subquery), None)
        if inner is not None and not choice_of(subquery):
            start = _place(subquery.expressions[0].unalias(), inner, found)
            end = _place(column, scope, found)
            if start and end:
                yield Link(start, end)
    for join in select.args.get("joins") or ():
        nullable = join.alias_or_name if join.side == "LEFT" else None
        for left, right in _equalities(join.args.get("on")):
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


def _conjuncts(condition: Any) -> Iterator[Any]:
    if condition is None:
        return
    for part in condition.flatten() if isinstance(condition, exp.And) else (condition,):
        part = part.unnest()
        if isinstance(part, exp.And):
            yield from _conjuncts(part)
        else:
            yield part


def _equalities(condition: exp.Expression | None) -> Iterator[tuple[exp.Expression, exp.Expression]]:
    for part in _conjuncts(condition):
        if isinstance(part, exp.EQ):
            yield part.this.unnest(), part.expression.unnest()


def _memberships(condition: exp.Expression | None) -> Iterator[tuple[exp.Expression, exp.Select]]:
    """`column IN (SELECT …)`."""
    for part in _conjuncts(condition):
        query = part.args.get("query") if isinstance(part, exp.In) else None
        if query is not None and isinstance(query.unnest(), exp.Select):
            yield part.this.unnest(), query.unnest()


# ---- from an occurrence to the key


def _key_part(where: str, name: str, expression: exp.Expression, root: Scope, found: _Found) -> exp.Expression:
    """The key's column over columns of base tables, which are named `t<occurrence>.<column>`."""
    part = expression.copy()
    if part.find(exp.AggFunc, exp.Select, exp.Window):
        raise ConfigError(f"{where}: column {name} of its key is computed from many rows", "choose another key")
    if part.find(exp.Collate):
        raise ConfigError(
            f"{where}: column {name} of its key has a COLLATE, with which different texts may be equal",
            "leave it out; lower() makes texts equal that differ in case only",
        )

    def renamed(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Column):
            return node
        place = _place(node, root, found)
        if place is not None:
            return _column(place)
        series = _series(node, root)
        if series is not None:
            return series.transform(renamed)
        raise ConfigError(
            f"{where}: column {name} of its key can't be traced to a column of a table ({node.sql(DIALECT)})",
            "choose columns of tables, or expressions of them",
        )

    part = part.transform(renamed)
    if len({column.table for column in part.find_all(exp.Column)}) != 1:
        raise ConfigError(f"{where}: column {name} of its key is not made of one table's columns", "choose another key")
    return part


def _series(column: exp.Column, scope: Scope) -> exp.Func | None:
    """The call of a function in FROM whose results a column is: `LATERAL generate_series(…) AS name(column)`. A row of
    the function's arguments is joined to the results of this call and to no others, so the keys that it concerns are
    among these, before and after a change: whatever else the query demands makes them fewer."""
    source = scope.selected_sources.get(column.table, (None, None))[0]
    if not isinstance(source, exp.Lateral) or not isinstance(source.this, exp.Func) or source.args.get("ordinality"):
        return None
    alias = source.args.get("alias")
    names = [one.name for one in alias.columns] if alias is not None else []
    return source.this.copy() if names == [column.name] else None


def _conditions(keys: Sequence[exp.Expression], root: Scope, found: _Found) -> list[exp.Expression]:
    """The conditions of WHERE that concern the key's tables alone. A row that does not meet them is part of no row of
    the view, neither before nor after its change, so no key is computed from it: its values may be absurd. That is not
    so for the tables that an outer join adds, whose absence is a row, too."""
    owners = {column.table for part in keys for column in part.find_all(exp.Column)}
    outer = {join.alias_or_name for join in root.expression.args.get("joins") or () if join.side}
    where = root.expression.args.get("where")
    conditions = []
    for part in _conjuncts(where.this if where else None):
        if part.find(exp.Select):
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


def _column(place: Place) -> exp.Column:
    return exp.column(
        exp.to_identifier(place.column, quoted=True), exp.to_identifier(f"t{place.occurrence}", quoted=True)
    )


def _trace(
    where: str, start: int, keys: Sequence[exp.Expression], conditions: Sequence[exp.Expression], found: _Found
) -> Trace:
    """The shortest ways from this occurrence to those that the key's parts need."""
    needed = {int(column.table[1:]) for part in keys for column in part.find_all(exp.Column)}
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
            "join the tables by column = column, or correlate the subquery with the row around it",
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
    return Trace(found.tables[start], start, tuple(steps), tuple(keys), tuple(conditions))
