"""A row condition that is an SQL expression. Pure."""

from sqlglot import exp

from cdc.model.events import TableSchema
from sinks.shaping.expressions.expression import Expression
from sinks.shaping.expressions.parsing import parsed
from sinks.shaping.expressions.parts import Row
from sinks.shaping.expressions.types import BOOLEAN, ComputationError, ExpressionError, MissingColumnError

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between)


class ExpressionCondition:
    """Decides which rows of one table a store holds, as sinks.shaping.condition.RowCondition does."""

    def __init__(self, text: str, schema: TableSchema) -> None:
        """Raises ExpressionError."""
        expression = Expression(text, schema)
        if expression.type is not BOOLEAN:
            raise ExpressionError(f"it is true or false for no row: its type is {expression.type.name}")
        if not expression.columns:
            raise ExpressionError("it reads no column, so it has the same result for every row")
        if any(isinstance(null.parent, _COMPARISONS) for null in parsed(text).find_all(exp.Null)):
            raise ExpressionError("nothing is equal to NULL: write IS NULL or IS NOT NULL")
        self.columns = expression.columns
        self._value = expression.value

    def decide(self, row: Row, unchanged: frozenset[str]) -> bool | None:
        """Returns whether the row meets the condition; None if that depends on columns that the row lacks
        (`unchanged`). Raises ComputationError for a row for which the expression has no value."""
        del unchanged  # the row lacks them
        try:
            return self._value(row) is True
        except MissingColumnError:
            return None
        except ComputationError as error:
            raise ComputationError(f"the condition can't be decided: {error}") from None
