"""Python functions of mappings: `mapping.<table>.function` names one, which a package registers by an entry point.

A function computes further columns of a store's rows from other columns of the same row, or leaves the row out.
`docs/how-to/write-a-function.md` says how one is written, and `docs/examples/functions` is one.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final

from cdc.model.errors import ConfigError
from cdc.model.suggestions import did_you_mean

GROUP: Final = "watershed.functions"
# The types of columns that a function may return, with what Python's values must be.
RETURN_TYPES: Final[Mapping[str, str]] = {
    "boolean": "bool",
    "smallint": "int",
    "integer": "int",
    "bigint": "int",
    "numeric": "Decimal or int, finite",
    "double precision": "float",
    "text": "str",
    "date": "date",
    "timestamp": "datetime without tzinfo",
    "timestamptz": "datetime with tzinfo",
}
_VERSION: Final = re.compile(r"[\x21-\x7e]{1,100}")

Columns = dict[str, Any]


@dataclass(frozen=True)
class RowFunction:
    """A function over the rows of a table, and what has to be known of it.

    `call`: gets a dict of the columns in `reads`, and returns a dict of the columns in `returns`, or None: the store
    does not hold the row. It must return the same for the same columns at any time and in any process, because rows are
    written again. `version` must change when it returns anything else than before: the stores' tables are then built
    again.
    """

    call: Callable[[Columns], Columns | None]
    reads: tuple[str, ...]  # columns of the source's table
    returns: Mapping[str, str]  # column of the store → its type, one of RETURN_TYPES; each may be NULL
    version: str

    def __post_init__(self) -> None:
        """Raises ValueError that says which part is wrong."""
        try:
            inspect.signature(self.call).bind({})
        except (TypeError, ValueError) as error:  # ValueError: its arguments are not known
            raise ValueError(f"call is no function of one argument, the row: {error}") from None
        if inspect.iscoroutinefunction(self.call) or inspect.isgeneratorfunction(self.call):
            raise ValueError("call is a coroutine or a generator: it must return the row's columns itself")
        if isinstance(self.reads, str) or not self.reads or not all(isinstance(name, str) for name in self.reads):
            raise ValueError("reads is not a list of columns' names")
        if len(set(self.reads)) < len(self.reads):
            raise ValueError("reads names a column twice")
        if not isinstance(self.returns, Mapping) or not all(name and isinstance(name, str) for name in self.returns):
            raise ValueError("returns is not a mapping from columns' names to types")
        for name, type_name in self.returns.items():
            if type_name not in RETURN_TYPES:
                raise ValueError(f"returns: {name} has type {type_name!r}, which is none of {', '.join(RETURN_TYPES)}")
        if not isinstance(self.version, str) or not _VERSION.fullmatch(self.version):
            raise ValueError("version is not a text of 1 to 100 printable characters of ASCII, without spaces")


@cache
def row_function(name: str) -> RowFunction:
    """Returns the function that an installed package registers under this name. Raises ConfigError."""
    found = entry_points(group=GROUP)
    entries = sorted({entry.value: entry for entry in found if entry.name == name}.items())
    if len(entries) > 1:
        raise ConfigError(
            f"function {name} is registered twice: {' and '.join(value for value, _ in entries)}",
            f"remove one of the packages, or give one of both another name in group {GROUP}",
        )
    if not entries:
        known = f"; there are {', '.join(sorted(found.names))}" if found.names else "; there is none"
        raise ConfigError(
            f"there is no function {name}{did_you_mean(name, found.names) or known}",
            f"install the package whose entry point in group {GROUP} has this name, also where sinks run, "
            "or correct the mapping",
        )
    value, entry = entries[0]
    try:
        function = entry.load()
    except Exception as error:  # code of another package
        raise ConfigError(
            f"function {name} ({value}) can't be imported: {type(error).__name__}: {error}",
            "install what it needs, or correct its package",
        ) from error
    if not isinstance(function, RowFunction):
        raise ConfigError(f"function {name} ({value}) is no RowFunction", "correct its package")
    return function
