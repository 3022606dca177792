"""A row condition for one table: checked against the schema's types, then evaluated for each row. Pure.

A row meets the condition if it is true, as in SQL's WHERE: neither false nor NULL. A change can lack columns that an
update did not change (`unchanged`). The condition is evaluated without them if the other columns suffice; otherwise it
is undecided.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.config.row_condition import (
    ColumnName,
    Comparison,
    Condition,
    Constant,
    Every,
    IsNull,
    IsTrue,
    Membership,
    Not,
    Some,
    columns_of,
    parse_condition,
)
from cdc.model.events import Column, TableSchema
from sinks.contract import Json
from sinks.shaping.comparable import EXACT, FLOAT, Comparable, Key, NeededError, as_float, comparable

Row = Mapping[str, Json]
# (row, the assumed result of predicates on absent columns) → whether the condition is true.
_Test = Callable[[Row, bool], bool]

_OPERATORS: Final[Mapping[str, Callable[[Key, Key], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPPOSITES: Final[Mapping[str, str]] = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_MIRRORED: Final[Mapping[str, str]] = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


class RowCondition:
    """Decides which rows of one table a store holds."""

    def __init__(self, text: str, schema: TableSchema) -> None:
        """Raises ValueError that names the column, if the table lacks it or it can't be compared in this way."""
        condition = parse_condition(text)
        self.columns = columns_of(condition)
        compiler = _Compiler(schema)
        self._test = compiler.test(condition, negated=False)

    def decide(self, row: Row, unchanged: frozenset[str]) -> bool | None:
        """Returns whether the row meets the condition; None if that depends on columns that the row lacks."""
        if not unchanged or not unchanged & self.columns:
            return self._test(row, False)
        surely, possibly = self._test(row, False), self._test(row, True)
        return surely if surely == possibly else None


class _Compiler:
    """Compiles predicates to tests. NOT is pushed down to the predicates, so a test only returns whether its predicate
    is true: with NULL, neither a predicate nor its negation is true, and AND and OR need no third value.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._columns = {column.name: column for column in schema.columns}
        self._table = schema.table

    def test(self, condition: Condition, *, negated: bool) -> _Test:
        match condition:
            case Not(part):
                return self.test(part, negated=not negated)
            case Every(parts) | Some(parts):
                tests = [self.test(part, negated=negated) for part in parts]
                return _combined(tests, is_every=isinstance(condition, Every) is not negated)
            case IsNull(column):
                return _null_test(self._column(column).name, is_null=not negated)
            case IsTrue(column):
                return self._comparison(Comparison(column, "=", Constant(True)), negated=negated)
            case Membership(column, values):
                return self._membership(column, values, negated=negated)
            case Comparison():
                return self._comparison(condition, negated=negated)

    def _membership(self, named: ColumnName, values: tuple[Constant, ...], *, negated: bool) -> _Test:
        column = self._column(named)
        kind = self._comparable(column)
        name, read = column.name, kind.key
        if len(values) > 1 and kind.in_list is not None:
            kind = replace(kind, literal=kind.in_list)
        wanted = frozenset(self._literal(column, kind, value) for value in values)

        def test(row: Row, absent: bool) -> bool:
            if name not in row:
                return absent
            value = row[name]
            return value is not None and (read(value) in wanted) is not negated

        return test

    def _comparison(self, comparison: Comparison, *, negated: bool) -> _Test:
        left, symbol, right = comparison.left, str(comparison.operator), comparison.right
        if isinstance(left, Constant):
            left, symbol, right = right, _MIRRORED[symbol], left
        assert isinstance(left, ColumnName), "the parser leaves no comparison of two literals"
        column = self._column(left)
        kind = self._comparable(column)
        if symbol not in ("=", "<>") and not kind.has_order:
            raise ValueError(
                f"column {column.name} of {self._table} ({column.type_name}) can only be compared by =, <> and IN"
            )
        compare = _OPERATORS[_OPPOSITES[symbol] if negated else symbol]
        if isinstance(right, ColumnName):
            return self._column_comparison(column, self._column(right), compare)
        name, read = column.name, kind.key
        wanted = self._literal(column, kind, right)

        def test(row: Row, absent: bool) -> bool:
            if name not in row:
                return absent
            value = row[name]
            return value is not None and compare(read(value), wanted)

        return test

    def _column_comparison(self, left: Column, right: Column, compare: Callable[[Key, Key], bool]) -> _Test:
        kinds = self._comparable(left), self._comparable(right)
        families = {kind.family for kind in kinds}
        if len(families) > 1 and families != {EXACT, FLOAT}:
            raise ValueError(
                f"columns {left.name} ({left.type_name}) and {right.name} ({right.type_name}) of {self._table} can't "
                "be compared"
            )
        reads = tuple(_as_float(kind) if len(families) > 1 and kind.family == EXACT else kind.key for kind in kinds)
        (read_left, read_right), names = reads, (left.name, right.name)

        def test(row: Row, absent: bool) -> bool:
            values = [row[name] for name in names if name in row]
            if None in values:
                return False  # NULL makes the comparison not true, whatever the absent value is
            if len(values) < 2:
                return absent
            return compare(read_left(values[0]), read_right(values[1]))

        return test

    def _column(self, named: ColumnName) -> Column:
        column = self._columns.get(named.name)
        if column is None:
            raise ValueError(f"table {self._table} has no column {named.name}")
        return column

    def _comparable(self, column: Column) -> Comparable:
        kind = comparable(column)
        if kind is None:
            raise ValueError(
                f"column {column.name} of {self._table} has type {column.type_name}, which conditions can only compare "
                "with NULL"
            )
        return kind

    def _literal(self, column: Column, kind: Comparable, constant: Constant) -> Key:
        try:
            return kind.literal(constant.value)
        except NeededError as error:
            raise ValueError(
                f"column {column.name} of {self._table} ({column.type_name}) can only be compared with {error}"
            ) from None


def _combined(tests: Sequence[_Test], *, is_every: bool) -> _Test:
    def combined(row: Row, absent: bool) -> bool:
        for test in tests:  # faster than all() or any(); it runs for every row
            if test(row, absent) is not is_every:
                return not is_every
        return is_every

    return combined


def _null_test(name: str, *, is_null: bool) -> _Test:
    def test(row: Row, absent: bool) -> bool:
        return (row[name] is None) is is_null if name in row else absent

    return test


def _as_float(kind: Comparable) -> Callable[[Json], Key]:
    return lambda value: as_float(kind.key(value))
