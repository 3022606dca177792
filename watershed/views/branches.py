"""UNION, INTERSECT and EXCEPT: a query with set operations as queries with one branch of each.

A set operation compares or collects whole rows. So what it returns with a certain value in a column depends only on the
rows of its branches that have this value in the column at the same place. A row of one branch therefore concerns the
keys that it concerns in the query in which this branch stands in the place of the operation, and no others; a row
outside of the operation concerns the keys of all these queries together.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from sqlglot import exp

from cdc.model.errors import ConfigError
from watershed.views.refusals import is_limited

COMBINATIONS_MAX: Final = 64
_OF_ALL_ROWS: Final = ("order", "limit", "offset", "fetch")


def single_branches(where: str, tree: exp.Expression) -> Iterator[exp.Expression]:
    """Yields the queries; a query without set operations is its own. The columns of each have the names of the first
    branch. Raises ConfigError for a query with too many combinations of branches, and for a choice among the rows of an
    operation whose order is not defined."""
    for operation in tree.find_all(exp.SetOperation):
        if is_limited(operation) and not operation.args.get("order"):
            raise ConfigError(f"{where}: it takes some rows of a UNION in no order", "write ORDER BY before LIMIT")
    for number, found in enumerate(_singles(tree)):
        if number == COMBINATIONS_MAX:
            raise ConfigError(
                f"{where}: its parts of UNION, INTERSECT and EXCEPT have more than {COMBINATIONS_MAX} combinations",
                "split it into several views",
            )
        yield found


def _singles(tree: exp.Expression) -> Iterator[exp.Expression]:
    if tree.find(exp.SetOperation) is None:
        yield tree
        return
    for side in ("this", "expression"):
        copy = tree.copy()
        operation = copy.find(exp.SetOperation)
        assert operation is not None, "a copy has what the tree has"
        branch = operation.args[side].unnest()
        _rename(branch, operation.named_selects)
        for name in _OF_ALL_ROWS:
            if operation.args.get(name) and not branch.args.get(name):
                branch.set(name, operation.args[name])
        _take_with(branch, operation)
        if operation is copy:
            copy = branch
        else:
            operation.replace(branch)
        _leave_out_unused(copy)
        yield from _singles(copy)


def _rename(branch: exp.Expr, names: Sequence[str]) -> None:
    """Gives the columns of a branch, or of its own first branch, the names that they have outside."""
    while isinstance(branch, exp.SetOperation):
        branch = branch.this.unnest()
    for projection, name in zip(list(branch.expressions), names, strict=False):
        if projection.alias_or_name == name:
            continue
        alias = exp.to_identifier(name, quoted=True)
        written = projection.args["alias"].meta if isinstance(projection, exp.Alias) else {}
        alias.meta.update(written)  # where the text has the name that the column has there
        alias.meta["is_given"] = "start" not in written
        projection.replace(exp.Alias(this=projection.unalias().copy(), alias=alias))


def _take_with(branch: exp.Expr, operation: exp.SetOperation) -> None:
    shared = operation.args.get("with_")
    if shared is None:
        return
    own = branch.args.get("with_")
    parts = [*shared.expressions, *(own.expressions if own is not None else ())]
    branch.set("with_", exp.With(expressions=[one.copy() for one in parts]))


def _leave_out_unused(tree: exp.Expression) -> None:
    """Leaves out the parts of a WITH that only another branch reads."""
    while True:
        read = {table.name for table in tree.find_all(exp.Table) if not table.db}
        unused = [cte for cte in tree.find_all(exp.CTE) if cte.alias not in read]
        if not unused:
            return
        for cte in unused:
            owner = cte.parent
            cte.pop()
            if owner is not None and not owner.expressions:
                owner.pop()
