"""Removes rows from the warehouse, with their versions, so that any change of them is taken again."""

from collections.abc import Sequence
from typing import Final

from cdc.model.events import Column
from sinks.contents import Key, batched
from sinks.contract import Json
from sinks.errors import SinkError
from sinks.warehouse.columns import column_type
from sinks.warehouse.engine import Conflict, Engine
from sinks.warehouse.merging import ATTEMPT_COUNT_MAX
from sinks.warehouse.naming import VERSION, TableLocation, quoted
from sinks.warehouse.statements import full, literal

ROWS_MAX: Final = 200  # of one statement


def remove(engine: Engine, place: TableLocation, key: Sequence[Column], held: Sequence[tuple[Key, int]]) -> None:
    """Deletes the rows that have these versions. Raises SinkError when other writers' commits win each time."""
    for part in batched(held, ROWS_MAX):
        for table in (place.rows, place.deleted):
            if engine.table_properties(table) is not None:  # histories have no table of deleted keys
                _run(engine, table, removal(table, key, part))


def removal(table: tuple[str, ...], key: Sequence[Column], held: Sequence[tuple[Key, int]]) -> str:
    """Returns the statement that deletes the rows."""
    rows = (
        " AND ".join([*(f"{quoted(c.name)} = {_value(c, row[c.name])}" for c in key), f"{VERSION} = {version}"])
        for row, version in held
    )
    return f"DELETE FROM {full(table)} WHERE {' OR '.join(f'({row})' for row in rows)}"  # noqa: S608 - literals


def _run(engine: Engine, table: tuple[str, ...], statement: str) -> None:
    for _ in range(ATTEMPT_COUNT_MAX):
        try:
            engine.run(statement)
        except Conflict:
            continue
        return
    raise SinkError(
        f"warehouse: table {'.'.join(table)}: the removal conflicted with other writers' commits each time",
        "only one job may write a warehouse: stop the others",
    )


def _value(column: Column, value: Json) -> str:
    """Returns a record's value as a literal of the column's type."""
    text = literal(value if isinstance(value, str) else str(value).lower())
    kind = column_type(column).sql
    return f"unbase64({text})" if kind == "binary" else f"CAST({text} AS {kind})"
