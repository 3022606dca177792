"""Rows that a store rejects, in one task. Pure.

A dead letter is open from the version that was rejected until the store has taken that version or a later one. A change
that lacks columns closes none: the store may have kept an older row for it. Nor does the rejected version itself where
it is found stale: a sweep whose floor is this version may have deleted the row that the store had before.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import orjson

from cdc.config.stores import StoreConfig
from cdc.model.rejected_rows import RejectedRow, dead_letter_key
from sinks.contract import Change, Outcome, Result
from sinks.errors import RefusedError
from sinks.records import RecordCoordinates, encode_json
from sinks.reduction import document_id
from spark_jobs.source.piece import Piece, PieceRecord

ROW_BYTES_MAX: Final = 16 * 1024  # of a dead letter: the driver holds all open ones
REASON_CHARS_MAX: Final = 500


class Accepted(NamedTuple):
    """Closes a dead letter: the store has taken the row at this version, or at a later one."""

    version: int


# By dead_letter_key; None: closed, whatever its version is.
DeadLetterUpdates = dict[str, RejectedRow | Accepted | None]


class Rejections:
    """Keeps which dead letters are open for the keys of one task."""

    def __init__(
        self,
        section: StoreConfig,
        generation: int,
        open_dead_letters: Mapping[str, int],
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`open_dead_letters`: dead_letter_key → version, when the batch began."""
        self._section = section
        self._generation = generation
        self._open = dict(open_dead_letters)
        self._now_us = now_us

    @property
    def has_open(self) -> bool:
        return bool(self._open)

    def settle(
        self,
        reduced: Sequence[Change],
        results: Sequence[Result],
        changes: Sequence[Change],
        records: Sequence[PieceRecord],
        piece: Piece,
    ) -> DeadLetterUpdates:
        """Returns the dead letters that these results open and close. `changes`: before they were reduced, one for each
        of the piece's `records`. Raises RefusedError if the sink must stop.
        """
        dead_letters: DeadLetterUpdates = {}
        numbers: dict[int, int] = {}  # version → number of the record; a version is one row's
        for change, result in zip(reduced, results, strict=True):
            if result.outcome is Outcome.REJECTED:
                numbers = numbers or {held.version: number for number, held in enumerate(changes)}
                record = records[numbers[change.version]]
                where = RecordCoordinates(*piece.partition(record), record.offset)
                if self._section.on_rejected == "stop":
                    raise rejected(change, result.reason, where)
                key = self._key(change)
                if self._open.get(key, 0) <= change.version:  # otherwise records are read again
                    dead_letters[key] = self._letter(change, result.reason, where, record.value)
                    self._open[key] = change.version
            elif self._open and not change.unchanged:
                key = self._key(change)
                accepted = change.version if result.outcome is Outcome.WRITTEN else change.version - 1
                if self._open.get(key, accepted + 1) <= accepted:
                    dead_letters[key] = Accepted(accepted)
                    del self._open[key]
        return dead_letters

    def _key(self, change: Change) -> str:
        return dead_letter_key(self._generation, change.table, document_id(change.key))

    def _letter(self, change: Change, reason: str, where: RecordCoordinates, value: bytes | None) -> RejectedRow:
        keeps_row = self._section.dead_letter_rows and len(encode_json(change.row)) <= ROW_BYTES_MAX
        return RejectedRow(
            table_schema=change.table.schema,
            table_name=change.table.name,
            key=change.key,
            version=change.version,
            reason=reason[:REASON_CHARS_MAX],
            topic=where.topic,
            partition=where.partition,
            offset=where.offset,
            commit_lsn=_commit_lsn(value),
            rejected_us=self._now_us(),
            row=change.row if keeps_row else None,
        )


def rejected(change: Change, reason: str, where: RecordCoordinates) -> RefusedError:
    """Returns the error for a row that the store can never hold."""
    # The key may be a person's name: its digest is enough to find the row.
    digest = hashlib.sha256(document_id(change.key).encode()).hexdigest()[:16]
    return RefusedError(
        f"a row of {change.table} can't be stored: {reason}; record at {where}, key digest {digest}",
        "correct the row in the source, add the table to the sink's exclude_tables, or set the sink's on_rejected to "
        "dead_letter, and start the sink again; nothing after it is applied",
    )


def _commit_lsn(value: bytes | None) -> int | None:
    """Returns the commit LSN in the record's source block."""
    try:
        commit_lsn = orjson.loads(value or b"null")["source"]["commit_lsn"]
    except (ValueError, KeyError, TypeError):
        return None
    return commit_lsn if type(commit_lsn) is int else None
