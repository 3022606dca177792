"""The partitions and sort order of a table, checked against its columns. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdc.config.partitioning import TIMES, Sort, Transform, parse_sort, parse_transform
from cdc.config.store_shapes import WarehouseShape
from cdc.model.events import TableSchema
from sinks.errors import RefusedError
from sinks.warehouse.columns import column_type
from sinks.warehouse.naming import OWN_COLUMNS, check_columns, quoted

_MOMENTS: Final = ("timestamp", "timestamp_ntz")
_BUCKETED: Final = ("int", "bigint", "date", "string", "binary", *_MOMENTS)
_TRUNCATED: Final = ("int", "bigint", "string", "binary")
_NEXT: Final = "correct partition_by or sort_by in the sink's shapes"


@dataclass(frozen=True, slots=True)
class Layout:
    """Partitions and sort order in the syntax of SQL."""

    partitions: tuple[str, ...] = ()
    sorts: tuple[str, ...] = ()


def layout_of(shape: WarehouseShape, schema: TableSchema) -> Layout:
    """Returns the layout that the shape requires. `schema`: in the store's names. Raises RefusedError, naming table and
    column, if a column does not exist, does not have a suitable type, or has the name of one of the mode's own columns.
    """
    check_columns(schema, shape.mode)
    types = {column.name: column_type(column).sql for column in schema.columns} | dict(OWN_COLUMNS[shape.mode])
    where = f"warehouse: table {schema.table}"
    partitions = [_partition(parse_transform(text), types, where) for text in shape.partition_by]
    if len(set(partitions)) != len(partitions):
        raise RefusedError(f"{where}: partition_by names the same partition twice", _NEXT)
    return Layout(tuple(partitions), tuple(_sort(parse_sort(text), types, where) for text in shape.sort_by))


def _partition(transform: Transform, types: Mapping[str, str], where: str) -> str:
    kind = _kind(transform.column, types, where, "partition_by")
    if not _fits(transform.name, kind):
        raise RefusedError(
            f"{where}: partition_by: column {transform.column} has type {kind}, for which Iceberg has no transform "
            f"{transform.name}",
            _NEXT,
        )
    column = quoted(transform.column)
    if transform.name == "identity":
        return column
    if transform.size is not None:
        return f"{transform.name}({transform.size}, {column})"
    return f"{transform.name}s({column})"


def _sort(sort: Sort, types: Mapping[str, str], where: str) -> str:
    kind = _kind(sort.column, types, where, "sort_by")
    if kind.startswith("array"):
        raise RefusedError(f"{where}: sort_by: column {sort.column} has type {kind}, which has no order", _NEXT)
    return f"{quoted(sort.column)} {'DESC' if sort.is_descending else 'ASC'}"


def _kind(column: str, types: Mapping[str, str], where: str, option: str) -> str:
    if column not in types:
        raise RefusedError(f"{where}: {option} names column {column}, which the table does not have", _NEXT)
    return types[column]


def _fits(transform: str, kind: str) -> bool:
    is_decimal = kind.startswith("decimal")
    if transform in TIMES:
        return kind in _MOMENTS or (kind == "date" and transform != "hour")
    if transform == "bucket":
        return kind in _BUCKETED or is_decimal
    if transform == "truncate":
        return kind in _TRUNCATED or is_decimal
    return kind not in ("float", "double") and not kind.startswith("array")
