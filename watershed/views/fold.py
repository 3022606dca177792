"""A fold: a Python function that computes the state of a key from its events, one after the other.

States and events are JSON values for the function. A state is written as JSON and read again between two events, so
a fold that begins with a stored state has the result of a fold that begins with the first event.
"""

import hashlib
import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from psycopg import sql
from sqlglot import exp, parse_one

from cdc.config.views import FoldConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from watershed.views.refusals import DIALECT
from watershed.views.tracing import TracedQuery, trace

NO_STATE: Final = "null"
_CLAUSES: Final = {"expressions", "from_", "where", "order"}  # of a query whose rows are rows of its table
_MESSAGE_CHARS_MAX: Final = 300
_NEXT_QUERY: Final = "write one row for each event: SELECT columns FROM table WHERE …"

State = dict[str, Any]
Function = Callable[[State | None, dict[str, Any]], State | None]


class FoldError(Exception):
    """The state of one key can't be computed."""


@dataclass(frozen=True, slots=True)
class Fold:
    """The fold of one view, over the rows of one table, its log."""

    config: FoldConfig
    function: Function
    digest: str  # of the source files of the function
    log: TableId
    key: tuple[str, ...]  # the log's columns
    order: tuple[str, ...]  # the log's columns

    @property
    def identity(self) -> list[Any]:
        """Returns everything in the fold that determines the content of the rows."""
        return [self.config.function, self.config.order, self.config.columns, self.digest, self.key, self.order]

    def record(self, state: sql.Composable) -> sql.Composed:
        """Returns SQL that converts a state, which is JSON, to a row `r` of its columns."""
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_name))
            for name, type_name in self.config.columns.items()
        ]
        return sql.SQL("json_to_record({}) AS r({})").format(state, sql.SQL(", ").join(columns))

    def over(self, state: str, events: Iterable[tuple[str, bool]]) -> tuple[str, str | None]:
        """Returns the state after these events, and the order of the last one; None: there was no event. All are JSON.
        Each event is its row, and whether the event before it has the same order. Raises FoldError."""
        last: dict[str, Any] | None = None
        for text, is_repeated in events:
            event = _event(text)
            order = [event[name] for name in self.config.order]
            shown = ", ".join(f"{name} = {value}" for name, value in zip(self.config.order, order, strict=True))
            if None in order:
                raise FoldError(f"the order of an event contains NULL: {shown}")
            if is_repeated:
                raise FoldError(f"two events have the same order {shown}, which must be unique within a key")
            try:
                state = written(self._returned(self.function(_read(state), event)))
            except Exception as error:  # noqa: BLE001 - code of the user, whose key is rejected
                raise FoldError(f"{self.config.function} fails at the event {shown}: {_error_text(error)}") from None
            last = dict(zip(self.order, order, strict=True))
        return state, None if last is None else written(last)

    def _returned(self, state: object) -> State | None:
        if state is None:
            return None
        if not isinstance(state, dict):
            raise TypeError(f"it returned a value of type {type(state).__name__}; a state is a dict, or None")
        if missing := [name for name in self.config.columns if name not in state]:
            raise KeyError(f"the state lacks the columns {', '.join(missing)}; set a column without a value to None")
        return state


def fold_of(
    view: str, query: TracedQuery, text: str, config: FoldConfig, columns: Mapping[TableId, Sequence[str]]
) -> Fold:
    """Returns the fold of a view's query. Raises ConfigError for a query whose rows are not rows of one table, for key
    and order that are not columns of it, and for a function that can't be called."""
    where = f"view {view}, fold"
    select = parse_one(text, dialect=DIALECT)
    clauses = {name for name, value in select.args.items() if value}
    is_of_rows = clauses <= _CLAUSES and len(list(select.find_all(exp.Select))) == 1
    if not is_of_rows or len(query.traces) != 1 or select.find(exp.AggFunc, exp.Window, exp.TableSample):
        raise ConfigError(f"{where}: its query does not return the rows of one table as they are", _NEXT_QUERY)
    log = query.traces[0].table
    names = [name for one in select.expressions for name in (columns[log] if one.is_star else [one.alias_or_name])]
    if doubled := [name for name, times in Counter(name.lower() for name in names).items() if times > 1]:
        raise ConfigError(f"{where}: two columns of its query are named {doubled[0]}", "rename one with AS")
    order = trace(f"{where}.order", text, config.order, columns)
    function, digest = _loaded(where, config.function)
    return Fold(
        config,
        function,
        digest,
        log,
        _plain(where, "key", query.traces[0].keys),
        _plain(where, "order", order.traces[0].keys),
    )


