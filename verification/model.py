"""What comparing the source with a store has found. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cdc.model.events import TableId

LISTED_MAX: Final = 10_000
"""Differences of one table and sink that are listed; the counts are always whole."""


class Kind(StrEnum):
    """How a store's row differs from the source's."""

    MISSING = "missing"  # the source has the row, the store has not
    EXTRA = "extra"  # the store has a row that it is not to hold
    STALE = "stale"  # the row has a lower version than the last record of its key
    WRONG = "wrong column"  # the row has the version of the last record, and other values
    FUTURE = "version from the future"  # the version is above all that capture has published
    TWICE = "stored twice"
    LOOKUP = "lookup key"  # of a row that is right else; or one that leads to no row with this value


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """One column, by its name in the store. Values are cut short."""

    column: str
    source: str  # what the store is to hold; "absent" for a column that it is not to have
    store: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One row. Two looks at both sides have shown that nothing on its way explains it."""

    key: bytes  # record key
    kind: Kind
    columns: tuple[ColumnDifference, ...] = ()
    version: int | None = None  # in the store; of a deleted row too
    is_foreign: bool = False  # no later change is taken, or two rows of the key are stored: it has to be removed
    rejected: str = ""  # why the store rejected the row: the reason of its open dead letter

    def as_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"key": self.key.decode("utf-8", "replace"), "kind": self.kind.value}
        if self.columns:
            said["columns"] = [{"column": c.column, "source": c.source, "store": c.store} for c in self.columns]
        if self.version is not None:
            said["version"] = self.version
        return said | ({"rejected": self.rejected} if self.rejected else {})


STRAY: Final = ColumnDifference("(lookup key)", "absent", "a key that leads to no row with this value")


@dataclass(slots=True)
class TableResult:
    """One table of one sink."""

    sink: str
    table: TableId
    source_rows: int = 0  # that were compared
    store_rows: int = 0
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    differences: list[Difference] = field(default_factory=list)  # LISTED_MAX at most
    undecided: int = 0  # rows that changed at each look, or whose transactions did not end
    why_not: str = ""  # why the table was not compared, or not whole
    repaired: int = 0
    strays: list[str] = field(default_factory=list)  # lookup keys that lead to no row that has them

    @property
    def drift(self) -> int:
        """Rows that differ."""
        return sum(self.counts.values())

    def add(self, difference: Difference) -> None:
        self.counts[difference.kind] += 1
        if len(self.differences) < LISTED_MAX:
            self.differences.append(difference)

    def add_strays(self, names: Iterable[str]) -> None:
        """Count and list lookup keys that lead to no row that has them."""
        for name in names:
            self.strays.append(name)
            self.add(Difference(name.encode("utf-8", "surrogateescape"), Kind.LOOKUP, (STRAY,)))

    def as_json(self) -> dict[str, Any]:
        return {
            "sink": self.sink,
            "table": str(self.table),
            "source_rows": self.source_rows,
            "store_rows": self.store_rows,
            "drift": self.drift,
            "counts": {kind.value: count for kind, count in self.counts.items() if count},
            "differences": [difference.as_json() for difference in self.differences],
            "undecided": self.undecided,
            "not_compared": self.why_not,
            "repaired": self.repaired,
        }
