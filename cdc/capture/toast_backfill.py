"""Fills the unchanged TOAST values of a batch before it is produced (cdc/capture/toast_batch.py has the rules).

A value that was read counts if the read sees the transaction whose event lacks it. Usually it does at once. A
synchronous standby that is slow to answer is waited for; if it does not answer at all, the stream waits once, not for
each transaction.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from cdc.capture.toast_batch import KEYS_MAX, BatchRecord, ToastBatch, are_finished
from cdc.model.events import TableId
from cdc.model.topic_record import TopicRecord
from cdc.ports.row_reader import FoundRows, RowReader, TopicKey, Unfilled, Unreadable
from cdc.ports.stream import Clock, WhileWaiting

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 1.0  # a standby in another region answers in less
# While a transaction is known to be frozen: the time in which a commit becomes visible without a standby.
BRIEF_PATIENCE_S: Final = 0.02
PAUSE_S_FIRST: Final = 0.001
PAUSE_S_MAX: Final = 0.05
FROZEN_MAX: Final = 10_000  # transactions; further ones are not recorded
BYTES_MAX: Final = 16 * 1024 * 1024  # of values that were read and wait for others; one row may exceed it


class ToastBackfill:
    """Fills in the values of one session's batches."""

    def __init__(
        self,
        reader: RowReader,
        note_unfilled: Callable[[Sequence[Unfilled]], list[TopicRecord]],
        clock: Clock,
        pause: Callable[[float], None],
        patience_s: float = PATIENCE_S,
        fits: Callable[[TopicRecord], bool] = lambda _: True,
    ) -> None:
        """`note_unfilled`: is given the records that are published without some columns, and returns the records to
        produce with them. `pause`: sleeps for seconds. `fits`: returns whether the topic takes the record."""
        self._reader = reader
        self._note_unfilled = note_unfilled
        self._clock = clock
        self._pause = pause
        self._patience_s = patience_s
        self._fits = fits
        self._keys_max = KEYS_MAX
        # Ids of transactions that did not become visible in time, and are not visible yet
        self._frozen: set[int] = set()
        self._is_unanswered = False  # the last read got no answer
        self._unreadable: set[TableId] = set()  # tables whose values can't be read, and that were logged
        self.read_lsn = 0  # the log's end after the last read that showed rows of other transactions; 0: none

    def fill(self, records: Sequence[BatchRecord], while_waiting: WhileWaiting) -> Iterator[Sequence[TopicRecord]]:
        """Yields the records with their values, in order, in pieces that belong in one Kafka transaction. The notes of
        unfilled records come last, because earlier notes may be among the records."""
        if are_finished(records):
            yield records
            return
        batch = ToastBatch(records, self._fits)
        is_brief = bool(self._frozen) or self._is_unanswered
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

    def _read(self, batch: ToastBatch, while_waiting: WhileWaiting) -> tuple[set[TopicKey], bool]:
        """Reads the wanted rows. Returns the rows that were read or could not be, and whether a value became known."""
        asked: set[TopicKey] = set()
        is_news = False
        for wanted in batch.wanted(self._keys_max):
            answer = self._reader.read(wanted, max(1, BYTES_MAX - batch.held_bytes), while_waiting)
            self._is_unanswered = answer is None
            if isinstance(answer, FoundRows):
                assert answer.rows, "at least one row"
                self.read_lsn = max(self.read_lsn, answer.read_lsn)
                self._frozen = {xid for xid in self._frozen if not answer.snapshot.sees(xid)}
                is_short = len(answer.rows) < len(wanted.rows)
                self._keys_max = len(answer.rows) if is_short else min(KEYS_MAX, self._keys_max * 2)
                asked.update(row.place for row in wanted.rows[: len(answer.rows)])
            else:
                asked.update(row.place for row in wanted.rows)
            self._log_readability(wanted.schema.table, answer)
            if answer is not None:
                is_news = batch.take(wanted, answer) or is_news
        return asked, is_news

    def _give_up(self, batch: ToastBatch, asked: set[TopicKey]) -> None:
        if not self._frozen:
            log.info("large values are not visible in time: rows are published without them, and completed later")
        given_up = batch.give_up(asked)
        if len(self._frozen) < FROZEN_MAX:
            self._frozen |= given_up

    def _log_readability(self, table: TableId, answer: FoundRows | Unreadable | None) -> None:
        """Logs the first failure for a table, not one for each batch."""
        if isinstance(answer, FoundRows):
            self._unreadable.discard(table)
        elif answer is not None and table not in self._unreadable:
            self._unreadable.add(table)
            log.warning(
                "large values can't be read: rows are published without them", table=str(table), reason=answer.reason
            )
