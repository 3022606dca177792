"""Decides which of the rows that differ are drift. A row differs for a moment whenever it changes. It is drift if no
write in progress can explain the difference. Each round waits for writers, reads the source, waits until the store
shows everything that had committed by then, and reads the store. A difference is drift

- if the store held the same write (the same version) in the round before: that write was in the log before the source
  was read, and because writers were awaited, everything committed before is visible in the store. If the key had
  changed since, the store would hold another write.
- if the source's row was the same tuple in three readings, and the store differed at both readings between.

Keys without any entry in the store have no version: only the second rule finds them. Rows that are not decided after
ROUNDS_MAX rounds, or when WAITED_S_MAX seconds of waiting are over, are undecided.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.config.settings import KafkaConfig
from cdc.model.events import TableSchema
from sinks.contents import StoreContents, StoredEntry
from watershed.verify.expected import ExpectedRows, plain_key
from watershed.verify.model import ColumnDifference, DriftKind, RowDifference
from watershed.verify.pipeline_reader import PipelineReader
from watershed.verify.source_rows import RowsTooLargeError, SourceRow, VerifiedTable
from watershed.verify.suspects import Suspect, Suspects
from watershed.verify.topic_versions import last_versions

ROUNDS_MAX: Final = 10
BLIND_ROUNDS_MAX: Final = 3  # each waits for writers, snapshots and rows that are being completed
WAITED_S_MAX: Final = 60.0  # for writers, snapshots and the sink: after that, only ROUNDS_MIN rounds are completed
SAME_READINGS: Final = 2  # after the first
ROUNDS_MIN: Final = SAME_READINGS + 1
WRITERS_S_MAX: Final = 10.0
CHECK_S: Final = 0.02
PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Side:
    """One table of one sink, ready to be compared."""

    sink: str
    contents: StoreContents
    expected: ExpectedRows
    source: VerifiedTable
    is_partial: bool  # rows may be absent from the store without being missing

    def held(self, keys: Sequence[bytes]) -> dict[bytes, StoredEntry | None]:
        schema = self.expected.schema
        found = self.contents.held(schema.table, [self.expected.store_key(key) for key in keys])
        return dict(zip(keys, found, strict=True))

    def rows(self, keys: Sequence[bytes]) -> dict[bytes, SourceRow]:
        return {plain_key(key): row for key, row in self.source.by_keys(keys).items()}

    def difference(
        self, key: bytes, row: SourceRow | None, held: StoredEntry | None, ceiling: int
    ) -> RowDifference | None:
        """Returns the difference between the source's row and the store's, None if there is none. WRONG includes
        STALE.
        """
        is_wanted = row is not None and self.expected.is_held(row.texts)
        version = None if held is None else held.version
        is_stored = held is not None and held.row is not None
        is_future = held is not None and held.version > ceiling and (is_wanted or is_stored)
        columns: tuple[ColumnDifference, ...] = ()
        kind: DriftKind | None = None
        if is_wanted and not is_stored:
            kind = None if self.is_partial else DriftKind.MISSING
        elif is_stored and not is_wanted:
            kind = DriftKind.EXTRA
        elif is_wanted and row is not None and held is not None and held.row is not None:
            columns = self.expected.differences(row.texts, held.row)
            if held.is_edited:
                columns = (*columns, ColumnDifference("(version)", str(held.version), "another one in the document"))
            kind = DriftKind.WRONG if columns else DriftKind.LOOKUP if held.lookups else None
            columns += tuple(ColumnDifference(name, "a lookup key of the row", what) for name, what in held.lookups)
            if held.copies > 1:
                kind = DriftKind.TWICE
        if is_future:
            kind = DriftKind.FUTURE
        if kind is None:
            return None
        return RowDifference(key, kind, columns, version, is_foreign=is_future or kind is DriftKind.TWICE)


def settle(side: Side, pipeline: PipelineReader, suspects: Suspects) -> Iterator[list[RowDifference]]:
    """Yields the suspects that are drift, after each page of them: perhaps none. Suspects that could not be decided
    remain in the set, all others are removed from it. A round waits once for all keys, so that the number of waits does
    not depend on the number of keys. Raises WatershedError.
    """
    for keys in suspects.pages():
        suspects.note_store(side.held(keys))
    table = side.expected.schema.table
    blind = 0  # rounds that could not decide
    waited_s = 0.0
    for number in range(ROUNDS_MAX):
        is_out_of_time = number >= ROUNDS_MIN and waited_s > WAITED_S_MAX
        if not suspects or blind == BLIND_ROUNDS_MAX or is_out_of_time:
            return
        if number:
            time.sleep(PAUSE_S)
        began = time.monotonic()
        is_visible = _await_writers(side.source) and not pipeline.unsettled(table)
        waited_s += time.monotonic() - began
        blind += not is_visible
        for keys in suspects.pages():
            _read_source(side, suspects, keys)
        began = time.monotonic()
        pipeline.wait_until_applied(side.sink)
        waited_s += time.monotonic() - began
        for page in suspects.readings():
            yield _decide(side, suspects, page, pipeline.ceiling(), is_visible=is_visible)


def _read_source(side: Side, suspects: Suspects, keys: Sequence[bytes]) -> None:
    try:
        suspects.note_source(keys, side.rows(keys))
    except RowsTooLargeError:
        half = len(keys) // 2
        _read_source(side, suspects, keys[:half])
        _read_source(side, suspects, keys[half:])


def _decide(
    side: Side, suspects: Suspects, page: Sequence[Suspect], ceiling: int, *, is_visible: bool
) -> list[RowDifference]:
    """Reads the store's entries, removes what is decided from the suspects, and returns the drift. `ceiling`: read
    after the store had reached what the source had."""
    confirmed: list[RowDifference] = []
    decided: list[bytes] = []
    now = side.held([suspect.key for suspect in page])
    for suspect in page:
        after = now[suspect.key]
        found = side.difference(suspect.key, suspect.row, after, ceiling)
        if found is None:
            decided.append(suspect.key)
            continue
        is_same_write = after is not None and suspect.version == after.version
        if found.kind is DriftKind.LOOKUP:
            # A lookup key changes with other rows too: those changes had to be shown since the reading before.
            is_same_write = is_same_write and suspect.has_wrong_lookups
        is_same_row = suspect.again >= SAME_READINGS and found.kind is not DriftKind.FUTURE
        if is_visible and (is_same_write or is_same_row):
            confirmed.append(found)
            decided.append(suspect.key)
    if confirmed:
        # The store may already have the columns of a later schema.
        side.source.require_unaltered()
    suspects.note_store(now)
    suspects.remove(decided)
    return confirmed


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


def with_stale_rows(
    kafka: KafkaConfig, schema: TableSchema, differences: Sequence[RowDifference]
) -> list[RowDifference]:
    """Returns the differences; rows with other values are STALE if their version is lower than that of their key's last
    record.
    """
    wrong = {one.key: one for one in differences if one.kind is DriftKind.WRONG}
    if not wrong:
        return list(differences)
    last = last_versions(kafka, schema.topic, wrong.keys(), plain_key)
    return [
        RowDifference(one.key, DriftKind.STALE, one.columns, one.version)
        if one.key in wrong and one.version is not None and one.version < last.get(one.key, 0)
        else one
        for one in differences
    ]
