"""Lost events: a gap was healed, or an outbox table was added that has rows already or was captured before, and the
stream will never bring the events of the log before that. The record in the state topic names that part of the log
until an operator publishes the rows again. Pure.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Self

from cdc.model.control import U64, Epoch, PositionRecord, Record, table_key
from cdc.model.errors import GapError
from cdc.model.events import TableId
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics

NEXT: Final = (
    "rows that are still in an outbox table: cdc outbox republish --since TIME; what cdc.publish() wrote can't be read "
    "again"
)
NEXT_BEFORE_PRUNING: Final = "cdc outbox republish --since TIME; then they can be deleted"


class LostEventsRecord(Record):
    """The record of a range of LSNs whose events were not published. There is one for each epoch that began after a
    gap, written with the intent of healing and again with the epoch's first position; and one for each table that was
    added again, or had rows when it was added."""

    KEY = "lost-events/"
    epoch: Epoch
    table: str = ""  # schema.table; empty: all tables, and messages
    from_lsn: U64  # 0: not known
    to_lsn: U64 = 0  # 0: the new stream has not begun
    # Commit time of the newest published transaction, µs since 1970; 0: not known.
    since_us: int = 0
    settled_us: int = 0  # time of `cdc outbox republish`, µs since 1970; 0: not done

    def ended(self, consistent_point: Lsn) -> Self:
        """Sets the LSN at which the new stream begins. A restored source may be behind its former LSN."""
        from_lsn = self.from_lsn if self.from_lsn <= consistent_point else 0
        return self.model_copy(update={"from_lsn": from_lsn, "to_lsn": int(consistent_point)})

    def settled(self, now_us: int) -> Self:
        """Marks that the rows that still exist were published again."""
        return self.model_copy(update={"settled_us": now_us})

    @property
    def record_key(self) -> str:
        of = f"/{table_key(TableId.parse(self.table))}" if self.table else ""
        return f"{self.KEY}{self.epoch}{of}"

    @property
    def since(self) -> str:
        """The time for `cdc outbox republish --since`; empty if not known."""
        return datetime.fromtimestamp(self.since_us / 1e6, UTC).isoformat(timespec="seconds") if self.since_us else ""

    def __str__(self) -> str:
        of = f"events of {self.table}" if self.table else "events"
        begin, end = format_lsn(Lsn(self.from_lsn)), format_lsn(Lsn(self.to_lsn))
        if not self.to_lsn:
            place = f"from {begin} on"
        else:
            place = f"between {begin} and {end}" if self.from_lsn else f"before {end}"
        since = f", from {self.since} on" if self.since else ""
        return f"{of} that committed {place}{since} may not be published"


def lost_from(
    previous: PositionRecord | None, earlier: Sequence[LostEventsRecord], epoch: int, since_us: int
) -> LostEventsRecord | None:
    """Returns the events that are lost when `epoch` begins; None if nothing was published before, because the first
    start did not complete. `previous`: the last position; None if it is lost. `earlier`: the records in the state
    topic."""
    if previous is None:
        return LostEventsRecord(epoch=epoch, from_lsn=0, since_us=since_us)
    if previous.phase == "streaming":
        return LostEventsRecord(epoch=epoch, from_lsn=previous.resume_lsn, since_us=since_us)
    for record in earlier:  # the record of a start that did not complete
        if record.epoch == previous.epoch and not record.table:
            return record.model_copy(update={"epoch": epoch, "to_lsn": 0})
    return None


def lost_before(table: TableId, epoch: int, lsn: Lsn) -> LostEventsRecord:
    """Returns the record for rows of an outbox table that are there when its events begin to be published, from an
    LSN on: no snapshot reads them."""
    return LostEventsRecord(epoch=epoch, table=str(table), from_lsn=0, to_lsn=int(lsn))


def lost_records(topics: Topics, lost: LostEventsRecord, earlier: Sequence[LostEventsRecord] = ()) -> list[TopicRecord]:
    """Returns the records for the state topic, with tombstones for those of starts that did not complete."""
    incomplete = [record for record in earlier if not record.to_lsn]
    return [
        lost.to(topics.state),
        *(TopicRecord(topics.state, record.record_key.encode(), None) for record in incomplete),
    ]


def require_settled(table: TableId, lost: Iterable[LostEventsRecord]) -> None:
    """Raises GapError if rows of the table may not be published although the slot is past them."""
    for record in lost:
        if not record.settled_us and record.table in ("", str(table)):
            raise GapError(f"{record}; rows of {table} may be among them", NEXT_BEFORE_PRUNING)
