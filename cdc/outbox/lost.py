"""Events that no stream will bring any more: a gap was healed, or an outbox table joined again, and their part of the
log was left behind. Which part it is stands in state, for who asks later, until rows were published again. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Self

from cdc.model.errors import GapError
from cdc.model.events import TableId
from cdc.model.lsn import Lsn, format_lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.records.control import U64, Epoch, PositionRecord, Record, table_key

LOST_KEY: Final = "lost-events/"


class LostEventsRecord(Record):
    """Of transactions that committed between two places of the log. One for each epoch that began so, in the Kafka
    transaction of its intent, then in that of its first position; one for each table that joined again."""

    epoch: Epoch
    table: str = ""  # schema.table; all, and messages, where it is empty
    from_lsn: U64  # 0: not known
    to_lsn: U64 = 0  # 0: the new stream has not begun
    # When the newest transaction committed whose events are published, µs since 1970; 0: not known.
    since_us: int = 0
    settled_us: int = 0  # when `cdc outbox republish` was done, µs since 1970; 0: it was not

    def ended(self, consistent_point: Lsn) -> Self:
        """Where the new stream begins. A source that was restored may be behind where it was."""
        from_lsn = self.from_lsn if self.from_lsn <= consistent_point else 0
        return self.model_copy(update={"from_lsn": from_lsn, "to_lsn": int(consistent_point)})

    def settled(self, now_us: int) -> Self:
        """Rows that are still there were published again."""
        return self.model_copy(update={"settled_us": now_us})

    @property
    def key(self) -> str:
        of = f"/{table_key(TableId.parse(self.table))}" if self.table else ""
        return f"{LOST_KEY}{self.epoch}{of}"

    @property
    def since(self) -> str:
        """The time, as `cdc outbox republish --since` takes it; empty where it is not known."""
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


NEXT: Final = (
    "rows that are still in an outbox table: cdc outbox republish --since TIME; what cdc.publish() wrote can't be read "
    "again"
)
NEXT_BEFORE_PRUNING: Final = "cdc outbox republish --since TIME; then they can go"


def lost_from(
    previous: PositionRecord | None, earlier: Sequence[LostEventsRecord], epoch: int, since_us: int
) -> LostEventsRecord | None:
    """What is lost when `epoch` begins. `previous`: the position before, None where it is lost. `earlier`: those in
    state. None where nothing was published so far: the first start, which did not come to its end."""
    if previous is None:
        return LostEventsRecord(epoch=epoch, from_lsn=0, since_us=since_us)
    if previous.phase == "streaming":
        return LostEventsRecord(epoch=epoch, from_lsn=previous.resume_lsn, since_us=since_us)
    for record in earlier:  # of the start that did not come to its end
        if record.epoch == previous.epoch and not record.table:
            return record.model_copy(update={"epoch": epoch, "to_lsn": 0})
    return None


def lost_records(topics: Topics, lost: LostEventsRecord, earlier: Sequence[LostEventsRecord] = ()) -> list[TopicRecord]:
    """For state; what began in vain is taken back."""
    vain = [record for record in earlier if not record.to_lsn]
    return [
        TopicRecord(topics.state, lost.key.encode(), lost.encode()),
        *(TopicRecord(topics.state, record.key.encode(), None) for record in vain),
    ]


def concerning(table: TableId, lost: Iterable[LostEventsRecord]) -> list[LostEventsRecord]:
    """Those that rows of this table may be among, and that nothing was done about."""
    return [record for record in lost if not record.settled_us and record.table in ("", str(table))]


def require_settled(table: TableId, lost: Iterable[LostEventsRecord]) -> None:
    """Raises GapError where rows of the table may not be published, though the slot is past them."""
    for record in concerning(table, lost):
        raise GapError(f"{record}; rows of {table} may be among them", NEXT_BEFORE_PRUNING)
