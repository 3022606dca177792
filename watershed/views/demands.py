"""Equalities and memberships that a condition demands: what it can only be true with."""

from collections.abc import Iterator
from typing import Any

from sqlglot import exp


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
