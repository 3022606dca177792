"""Fills the holes of a batch before it is produced (cdc/toast/batch.py says how), without ever waiting for long.

What is read counts when it sees the transaction that left the hole. Mostly that is so at once; a standby that is slow
to answer is worth a moment; for one that does not answer at all the stream waits once, not for each transaction.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from cdc.model.events import TableId
from cdc.model.topic_record import TopicRecord
from cdc.ports.row_reader import Found, RowReader, TopicKey, Unfilled, Unreadable
from cdc.ports.stream import Clock, WhileWaiting
from cdc.toast.batch import KEYS_MAX, Batch, BatchRecord, are_finished

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 1.0  # a standby across the world answers in less
# While some transaction is known to be frozen: what a commit takes from the log to being visible without a standby.
BRIEF_PATIENCE_S: Final = 0.02
PAUSE_S_FIRST: Final = 0.001
PAUSE_S_MAX: Final = 0.05
FROZEN_MAX: Final = 10_000  # transactions; while so many are known, each further one is as good as they are
BYTES_MAX: Final = 16 * 1024 * 1024  # of values that wait for others; one row may pass it


class ToastBackfill:
    """`note_unfilled`: told of records that go out with holes; the records that are to be produced with them."""

    def __init__(
        self,
        reader: RowReader,
        note_unfilled: Callable[[Sequence[Unfilled]], list[TopicRecord]],
        clock: Clock,
        pause: Callable[[float], None],
        patience_s: float = PATIENCE_S,
        fits: Callable[[TopicRecord], bool] = lambda _: True,
    ) -> None:
        """`fits`: whether a topic takes the record."""
        self._reader = reader
        self._note_unfilled = note_unfilled
        self._clock = clock
        self._pause = pause
        self._patience_s = patience_s
        self._fits = fits
        self._keys_max = KEYS_MAX
        self._frozen: set[int] = set()  # transactions that were waited for in vain, and are not seen yet
        self._is_deaf = False  # the last read was not answered
        self._unreadable: set[TableId] = set()  # said to be so

    def fill(self, records: Sequence[BatchRecord], while_waiting: WhileWaiting) -> Iterator[Sequence[TopicRecord]]:
        """The records with their values, in order, in pieces; all of them belong in one Kafka transaction. What is
        noted of unfilled ones comes last: among the records there may be what was noted before."""
        if are_finished(records):
            yield records
            return
        batch = self._batch_of(records)
        is_brief = bool(self._frozen) or self._is_deaf
        deadline = self._clock.monotonic() + (BRIEF_PATIENCE_S if is_brief else self._patience_s)
        pause_s = PAUSE_S_FIRST
        while True:
            if ready := batch.ready():
                yield ready
            if batch.is_done:
                break
            asked, is_news = self._read(batch, while_waiting)
            if is_news:
                continue
            if self._clock.monotonic() >= deadline:
                self._give_up(batch, asked)
                continue
            self._pause(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)
            while_waiting()
        if batch.unfilled:
            yield self._note_unfilled(batch.unfilled)

    def _batch_of(self, records: Sequence[BatchRecord]) -> Batch:
        return Batch(records, self._fits)

    def _read(self, batch: Batch, while_waiting: WhileWaiting) -> tuple[set[TopicKey], bool]:
        """Read what is wanted: the rows that were read, or could not be; whether something became known."""
        asked: set[TopicKey] = set()
        is_news = False
        for wanted in batch.wanted(self._keys_max):
            answer = self._reader.read(wanted, max(1, BYTES_MAX - batch.held_bytes), while_waiting)
            self._is_deaf = answer is None
            if isinstance(answer, Found):
                assert answer.rows, "one at least"
                self._frozen = {xid for xid in self._frozen if not answer.snapshot.sees(xid)}
                is_short = len(answer.rows) < len(wanted.rows)
                self._keys_max = len(answer.rows) if is_short else min(KEYS_MAX, self._keys_max * 2)
                asked.update(row.place for row in wanted.rows[: len(answer.rows)])
            else:
                asked.update(row.place for row in wanted.rows)
            self._say(wanted.schema.table, answer)
            if answer is not None:
                is_news = batch.take(wanted, answer) or is_news
        return asked, is_news

    def _give_up(self, batch: Batch, asked: set[TopicKey]) -> None:
        if not self._frozen:
            log.info("large values are not visible in time: rows are published without them, and completed later")
        given_up = batch.give_up(asked)
        if len(self._frozen) < FROZEN_MAX:
            self._frozen |= given_up

    def _say(self, table: TableId, answer: Found | Unreadable | None) -> None:
        """Once for each table, not for each batch."""
        if isinstance(answer, Found):
            self._unreadable.discard(table)
        elif answer is not None and table not in self._unreadable:
            self._unreadable.add(table)
            log.warning(
                "large values can't be read: rows are published without them", table=str(table), reason=answer.reason
            )
