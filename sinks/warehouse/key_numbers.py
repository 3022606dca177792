"""Numbers for the keys of a batch, by which rows of files are compared with it a column at a time. Pure."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class KeyNumbers:
    """The distinct keys of some rows, numbered from 0 in the order of their first rows."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        """`columns`: those of the key, without nulls; at least one."""
        self._values = [pc.unique(column) for column in columns]
        # Of the numbers of the columns before and one more column: which pairs there are.
        self._pairs: list[pa.Array] = []
        numbers = pc.index_in(columns[0], value_set=self._values[0])
        for values, column in zip(self._values[1:], columns[1:], strict=True):
            paired = _paired(numbers, column, values)
            self._pairs.append(pc.unique(paired))
            numbers = pc.index_in(paired, value_set=self._pairs[-1])
        self.of_rows: pa.Array = numbers
        """The number of each row's key."""

    @property
    def count(self) -> int:
        return len(self._pairs[-1] if self._pairs else self._values[0])

    def newest(self, versions: pa.Array) -> pa.Array:
        """Returns the position of the newest row of each key, in the order of the keys' numbers; of equal versions that
        of the first row. `versions`: of the rows."""
        if self.count == len(versions):
            return pa.array(range(self.count), pa.int64())
        listed = pa.table([self.of_rows, versions], names=["number", "version"])
        order = pc.sort_indices(listed, sort_keys=[("number", "ascending"), ("version", "descending")])
        ordered = self.of_rows.take(order)
        is_first = pa.concat_arrays([pa.array([True]), pc.not_equal(ordered[1:], ordered[:-1])])
        return order.filter(is_first).cast(pa.int64())

    def find(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array | pa.ChunkedArray:
        """Returns the number of each of other rows; null for a key that is none of these."""
        numbers = _found(columns[0], self._values[0])
        for values, column, pairs in zip(self._values[1:], columns[1:], self._pairs, strict=True):
            numbers = pc.index_in(_paired(numbers, column, values), value_set=pairs)
        return numbers


def comparable(column: pa.Array) -> pa.Array:
    """Returns values that are equal where Spark considers those of a key's column equal: 0.0 and -0.0 are."""
    if pa.types.is_floating(column.type):
        return pc.add(column, pa.scalar(0, column.type))
    if pa.types.is_list(column.type):  # Arrow compares none
        return pa.array([None if items is None else str(list(map(_signless, items))) for items in column.to_pylist()])
    return column


def _signless(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value


def _paired(numbers: pa.Array | pa.ChunkedArray, column: pa.Array | pa.ChunkedArray, values: pa.Array) -> pa.Array:
    """Returns a number for each pair of a number and one of the values; null where one of them is missing."""
    return pc.add(pc.multiply(numbers.cast(pa.int64()), len(values)), _found(column, values).cast(pa.int64()))


def _found(column: pa.Array | pa.ChunkedArray, values: pa.Array) -> pa.Array | pa.ChunkedArray:
    return pc.index_in(column, value_set=values.cast(column.type))
