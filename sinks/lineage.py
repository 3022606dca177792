"""A table's schema from version to version: which columns stay what they were, and rows of an older version in the
newest one's shape. Pure.

A record names the version that it was written with, and may arrive after its table has another. What its version does
not know is NULL: such a column was added without a default. Wherever stored rows changed otherwise, capture publishes
each row anew, so an older value may be left out until then, but never be taken for what it is not: a text that was a
number, or the value of a former column of the same name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Self

from cdc.model.events import Column, TableSchema
from sinks.contract import Json

_NUMERICS: Final = frozenset({1700, 1231})  # numeric, numeric[]
_TEXTS: Final = frozenset({19, 25, 1042, 1043})  # name, text, char(n), varchar
# Integer types and floats of which the later ones hold every value of the earlier, in the same JSON.
_WIDER: Final[Mapping[int, frozenset[int]]] = {
    21: frozenset({23, 20}),
    23: frozenset({20}),
    700: frozenset({701}),
}
_TYPMOD_HEADER: Final = 4  # PostgreSQL's type modifiers count from here (VARHDRSZ)

Row = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Lineage:
    """The known versions of one table's schema, at least one, oldest first."""

    versions: tuple[TableSchema, ...]
    _shapes: dict[int, "_Shape"] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, schemas: Iterable[TableSchema]) -> Self:
        """In any order; of several with one version, the last."""
        by_version = {schema.version: schema for schema in schemas}
        return cls(tuple(by_version[version] for version in sorted(by_version)))

    @property
    def newest(self) -> TableSchema:
        return self.versions[-1]

    @property
    def earlier(self) -> tuple[TableSchema, ...]:
        return self.versions[:-1]

    @property
    def added(self) -> frozenset[str]:
        """Columns of the newest version that came later and may be NULL: a document from before has none of them."""
        return frozenset(
            column.name
            for column in self.newest.columns
            if column.nullable
            and any(all(held.name != column.name for held in schema.columns) for schema in self.earlier)
        )

    def carried(self, version: int) -> frozenset[str]:
        """Columns of the newest version whose values as of `version` are values of it: the same column all the time,
        as far as versions between are known, and of types that hold each other's values."""
        return self._shape(version).carried

    def column_count(self, version: int) -> int | None:
        """None for a version that is not known."""
        return self._shape(version).column_count

    def in_newest(self, version: int, row: Row, unchanged: frozenset[str]) -> tuple[Row, frozenset[str]]:
        """A row of `version`, and the columns that it lacks, in the newest version's shape. Of a column that did not
        stay the same, also the store's value is another column's: it is NULL, not kept."""
        carried = self._shape(version).carried
        kept = unchanged & carried
        return {
            column.name: row.get(column.name) if column.name in carried else None
            for column in self.newest.columns
            if column.name not in kept
        }, kept

    def _shape(self, version: int) -> "_Shape":
        shape = self._shapes.get(version)
        if shape is None:
            shape = self._shapes[version] = _shape(self.versions, version)
        return shape


@dataclass(frozen=True, slots=True)
class _Shape:
    """What an older version has in common with the newest."""

    column_count: int | None
    carried: frozenset[str]


def _shape(versions: tuple[TableSchema, ...], version: int) -> _Shape:
    later = [schema for schema in versions if schema.version >= version]
    known = bool(later) and later[0].version == version
    # A key column only ever widens, and a row without its key is none.
    carried = {column.name for column in versions[-1].columns}
    for older, newer in pairwise(later):
        columns = {column.name: column for column in older.columns}
        carried &= {
            column.name
            for column in newer.columns
            if column.name in columns and (column.name in newer.key or reads_as(columns[column.name], column))
        }
    return _Shape(len(later[0].columns) if known else None, frozenset(carried))


def reads_as(old: Column, new: Column) -> bool:
    """Whether each value of the old column's type, in its JSON form, is a value of the new one's. Where that takes a
    cast that PostgreSQL alone knows, not."""
    held, wanted = old.base_type_oid or old.type_oid, new.base_type_oid or new.type_oid
    if held == wanted:
        return held not in _NUMERICS or _fits(numeric_digits(old), numeric_digits(new))
    if wanted in _TEXTS:
        return held in _TEXTS or old.type_kind == "e"
    return wanted in _WIDER.get(held, ())


def numeric_digits(column: Column) -> tuple[int, int] | None:
    """Of a numeric: digits before and after the point; None where there is no limit. The modifier is
    precision << 16 | scale (11 bits, signed) + 4."""
    modifier = column.type_modifier
    if modifier < _TYPMOD_HEADER:
        modifier = column.base_type_modifier or -1
    if modifier < _TYPMOD_HEADER:
        return None
    packed = modifier - _TYPMOD_HEADER
    precision, scale = packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 1024) - 1024
    return precision - scale, scale


def _fits(held: tuple[int, int] | None, wanted: tuple[int, int] | None) -> bool:
    if wanted is None:
        return True
    return held is not None and held[0] <= wanted[0] and held[1] <= wanted[1]
