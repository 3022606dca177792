"""Section `views.<name>.fold`: the state of each key, which a Python function computes from the rows of its query."""

import re
from typing import Annotated, Final

from pydantic import Field, field_validator

from cdc.config.section import Section

_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_COLUMN: Final = re.compile(r"[^\W\d]\w{0,62}")
_TYPE: Final = re.compile(
    r'[A-Za-z_"][\w ".]*(\( *\d+ *(, *\d+ *)?\))?[\w ]*(\[\])*'
)  # such as timestamp(3) with time zone


class FoldConfig(Section):
    """The rows of the query are events. The function is applied to the events of each key, in their order."""

    function: str  # module:function; function(state, event) returns the state after the event
    order: Annotated[tuple[str, ...], Field(min_length=1)]  # columns of the query, unique within a key
    columns: Annotated[dict[str, str], Field(min_length=1)]  # of the state, with their PostgreSQL types

    @field_validator("function")
    @classmethod
    def _is_named(cls, function: str) -> str:
        if not _FUNCTION.fullmatch(function):
            raise ValueError(f"{function!r} does not name a function: write module:function, such as accounts:apply")
        return function

    @field_validator("order", "columns", mode="before")
    @classmethod
    def _names_are_texts(cls, names: object) -> object:
        if isinstance(names, list | dict) and any(isinstance(name, bool) for name in names):
            raise ValueError('YAML reads no, off, yes and on as false and true: write a column of this name as "no"')
        return names

    @field_validator("order")
    @classmethod
    def _order_differs(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(order)) != len(order):
            raise ValueError("a column is listed twice in order")
        return order

    @field_validator("columns")
    @classmethod
    def _columns_have_types(cls, columns: dict[str, str]) -> dict[str, str]:
        for name, type_name in columns.items():
            if not _COLUMN.fullmatch(name):
                raise ValueError(f"{name!r} can't be a column's name: letters, digits and _, 63 at most")
            if not _TYPE.fullmatch(type_name):
                raise ValueError(f"{name}: {type_name!r} is not the name of a PostgreSQL type, such as numeric(12,2)")
        return columns
