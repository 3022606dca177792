"""What is asked of the reader of existing rows, and what it answers.

The reader has connections and threads of its own. It puts an answer where `answers` finds it *before* it writes the
answer's watermark into the log, so that who receives the watermark from the stream has the answer already.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from cdc.model.errors import WatershedError
from cdc.model.events import TableSchema
from cdc.ports.transaction_snapshot import TransactionSnapshot

WATERMARK_PREFIX: Final = "watershed"  # of the logical messages that are watermarks; their content is the nonce

Key = tuple[str, ...]
"""Values of a table's key columns as PostgreSQL prints them, in key order."""


@dataclass(frozen=True, slots=True)
class TransactionBarrier:
    """Wait until every transaction that runs now has ended. No watermark."""

    nonce: str


@dataclass(frozen=True, slots=True)
class DescribeTable:
    """Look at a table whose snapshot begins or goes on, then write the watermark."""

    nonce: str
    schema: TableSchema
    ranges: int  # into how many key ranges of about the same size to split it, if it is large


@dataclass(frozen=True, slots=True)
class Chunk:
    """Read the rows with a key above `after`, up to `up_to`, in key order; then write the watermark."""

    nonce: str
    schema: TableSchema
    fingerprint: str  # as TableDescribed said
    after: Key | None
    up_to: Key | None
    where: str | None  # a condition in SQL
    rows_max: int
    bytes_max: int  # a chunk has one row at least
    keys: tuple[Key, ...] | None = None  # of rows with these keys only


@dataclass(frozen=True, slots=True)
class Lookup:
    """Which of the keys that lie above `after` and up to `up_to` has the table no row of? Then write the watermark.
    Without keys only the snapshot and the watermark are wanted."""

    nonce: str
    schema: TableSchema
    fingerprint: str  # as TableDescribed said
    keys: tuple[bytes, ...]  # record keys
    after: Key | None
    up_to: Key | None


@dataclass(frozen=True, slots=True)
class KeyPage:
    """The next keys that the topic holds a row of. No watermark. `scan`: what is read from the topic's beginning to its
    present end; another one than before restarts, and ends that before."""

    nonce: str
    scan: str
    topic: str
    below: int | None  # only rows with a version below


Request = TransactionBarrier | DescribeTable | Chunk | Lookup
"""Of the source. A KeyPage is asked of the topic."""


@dataclass(frozen=True, slots=True)
class BarrierPassed:
    """They have ended. `snapshot` sees them all."""

    nonce: str
    snapshot: TransactionSnapshot


@dataclass(frozen=True, slots=True)
class TableDescribed:
    """`bounds`: keys between which ranges lie, rising; none where the table is not split."""

    nonce: str
    snapshot: TransactionSnapshot
    fingerprint: str  # of the table: changes when it is altered or replaced
    rows_estimated: int
    row_bytes: int  # of one row, about; 0: not known
    bounds: tuple[Key, ...]
    order: str  # of the key's index: changes when the same keys lie in another order


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """Rows as lines of COPY's text format, the schema's columns in order."""

    nonce: str
    snapshot: TransactionSnapshot
    lines: tuple[bytes, ...]
    last: Key | None  # of the last line
    is_end: bool  # there are no more rows up to `up_to`
    seconds: float  # that it took to read them


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """No watermark follows. `is_permanent`: reading again gives the same."""

    nonce: str
    error: WatershedError
    is_permanent: bool


@dataclass(frozen=True, slots=True)
class LookedUp:
    """`absent`: those that were asked for, lie in the range, and have no row that is published under them."""

    nonce: str
    snapshot: TransactionSnapshot
    absent: tuple[bytes, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class KeysRead:
    """Each key comes once in a scan. The last page may be empty."""

    nonce: str
    keys: tuple[bytes, ...]
    is_end: bool


Answer = BarrierPassed | TableDescribed | ChunkRead | LookedUp | KeysRead | ReadFailed


class ChunkReader(Protocol):
    """Answers each request once, in any order. A lost connection is made again by the reader itself; what it was asked
    meanwhile fails, not permanently."""

    def ask(self, request: Request | KeyPage) -> None:
        """Returns at once."""

    def answers(self) -> list[Answer]:
        """What has come since the last call; returns at once."""
