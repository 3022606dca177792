"""The port that reads unchanged TOAST values from the table, by key."""

from dataclasses import dataclass
from typing import Protocol

from cdc.model.events import TableSchema
from cdc.ports.chunk_reader import Key
from cdc.ports.stream import WhileWaiting
from cdc.ports.transaction_snapshot import TransactionSnapshot

TopicKey = tuple[str, bytes]  # topic, record key


@dataclass(frozen=True, slots=True)
class RequestedRow:
    """A row with an unchanged TOAST value. `since` and `xid`: the first and the last transaction that left a value
    out."""

    place: TopicKey
    key: Key
    since: int
    xid: int


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """The rows and columns to read from one table."""

    schema: TableSchema
    columns: tuple[str, ...]
    rows: tuple[RequestedRow, ...]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The first of the wanted rows, as many as were read. Everything in it is flushed to the source's disk."""

    snapshot: TransactionSnapshot
    # The texts of the wanted columns (None for NULL), or None if there is no such row
    rows: tuple[tuple[bytes | None, ...] | None, ...]
    # The end of the log after they were read. 0: they were all last written by the transactions that asked for them.
    read_lsn: int = 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The table or a column is missing or has another type, or the role may not read it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unfilled:
    """A record that was published without some of its columns."""

    schema: TableSchema
    key: Key
    xid: int


class RowReader(Protocol):
    """Reads columns of rows by key, from the current table."""

    def read(self, wanted: RowsRequest, bytes_max: int, while_waiting: WhileWaiting) -> FoundRows | Unreadable | None:
        """Returns the first rows of `wanted`, as many as `bytes_max` holds and at least one. None: no answer in time,
        or not flushed. Never raises for an error of the server. Calls `while_waiting` several times a second."""
