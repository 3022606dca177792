"""Events that no stream will bring any more: a gap was healed, and their part of the log was left behind. Which part it
is stands in state, for who asks later. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Self

from cdc.control import U64, Epoch, PositionRecord, Record, Topics
from cdc.lsn import Lsn, format_lsn
from cdc.ports import TopicRecord

LOST_KEY: Final = "lost-events/"


class LostEventsRecord(Record):
    """Of transactions that committed between two places of the log. One for each epoch that began so; in the Kafka
    transaction of its intent, then in that of its first position."""

    epoch: Epoch
    from_lsn: U64  # 0: not known
    to_lsn: U64 = 0  # 0: the new stream has not begun
    # When the newest transaction committed whose events are published, µs since 1970; 0: not known.
    since_us: int = 0

    def ended(self, consistent_point: Lsn) -> Self:
        """Where the new stream begins. A source that was restored may be behind where it was."""
        from_lsn = self.from_lsn if self.from_lsn <= consistent_point else 0
        return self.model_copy(update={"from_lsn": from_lsn, "to_lsn": int(consistent_point)})

    @property
    def since(self) -> str:
        """The time, as `cdc outbox republish --since` takes it; empty where it is not known."""
        return datetime.fromtimestamp(self.since_us / 1e6, UTC).isoformat(timespec="seconds") if self.since_us else ""

    def __str__(self) -> str:
        begin = f"between {format_lsn(Lsn(self.from_lsn))} and" if self.from_lsn else "before"
        since = f", from {self.since} on" if self.since else ""
        return f"events that committed {begin} {format_lsn(Lsn(self.to_lsn))}{since} may not be published"


NEXT: Final = (
    "rows that are still in an outbox table: cdc outbox republish --since TIME; what cdc.publish() wrote can't be read "
    "again"
)


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
        if record.epoch == previous.epoch:
            return record.model_copy(update={"epoch": epoch, "to_lsn": 0})
    return None


def lost_records(topics: Topics, lost: LostEventsRecord, earlier: Sequence[LostEventsRecord] = ()) -> list[TopicRecord]:
    """For state; what began in vain is taken back."""
    told = [TopicRecord(topics.state, f"{LOST_KEY}{lost.epoch}".encode(), lost.encode())]
    vain = [record for record in earlier if not record.to_lsn]
    return told + [TopicRecord(topics.state, f"{LOST_KEY}{record.epoch}".encode(), None) for record in vain]
