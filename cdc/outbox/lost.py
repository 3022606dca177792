"""Lost events: a gap was healed or an outbox table was added again, and the stream will never bring the events of the
log before that. The record in the state topic names that part of the log until an operator publishes the rows again.
Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from cdc.model.control import PositionRecord
from cdc.model.errors import GapError
from cdc.model.events import TableId
from cdc.model.lost_events import LostEventsRecord
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics

NEXT: Final = (
    "rows that are still in an outbox table: cdc outbox republish --since TIME; what cdc.publish() wrote can't be read "
    "again"
)
NEXT_BEFORE_PRUNING: Final = "cdc outbox republish --since TIME; then they can go"


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


def lost_records(topics: Topics, lost: LostEventsRecord, earlier: Sequence[LostEventsRecord] = ()) -> list[TopicRecord]:
    """Returns the records for the state topic, with tombstones for those of starts that did not complete."""
    incomplete = [record for record in earlier if not record.to_lsn]
    return [
        TopicRecord(topics.state, lost.key.encode(), lost.encode()),
        *(TopicRecord(topics.state, record.key.encode(), None) for record in incomplete),
    ]


def require_settled(table: TableId, lost: Iterable[LostEventsRecord]) -> None:
    """Raises GapError if rows of the table may not be published although the slot is past them."""
    for record in lost:
        if not record.settled_us and record.table in ("", str(table)):
            raise GapError(f"{record}; rows of {table} may be among them", NEXT_BEFORE_PRUNING)
