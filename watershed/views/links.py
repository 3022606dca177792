"""The tables of a query, the columns through which they are linked, and what a column of a query is.

Each place of a query that names a base table is an **occurrence**: a table that is used twice occurs twice. Two
occurrences are linked where the query demands that a column of one equals a column of the other: in WHERE, in the ON of
an inner join, between a subquery and the query around it. Links have a direction: an outer join's ON says nothing about
the rows of its left side, and a correlated subquery says nothing about the rows around it, so these lead from the
inside to the outside only. An equality outside of a subquery that chooses among its rows (LIMIT, DISTINCT ON, a window
function) is no link: a row that does not meet it may decide which other rows are chosen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from cdc.model.events import TableId
from watershed.views.parsing import table_of
from watershed.views.refusals import is_chosen


def conjuncts(condition: Any) -> Iterator[Any]:
    """Yields the conditions that are joined by AND."""
    if condition is None:
        return
    for part in condition.flatten() if isinstance(condition, exp.And) else (condition,):
        part = part.unnest()
        if isinstance(part, exp.And):
            yield from conjuncts(part)
        else:
            yield part


def equalities(condition: exp.Expr | None) -> Iterator[tuple[exp.Expression, exp.Expression]]:
    """Yields both sides of each equality that a condition demands, those of rows one by one."""
    for part in conjuncts(condition):
        if isinstance(part, exp.EQ):
            left, right = _members(part.this), _members(part.expression)
            if len(left) == len(right):
                yield from zip(left, right, strict=True)


def _members(value: exp.Expr) -> list[Any]:
    """The values of a row, or the one value."""
    value = value.unnest()
    is_row = isinstance(value, exp.Tuple) or (isinstance(value, exp.Anonymous) and value.name.lower() == "row")
    return [one.unnest() for one in value.expressions] if is_row else [value]


def memberships(condition: exp.Expr | None) -> Iterator[tuple[list[exp.Expression], exp.Select]]:
    """Yields columns and subquery of `column IN (SELECT …)` and `column = ANY (SELECT …)`, also of a row."""
    for part in conjuncts(condition):
        query = part.args.get("query") if isinstance(part, exp.In) else None
        if isinstance(part, exp.EQ) and isinstance(part.expression, exp.Any):
            query = part.expression.this
        if query is not None and isinstance(query.unnest(), exp.Select):
            yield _members(part.this), query.unnest()


class ColumnRef(NamedTuple):
    """A column of an occurrence."""

    occurrence: int
    column: str


class JoinEdge(NamedTuple):
    """An equality, directed from a column of one occurrence to that of another."""

    start: ColumnRef
    end: ColumnRef


@dataclass(slots=True)
class ScopeFindings:
    """The findings of the walk through the scopes of a query."""

    numbers: Mapping[int, int]  # where the text names a table → the occurrence's number
    occurrences: dict[tuple[int, str], int] = field(default_factory=dict)  # scope's id, alias → number
    tables: dict[int, TableId] = field(default_factory=dict)  # by number
    used: dict[TableId, set[str]] = field(default_factory=dict)
    links: list[JoinEdge] = field(default_factory=list)


def walk(scope: Scope, found: ScopeFindings) -> None:
    for child in scope.traverse():
        for alias, source in child.sources.items():
            if isinstance(source, exp.Table) and (id(child), alias) not in found.occurrences:
                # A correlated subquery lists the tables around it, too.
                if any(alias in outer.sources and outer.sources[alias] is source for outer in _around(child)):
                    continue
                number = found.numbers[source.this.meta["start"]]
                found.occurrences[id(child), alias] = number
                found.tables[number] = table_of(source)
                found.used.setdefault(table_of(source), set())
    for child in scope.traverse():
        for column in child.columns:
            place = column_ref(column, child, found)
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


def column_ref(column: exp.Expr, scope: Scope, found: ScopeFindings) -> ColumnRef | None:
    """The base table's column that a column is, through derived tables; None: it is computed."""
    if not isinstance(column, exp.Column):
        return None
    owner = _owner(column, scope)
    if owner is None:
        return None
    source = owner.sources[column.table]
    if isinstance(source, exp.Table):
        return ColumnRef(found.occurrences[id(owner), column.table], column.name)
    if not isinstance(source, Scope):
        return None
    projection = projection_of(column.name, source)
    return None if projection is None else column_ref(projection.unalias(), source, found)


def projection_of(name: str, source: Scope) -> exp.Expression | None:
    """The expression that a derived table's column is; None where a row depends on rows with other values of it."""
    select = source.expression
    if not isinstance(select, exp.Select):
        return None
    for projection in select.expressions:
        if projection.alias_or_name == name:
            return None if is_chosen(select, projection) else projection
    return None


def _links(scope: Scope, found: ScopeFindings) -> Iterator[JoinEdge]:
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
            start = None if is_chosen(subquery, projection) else column_ref(projection.unalias(), inner, found)
            end = column_ref(column, scope, found)
            if start and end:
                yield JoinEdge(start, end)
    for join in select.args.get("joins") or ():
        nullable = join.alias_or_name if join.side == "LEFT" else None
        for left, right in equalities(join.args.get("on")):
            yield from _linked(left, right, scope, found, nullable)


def _linked(
    left: exp.Expression, right: exp.Expression, scope: Scope, found: ScopeFindings, nullable: str | None
) -> Iterator[JoinEdge]:
    """`nullable`: the alias that an outer join adds, if the equality is of its ON."""
    for one, other in ((left, right), (right, left)):
        start, end = column_ref(one, scope, found), column_ref(other, scope, found)
        if start is None or end is None or start.occurrence == end.occurrence:
            continue
        assert isinstance(one, exp.Column)
        assert isinstance(other, exp.Column)
        starts_here, ends_here = _owner(one, scope) is scope, _owner(other, scope) is scope
        if not starts_here or (nullable is not None and one.table != nullable):
            continue  # from the outside to the inside
        if nullable is not None and ends_here and other.table == nullable:
            continue
        yield JoinEdge(start, end)
