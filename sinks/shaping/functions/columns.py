"""The columns that a Python function computes for one table, as sinks.shaping.expressions.expression does for one
column.
"""

from collections.abc import Mapping

from cdc.config.row_functions import row_function
from cdc.model.errors import ConfigError
from cdc.model.events import TableSchema
from sinks.contract import Json
from sinks.shaping.expressions.types import MissingColumnError
from sinks.shaping.functions.caller import caller
from sinks.shaping.functions.values import READ_AS, RETURNED, float_text, read_type, returned_column


class FunctionColumns:
    """A function, for the rows of one table."""

    def __init__(self, name: str, limit_s: float, schema: TableSchema) -> None:
        """Raises ConfigError if there is no such function, or the table lacks a column that it reads."""
        function = row_function(name)
        types: dict[str, str] = {}
        columns = {column.name: column for column in schema.columns}
        for one in function.reads:
            if one not in columns:
                raise ConfigError(
                    f"function {name} reads column {one}, which table {schema.table} does not have",
                    "name another function, or correct its package",
                )
            if (type_name := read_type(columns[one])) is None:
                raise ConfigError(
                    f"function {name} reads column {one}, which has type {columns[one].type_name}: functions can read "
                    f"{READ_AS}",
                    "name another function, or correct its package",
                )
            types[one] = type_name
        self.name = name
        self.reads = frozenset(function.reads)
        self.columns = tuple(returned_column(one, type_name) for one, type_name in function.returns.items())
        # Column → the name of its type in pg_type.
        self.types = {one: RETURNED[type_name].pg_name for one, type_name in function.returns.items()}
        self._caller = caller(name, function.version, types, limit_s)

    def value(self, row: Mapping[str, Json]) -> dict[str, Json] | None:
        """Returns the columns in the form of records; None for a row that the function leaves out. Raises
        ComputationError, and MissingColumnError if the row lacks a column that is needed."""
        try:
            read = {name: _encodable(row[name]) for name in self.reads}
        except KeyError:
            raise MissingColumnError from None
        return self._caller.call(read)


def _encodable(value: Json) -> Json:
    """Returns a float that JSON lacks as the text that records have."""
    return float_text(value) if type(value) is float and value - value != 0 else value
