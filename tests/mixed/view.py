"""What topics should hold of the source: its journal as the configuration lets it be published, and records in the one
form that the judge (tests/checker) reads, whatever profile they were written in.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.checker.journal import Entry
from tests.checker.records import Record, Row, parse
from tests.mixed.operations import HEAVY, HIDDEN, MASK_CHARS, MASKED

HIDDEN_COLUMNS = (HIDDEN,)  # left out by source.exclude_columns
CHANGING_PREFIX = "x"  # of columns that are added and dropped


@dataclass(frozen=True, slots=True)
class View:
    """`large_max`: characters of `big`, above which no row of HEAVY is published."""

    large_max: int

    def row(self, table: str, row: Row | None) -> Row | None:
        """As it may be published, without columns that come and go."""
        if row is None:
            return None
        kept = {name: value for name, value in row.items() if _is_judged(name)}
        if table.endswith(f".{MASKED}") and kept.get("big") is not None:
            kept["big"] = kept["big"][:MASK_CHARS]
        return kept

    def journal(self, journal: Iterable[Entry]) -> list[Entry]:
        """Without changes that are dead letters."""
        return [
            replace(entry, old_row=self.row(entry.table, entry.old_row), new_row=self.row(entry.table, entry.new_row))
            for entry in journal
            if not self.is_dead(entry)
        ]

    def is_dead(self, entry: Entry) -> bool:
        """Whether no record can hold what is in the log. A large value that an update leaves alone is not there."""
        if not self.is_too_large(entry.table, entry.new_row):
            return False
        return entry.old_row is None or entry.new_row is None or entry.old_row["big"] != entry.new_row["big"]

    def is_too_large(self, table: str, row: Row | None) -> bool:
        return table.endswith(f".{HEAVY}") and row is not None and len(row["big"] or "") > self.large_max

    def rows(self, rows: Mapping[str, Sequence[tuple[Row, Row]]]) -> dict[str, list[tuple[Row, Row]]]:
        """Of the source."""
        return {table: [(key, self.row(table, row) or {}) for key, row in found] for table, found in rows.items()}

    @staticmethod
    def records(records: Iterable[Record]) -> list[Record]:
        """Of tables, in the form of profile `readable`."""
        return [_readable(record) for record in records]


def _is_judged(column: str) -> bool:
    return column not in HIDDEN_COLUMNS and not column.startswith(CHANGING_PREFIX)


def _readable(record: Record) -> Record:
    """Without columns that come and go; what profile `debezium` has for what it does not know is left out too. What is
    no row record stays as it is, for the judge to find."""
    if record.value is None:
        return record
    try:
        value, key = parse(record.value), parse(record.key)
    except ValueError:
        return record
    unchanged = value["source"].get("unchanged", ())
    if value["before"] is not None:
        value["before"] = {name: value["before"][name] for name in key}
    if value["after"] is not None:
        value["after"] = {
            name: member for name, member in value["after"].items() if name not in unchanged and _is_judged(name)
        }
    for names in ("unchanged", "filled"):
        kept = [name for name in value["source"].get(names, ()) if _is_judged(name)]
        value["source"].pop(names, None)
        if kept:
            value["source"][names] = kept
    return replace(record, value=json.dumps(value).encode())
