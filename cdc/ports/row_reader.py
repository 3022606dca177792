"""The port that reads unchanged TOAST values from the table, by key."""

from dataclasses import dataclass
from typing import Protocol

from cdc.model.events import TableSchema
from cdc.ports.chunk_reader import Key
from cdc.ports.stream import WhileWaiting
from cdc.ports.transaction_snapshot import TransactionSnapshot

TopicKey = tuple[str, bytes]  # topic, record key


@dataclass(frozen=True, slots=True)
class WantedRow:
    place: TopicKey
    key: Key
    since: int  # the transaction whose event has the hole; of several the first,
    xid: int  # and the last


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be read of one table."""

    schema: TableSchema
    columns: tuple[str, ...]
    rows: tuple[WantedRow, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The first of the wanted rows, as many as were read. All of it is flushed."""

    snapshot: TransactionSnapshot
    rows: tuple[tuple[bytes | None, ...] | None, ...]  # texts of the wanted columns, None for NULL; None: no such row


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The table, or a column of it, is gone or has another type; or we may not read it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unfilled:
    """A record that went out without some of its columns."""

    schema: TableSchema
    record_key: bytes
    key: Key
    xid: int


class RowReader(Protocol):
    """Reads columns of rows by key, from the table as it is now."""

    def read(self, wanted: Wanted, bytes_max: int, while_waiting: WhileWaiting) -> Found | Unreadable | None:
        """The first rows of `wanted`, as many as `bytes_max` holds, one at least. None: not answered in time, or not
        flushed. Never raises for what a server does. Calls `while_waiting` several times a second."""
