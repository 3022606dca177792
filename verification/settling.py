"""Decides which of the rows that differ are drift. A row differs for a moment whenever it changes. It is drift if no
write in progress can explain the difference. Each round waits for writers, reads the source, waits until the store
shows everything that had committed by then, and reads the store. A difference is drift

- if the store held the same write (the same version) in the round before: that write was in the log before the source
  was read, and because writers were awaited, everything committed before is visible in the store. If the key had
  changed since, the store would hold another write.
- if the source's row was the same tuple in three readings, and the store differed at both readings between.

Keys without any entry in the store have no version: only the second rule finds them. Rows that are not decided after
ROUNDS_MAX rounds are reported as undecided.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc.config.settings import KafkaConfig
from cdc.kafka.last_versions import last_versions
from cdc.model.events import TableSchema
from cdc.postgres.verified_rows import RowsTooLargeError, SourceRow, VerifiedTable
from sinks.view import Held, StoreView
from verification.expected import ExpectedRows, plain_key
from verification.model import ColumnDifference, Difference, Kind
from verification.world import World

ROUNDS_MAX: Final = 10
BLIND_ROUNDS_MAX: Final = 3  # each waits for writers, snapshots and rows that are being completed
SAME_READINGS: Final = 2  # after the first
WRITERS_S_MAX: Final = 10.0
CHECK_S: Final = 0.02
PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome for a number of keys."""

    differences: list[Difference]
    undecided: int


@dataclass(frozen=True, slots=True)
class Side:
    """One table of one sink, ready to be compared."""

    sink: str
    view: StoreView
    expected: ExpectedRows
    source: VerifiedTable
    is_partial: bool  # rows may be absent from the store without being missing

    def held(self, keys: Sequence[bytes]) -> dict[bytes, Held | None]:
        schema = self.expected.schema
        found = self.view.held(schema.table, [self.expected.store_key(key) for key in keys])
        return dict(zip(keys, found, strict=True))

    def rows(self, keys: Sequence[bytes]) -> dict[bytes, SourceRow]:
        return {plain_key(key): row for key, row in self.source.by_keys(keys).items()}

    def difference(self, key: bytes, row: SourceRow | None, held: Held | None, ceiling: int) -> Difference | None:
        """Returns the difference between the source's row and the store's, None if there is none. WRONG includes
        STALE.
        """
        is_wanted = row is not None and self.expected.is_held(row.texts)
        version = None if held is None else held.version
        is_stored = held is not None and held.row is not None
        is_future = held is not None and held.version > ceiling and (is_wanted or is_stored)
        columns: tuple[ColumnDifference, ...] = ()
        kind: Kind | None = None
        if is_wanted and not is_stored:
            kind = None if self.is_partial else Kind.MISSING
        elif is_stored and not is_wanted:
            kind = Kind.EXTRA
        elif is_wanted and row is not None and held is not None and held.row is not None:
            columns = self.expected.differences(row.texts, held.row)
            if held.is_edited:
                columns = (*columns, ColumnDifference("(version)", str(held.version), "another one in the document"))
            kind = Kind.WRONG if columns else Kind.LOOKUP if held.lookups else None
            columns += tuple(ColumnDifference(name, "a lookup key of the row", what) for name, what in held.lookups)
            if held.copies > 1:
                kind = Kind.TWICE
        if is_future:
            kind = Kind.FUTURE
        if kind is None:
            return None
        return Difference(key, kind, columns, version, is_foreign=is_future or kind is Kind.TWICE)


def settle(side: Side, world: World, keys: Sequence[bytes]) -> Settled:
    """Decides for each key whether it is drift. Raises WatershedError."""
    try:
        return _settle(side, world, keys)
    except RowsTooLargeError:
        half = len(keys) // 2
        first, second = settle(side, world, keys[:half]), settle(side, world, keys[half:])
        return Settled([*first.differences, *second.differences], first.undecided + second.undecided)


def _settle(side: Side, world: World, keys: Sequence[bytes]) -> Settled:
    confirmed: list[Difference] = []
    held = side.held(keys)
    pending = list(keys)
    readings: dict[bytes, tuple[str, int]] = {}  # for keys that differed: the tuple, and the number of later readings
    table = side.expected.schema.table
    blind = 0  # rounds that could not decide
    for number in range(ROUNDS_MAX):
        if number:
            time.sleep(PAUSE_S)
        is_visible = _await_writers(side.source) and not world.unsettled(table)
        blind += not is_visible
        rows = side.rows(pending)
        world.reach(side.sink)
        now = side.held(pending)
        ceiling = world.ceiling()
        left: list[bytes] = []
        for key in pending:
            before, after, row = held[key], now[key], rows.get(key)
            found = side.difference(key, row, after, ceiling)
            if found is None:
                continue
            is_same_write = before is not None and after is not None and before.version == after.version
            if found.kind is Kind.LOOKUP:
                # A lookup key changes with other rows too: those changes had to be shown since the reading before.
                is_same_write = is_same_write and before is not None and bool(before.lookups)
            tuple_, again = readings.get(key, ("", 0))
            readings[key] = (row.xmin, again + 1 if row.xmin == tuple_ else 0) if row is not None else ("", 0)
            is_same_row = readings[key][1] >= SAME_READINGS and found.kind is not Kind.FUTURE
            if is_visible and (is_same_write or is_same_row):
                confirmed.append(found)
            else:
                left.append(key)
        held, pending = now, left
        if not pending or blind == BLIND_ROUNDS_MAX:
            break
    return Settled(confirmed, len(pending))


def _await_writers(source: VerifiedTable) -> bool:
    """Waits until all transactions that have written to the table by now have ended. Returns whether they did."""
    deadline = time.monotonic() + WRITERS_S_MAX
    writers = source.writers()
    while writers:
        if time.monotonic() > deadline:
            return False
        time.sleep(CHECK_S)
        writers &= source.writers()
    return True


def with_stale_rows(kafka: KafkaConfig, schema: TableSchema, differences: Sequence[Difference]) -> list[Difference]:
    """Returns the differences; rows with other values are STALE if their version is lower than that of their key's last
    record.
    """
    wrong = {one.key: one for one in differences if one.kind is Kind.WRONG}
    if not wrong:
        return list(differences)
    last = last_versions(kafka, schema.topic, wrong.keys(), plain_key)
    return [
        Difference(one.key, Kind.STALE, one.columns, one.version)
        if one.key in wrong and one.version is not None and one.version < last.get(one.key, 0)
        else one
        for one in differences
    ]
