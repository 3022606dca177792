"""Patterns over tables: those of `source.tables`, and those of stores and commands. Pure.

A pattern is a name with `*`, `?` or `[…]`, such as public.* or tenant_*.orders, or a regular expression between ^ and
$, such as ^tenant_[0-9]+[.]orders$. Both match the whole of `schema.table`, with capitals as they are.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from cdc.model.events import TableId

_WILDCARD: Final = re.compile(r"[*?\[]")


def is_pattern(name: str) -> bool:
    """Says whether the pattern can match several tables."""
    return name.startswith("^") or _WILDCARD.search(name) is not None


def matches(pattern: str, table: TableId) -> bool:
    if pattern.startswith("^"):
        return _expression(pattern).fullmatch(str(table)) is not None
    return pattern == str(table) or fnmatchcase(str(table), pattern)


@lru_cache(maxsize=1024)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def pattern_of(table: TableId) -> str:
    """Returns a pattern that matches this table and no other, whatever characters its name has."""
    return f"^{re.escape(str(table))}$"


def require_patterns(patterns: Iterable[str]) -> None:
    """Raises ValueError for what is neither a table's name nor a pattern over `schema.table`."""
    for pattern in patterns:
        if not is_pattern(pattern):
            TableId.parse(pattern)
        elif pattern.startswith("^"):
            if not pattern.endswith("$"):
                raise ValueError(f"{pattern} must end with $: a regular expression matches the whole of schema.table")
            try:
                _expression(pattern)
            except re.error as error:
                raise ValueError(f"{pattern} is not a regular expression: {error.msg}") from None


def is_system(table: TableId) -> bool:
    """Says whether the table is one of PostgreSQL's own."""
    return table.schema.startswith("pg_") or table.schema == "information_schema"


@dataclass(frozen=True, slots=True)
class TableChoice:
    """The tables that one of `include` names or matches, without those that one of `exclude` does. Patterns match no
    table of PostgreSQL's own."""

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[TableId, ...]:
        """The tables that are named, which exist or not."""
        return tuple(TableId.parse(name) for name in self.include if not is_pattern(name))

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(filter(is_pattern, self.include))

    def takes(self, table: TableId) -> bool:
        return str(table) in self.include or self.matches(table)

    def matches(self, table: TableId) -> bool:
        """Says whether a pattern, not a name, takes the table."""
        return (
            str(table) not in self.include
            and any(matches(pattern, table) for pattern in self.patterns)
            and not is_system(table)
            and not any(matches(pattern, table) for pattern in self.exclude)
        )
