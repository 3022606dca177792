"""The result of comparing the source with a store. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from cdc.model.events import TableId

LISTED_MAX: Final = 10_000
"""The number of differences of one table and sink that are listed. The counts include all differences."""

VALUE_CHARS_MAX: Final = 40  # of a value in a difference


class DriftKind(StrEnum):
    """The kind of difference between a store's row and the source's."""

    MISSING = "missing"  # the source has the row, the store has not
    EXTRA = "extra"  # the store has a row that it must not hold
    STALE = "stale"  # the row has a lower version than the last record of its key
    WRONG = "wrong column"  # the row has the version of the last record, but other values
    FUTURE = "version from the future"  # the version is above all versions that capture has published
    TWICE = "stored twice"
    LOOKUP = "lookup key"  # of a row that is right else; or one that leads to no row with this value


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """A difference in one column, by its name in the store. Values are truncated."""

    column: str
    source: str  # the expected value; "absent" for a column that the store must not have
    store: str


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs. Two readings of both sides have shown that no write in progress explains it."""

    key: bytes  # record key
    kind: DriftKind
    columns: tuple[ColumnDifference, ...] = ()
    version: int | None = None  # in the store; also that of a deleted row
    is_foreign: bool = False  # later changes would be stale, or two rows have the key: the row must be removed
    rejected: str = ""  # why the store rejected the row: the reason of its open dead letter

    def as_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {"key": self.key.decode("utf-8", "replace"), "kind": self.kind.value}
        if self.columns:
            result["columns"] = [{"column": c.column, "source": c.source, "store": c.store} for c in self.columns]
        if self.version is not None:
            result["version"] = self.version
        return result | ({"rejected": self.rejected} if self.rejected else {})


ORPHANED_LOOKUP: Final = ColumnDifference("(lookup key)", "absent", "a key that leads to no row with this value")


@dataclass(slots=True)
class TableResult:
    """The result for one table of one sink."""

    sink: str
    table: TableId
    source_rows: int = 0  # that were compared
    store_rows: int = 0
    counts: dict[DriftKind, int] = field(default_factory=lambda: dict.fromkeys(DriftKind, 0))
    differences: list[RowDifference] = field(default_factory=list)  # LISTED_MAX at most
    undecided: int = 0  # rows that changed at each reading, or whose transactions did not end
    why_not: str = ""  # the reason why the table was not compared, or only in part
    repaired: int = 0
    orphans: list[str] = field(default_factory=list)  # lookup keys that lead to no row that has them

    @property
    def drift(self) -> int:
        """The number of rows that differ."""
        return sum(self.counts.values())

    def add(self, difference: RowDifference) -> None:
        self.counts[difference.kind] += 1
        if len(self.differences) < LISTED_MAX:
            self.differences.append(difference)

    def add_orphaned_lookups(self, names: Iterable[str]) -> None:
        """Count and list lookup keys that lead to no row that has them."""
        for name in names:
            self.orphans.append(name)
            self.add(RowDifference(name.encode("utf-8", "surrogateescape"), DriftKind.LOOKUP, (ORPHANED_LOOKUP,)))

    def lines(self, count_max: int) -> Iterator[str]:
        """Describes the first `count_max` differences: a line for each row, and an indented one for each column."""
        for one in self.differences[:count_max]:
            where = f"{self.sink}: {self.table} {one.key.decode('utf-8', 'replace')}: {one.kind.value}"
            if one.rejected:
                where += f" (the store rejects the row: {one.rejected}; cdc dlq list {self.sink})"
            yield where
            yield from (f"  {c.column} is {c.store} in the store, {c.source} in the source" for c in one.columns)

    @property
    def remark(self) -> str:
        """The kinds of difference with their counts, and what was not compared; empty if there is nothing to say."""
        if self.why_not:
            return f"not compared: {self.why_not}"
        remarks = [f"{count:,} {kind.value}" for kind, count in self.counts.items() if count]
        if self.undecided:
            remarks.append(f"{self.undecided:,} undecided: they change too often, or their transactions do not end")
        return ", ".join(remarks)

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


def shown(value: object) -> str:
    """Returns a value as a difference shows it, truncated to VALUE_CHARS_MAX characters."""
    if value is None:
        return "null"
    # A string is quoted, so that "1" and 1, or a trailing blank, can be distinguished.
    text = str(value) if isinstance(value, bool | int | float) else repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