def _plain(where: str, what: str, parts: Sequence[exp.Expression]) -> tuple[str, ...]:
    """The log's columns that these columns of the query are."""
    if computed := [part for part in parts if not isinstance(part, exp.Column)]:
        raise ConfigError(
            f"{where}: a column of the {what} is computed ({computed[0].sql(DIALECT)})",
            "choose columns of the table; an index on key and order finds the events",
        )
    return tuple(part.name for part in parts)


# ---- the function


def _loaded(where: str, reference: str) -> tuple[Function, str]:
    module, _, name = reference.partition(":")
    try:
        imported, digest = _module(module)
    except Exception as error:  # noqa: BLE001 - code of the user, whose error is shown to them
        raise ConfigError(
            f"{where}: module {module} can't be imported: {_error_text(error)}",
            "put it in the folder of the configuration file or on PYTHONPATH, and correct its errors",
        ) from None
    function = getattr(imported, name, None)
    if not callable(function):
        raise ConfigError(
            f"{where}: module {module} ({_file(imported) or 'without a file'}) has no function {name}",
            "name a function of the module: module:function",
        )
    try:
        inspect.signature(function).bind(None, {})
    except TypeError:
        raise ConfigError(
            f"{where}: {reference} can't be called with a state and an event",
            f"define it as def {name}(state, event): …",
        ) from None
    except ValueError:  # of a function that is not written in Python
        pass
    own = _file(sys.modules.get(getattr(function, "__module__", module)))
    if own is not None and own != _file(imported):  # imported from another module
        digest += _digest(own)
    return function, digest


@cache
def _module(name: str) -> tuple[Any, str]:
    """Imports a module. The digest is read before and once only: it is that of the code that this process runs."""
    spec = find_spec(name)
    digest = _digest(Path(spec.origin)) if spec is not None and spec.has_location and spec.origin else ""
    return import_module(name), digest


def _file(module: Any) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name) if name else None


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- JSON without loss


def _event(text: str) -> dict[str, Any]:
    try:
        event: dict[str, Any] = _read(text)
    except ValueError as error:  # an integer of more digits than Python reads
        raise FoldError(f"an event can't be read: {_error_text(error)}") from None
    return event


def _read(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def written(value: Any) -> str:
    """Returns the value as JSON. Raises TypeError and ValueError for values that JSON does not have."""
    match value:
        case None | bool() | str():
            return json.dumps(value)
        case int():
            return int.__repr__(value)
        case float() if isfinite(value):
            return float.__repr__(value)
        case Decimal() if value.is_finite():
            return str(value)
        case float() | Decimal():
            raise ValueError(f"a state can't hold the number {value}")
        case list() | tuple():
            return f"[{','.join(map(written, value))}]"
        case dict():
            return f"{{{','.join(f'{_name(name)}:{written(one)}' for name, one in value.items())}}}"
        case date():  # and datetime
            return json.dumps(value.isoformat())
        case UUID():
            return json.dumps(str(value))
    raise TypeError(f"a state can't hold a value of type {type(value).__name__}: convert it to text or to a number")


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a state can't have the name {name!r}, which is not a string")
    return json.dumps(name)


def _error_text(error: Exception) -> str:
    """Returns the error as one line of text that PostgreSQL can store."""
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    line = f"{type(error).__name__}: {message.partition(chr(10))[0]}".replace("\0", "")
    return line[:_MESSAGE_CHARS_MAX].encode("utf-8", "backslashreplace").decode()
