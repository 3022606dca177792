"""The change of a table's columns to those of another schema: columns are added, dropped, or widened in place. Pure.

A column keeps its values only if it stays the same column, of a type that Iceberg can widen in place. Any other column
is dropped and added again: Iceberg identifies columns by number, so values of the old column in files never appear in
the new one, which is NULL until its rows are written again.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

_WIDER: Final[Mapping[str, str]] = {"int": "bigint", "float": "double"}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True, slots=True)
class Evolution:
    """Changes of a table's columns, made in one commit, in this order. Types are Spark's names."""

    dropped: tuple[str, ...] = ()
    added: tuple[tuple[str, str], ...] = ()
    widened: tuple[tuple[str, str], ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()  # before all others

    def __bool__(self) -> bool:
        return bool(self.dropped or self.added or self.widened or self.renamed)

    def keeping(self, version: int) -> "Evolution":
        """Returns the same change for a table whose rows are never written again: columns that the source has dropped
        stay, and a column that is replaced by another of its name stays under another name. `version`: of the schema
        that the table gets.
        """
        added = {name for name, _ in self.added}
        renamed = tuple((name, f"{name}__before_v{version}") for name in self.dropped if name in added)
        return replace(self, dropped=(), renamed=renamed)


def evolution(held: Mapping[str, str], wanted: Mapping[str, str], carried: Collection[str]) -> Evolution:
    """Returns the change from the columns that the table has to those of the schema (name → type). `carried`: the
    columns that are still the same ones, if the table has them.
    """
    stay = {name for name in wanted if name in held and name in carried and _holds(wanted[name], held[name])}
    return Evolution(
        dropped=tuple(name for name in held if name not in stay),
        added=tuple((name, kind) for name, kind in wanted.items() if name not in stay),
        widened=tuple((name, kind) for name, kind in wanted.items() if name in stay and held[name] != kind),
    )


def _holds(wide: str, narrow: str) -> bool:
    """Returns whether Iceberg converts the narrow type to the wide one without rewriting files."""
    if wide == narrow or _WIDER.get(narrow) == wide:
        return True
    old, new = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    return bool(old and new) and _precision(old) <= _precision(new) and _scale(old) == _scale(new)


def _precision(decimal: re.Match[str] | None) -> int:
    return int(decimal[1]) if decimal else 0


def _scale(decimal: re.Match[str] | None) -> int:
    return int(decimal[2]) if decimal else 0
