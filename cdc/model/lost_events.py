"""The record of events that were lost: a part of the log that the stream will never bring. Pure."""

from datetime import UTC, datetime
from typing import Final, Self

from cdc.model.control import U64, Epoch, Record, table_key
from cdc.model.events import TableId
from cdc.model.lsn import Lsn, format_lsn

LOST_KEY: Final = "lost-events/"


class LostEventsRecord(Record):
    """The events of transactions that committed between two LSNs. There is one for each epoch that began after a gap,
    in the Kafka transaction of its intent, then in that of its first position; and one for each table that was added
    again."""

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
    def key(self) -> str:
        of = f"/{table_key(TableId.parse(self.table))}" if self.table else ""
        return f"{LOST_KEY}{self.epoch}{of}"

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
