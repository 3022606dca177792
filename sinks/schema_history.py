"""The versions of a table's schema: which columns are the same in all of them, and rows of an older version converted
to the newest one. Pure.

A record names the version with which it was written, and may arrive when its table has another. A column that its
version lacks has the constant with which it was added (TableSchema.filled), or is NULL. If stored rows changed in
another way, capture publishes each row again. So an older value may be missing until then, but must never be mistaken
for another: a text that was a number, or the value of a former column of the same name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Self

import msgspec

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

_read_json: Final = msgspec.json.Decoder().decode  # integers of any size stay exact

Row = dict[str, Json]


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """The known versions of one table's schema, at least one, oldest first."""

    versions: tuple[TableSchema, ...]
    _conversions: dict[int, "_Conversion"] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, schemas: Iterable[TableSchema]) -> Self:
        """Makes a history of versions in any order; of several with one number the last applies."""
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
        """Returns columns of the newest version that were added later and may be NULL: no older document has any of
        them."""
        return frozenset(
            column.name
            for column in self.newest.columns
            if column.nullable
            and any(all(held.name != column.name for held in schema.columns) for schema in self.earlier)
        )

    def carried(self, version: int) -> frozenset[str]:
        """Returns columns of the newest version whose values in `version` are still valid: the same column in all known
        versions between, with types that can represent each other's values."""
        return self._conversion(version).carried

    def filled(self, version: int) -> Mapping[str, Json]:
        """Returns columns of the newest version that were added with a constant after `version`, each with its value in
        rows of that version."""
        return self._conversion(version).filled

    @property
    def ever_filled(self) -> frozenset[str]:
        """Returns the columns that any version added with a constant."""
        return frozenset(name for schema in self.versions for name, _ in schema.filled)

    def column_names(self, version: int) -> frozenset[str] | None:
        """Returns the names of the columns; None for an unknown version."""
        return self._conversion(version).column_names

    def in_newest(self, version: int, row: Row, unchanged: frozenset[str]) -> tuple[Row, frozenset[str]]:
        """Converts a row of `version`, and the columns that it lacks, to the newest version. If a column did not stay
        the same, the store's value is another column's too: it becomes NULL, or the constant with which the present
        column was added, and is not kept."""
        conversion = self._conversion(version)
        carried, filled = conversion.carried, conversion.filled
        kept = unchanged & carried
        return {
            column.name: row.get(column.name) if column.name in carried else filled.get(column.name)
            for column in self.newest.columns
            if column.name not in kept
        }, kept

    def _conversion(self, version: int) -> "_Conversion":
        conversion = self._conversions.get(version)
        if conversion is None:
            conversion = self._conversions[version] = _conversion(self.versions, version)
        return conversion


@dataclass(frozen=True, slots=True)
class _Conversion:
    """The columns that an older version has in common with the newest, and values of others."""

    column_names: frozenset[str] | None
    carried: frozenset[str]
    filled: Mapping[str, Json]


def _conversion(versions: tuple[TableSchema, ...], version: int) -> _Conversion:
    later = [schema for schema in versions if schema.version >= version]
    known = bool(later) and later[0].version == version
    # A key column only ever widens, and a row without its key is none.
    carried = {column.name for column in versions[-1].columns}
    filled: dict[str, Json] = {}
    for older, newer in pairwise(later):
        columns = {column.name: column for column in older.columns}
        same = {
            column.name
            for column in newer.columns
            if column.name in columns and (column.name in newer.key or reads_as(columns[column.name], column))
        }
        carried &= same
        filled = {name: value for name, value in filled.items() if name in same}
        filled |= {name: _read_json(value) for name, value in newer.filled if name not in columns}
    names = frozenset(column.name for column in later[0].columns) if known else None
    return _Conversion(names, frozenset(carried), filled)


def reads_as(old: Column, new: Column) -> bool:
    """Says whether each value of the old column's type, in its JSON form, is also a value of the new one's. False if
    that needs a cast that only PostgreSQL can do."""
    held, wanted = old.base_type_oid or old.type_oid, new.base_type_oid or new.type_oid
    if held == wanted:
        return held not in _NUMERICS or _fits(numeric_digits(old), numeric_digits(new))
    if wanted in _TEXTS:
        return held in _TEXTS or old.type_kind == "e"
    return wanted in _WIDER.get(held, ())


def numeric_digits(column: Column) -> tuple[int, int] | None:
    """Returns a numeric's digits before and after the point; None if there is no limit. The modifier is precision << 16
    | scale (11 bits, signed) + 4."""
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
