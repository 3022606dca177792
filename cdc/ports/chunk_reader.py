"""The requests to the reader of existing rows, and its answers.

The reader has threads and connections of its own. It makes an answer available to `answers` before it writes the
answer's watermark into the log, so when the watermark arrives in the stream, the answer is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from cdc.model.errors import UnreachableError, WatershedError
from cdc.model.events import TableSchema
from cdc.ports.transaction_snapshot import TransactionSnapshot

WATERMARK_PREFIX: Final = "watershed"  # prefix of the logical messages that are watermarks; their content is the nonce

Key = tuple[str, ...]
"""Values of a table's key columns as PostgreSQL prints them, in the order of the key."""


@dataclass(frozen=True, slots=True)
class TransactionBarrier:
    """Wait until every transaction that runs now has ended. No watermark follows."""

    nonce: str


@dataclass(frozen=True, slots=True)
class DescribeTable:
    """Describe a table whose snapshot begins or resumes, then write the watermark."""

    nonce: str
    schema: TableSchema
    ranges: int  # number of key ranges of about equal size into which a large table is split


@dataclass(frozen=True, slots=True)
class Chunk:
    """Read the rows with keys above `after`, up to `up_to`, in key order; then write the watermark."""

    nonce: str
    schema: TableSchema
    fingerprint: str  # the one in TableDescribed
    after: Key | None
    up_to: Key | None
    where: str | None  # a condition in SQL that rows must meet
    rows_max: int
    bytes_max: int  # soft: a chunk has at least one row
    keys: tuple[Key, ...] | None = None  # if given, only rows with these keys
    # If given, the name of a reading of the topic: rows that the topic had then are left out.
    compared_with: str | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """Find which of the keys above `after`, up to `up_to`, have no row in the table; then write the watermark. Without
    keys, only the transaction snapshot and the watermark are wanted."""

    nonce: str
    schema: TableSchema
    fingerprint: str  # the one in TableDescribed
    keys: tuple[bytes, ...]  # record keys
    after: Key | None
    up_to: Key | None


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Read the next page of keys of which the topic holds a row. No watermark follows. `scan` names one reading of the
    topic from its beginning to its end at that time; another name begins a new one and ends the previous one."""

    nonce: str
    scan: str
    topic: str
    below: int | None  # if given, only rows with a lower version


@dataclass(frozen=True, slots=True)
class ReadTopic:
    """Read the rows of a table's topic, with which chunks are compared from then on. No watermark follows. `scan` names
    this reading, and ends the previous one. KeyPages of it have the keys that no chunk had."""

    nonce: str
    scan: str
    schema: TableSchema
    floor: int  # rows with a lower version were swept: the topic counts as not having them


TopicRequest = KeyPage | ReadTopic
Request = TransactionBarrier | DescribeTable | Chunk | Lookup
"""Requests to the source. The others are requests to a topic."""


@dataclass(frozen=True, slots=True)
class BarrierPassed:
    """All transactions of the barrier have ended, and `snapshot` sees them."""

    nonce: str
    snapshot: TransactionSnapshot


@dataclass(frozen=True, slots=True)
class TableDescribed:
    """`bounds`: the keys between the ranges, ascending; empty if the table is not split."""

    nonce: str
    snapshot: TransactionSnapshot
    fingerprint: str  # changes when the table is altered or replaced
    rows_estimated: int
    row_bytes: int  # approximate size of a row; 0: not known
    bounds: tuple[Key, ...]
    order: str  # digest of the key index's order: changes when the same keys are ordered differently


class Compared(NamedTuple):
    """What a chunk had before the rows were left out that the topic has."""

    rows: int
    size: int  # bytes of their lines


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """The rows of a chunk, as lines of COPY's text format with the columns in the schema's order. `last` and `is_end`
    count rows that were left out, too."""

    nonce: str
    snapshot: TransactionSnapshot
    lines: tuple[bytes, ...]
    last: Key | None  # key of the last line
    is_end: bool  # no more rows follow up to `up_to`
    seconds: float  # duration of the read
    compared: Compared | None = None  # None: nothing was left out


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """The request failed, and no watermark follows. `is_permanent`: a retry would fail in the same way."""

    nonce: str
    error: WatershedError
    is_permanent: bool


@dataclass(frozen=True, slots=True)
class LookedUp:
    """`absent`: the requested keys in the range that have no published row."""

    nonce: str
    snapshot: TransactionSnapshot
    absent: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KeysRead:
    """A page of keys. Each key comes once in a scan; the last page may be empty."""

    nonce: str
    keys: tuple[bytes, ...]
    is_end: bool


@dataclass(frozen=True, slots=True)
class TopicRead:
    """The rows of the topic are known."""

    nonce: str
    rows: int


class ScanLostError(UnreachableError):
    """The rows of this reading of the topic are not available any more."""


R = TypeVar("R", contravariant=True)
Answer = BarrierPassed | TableDescribed | ChunkRead | LookedUp | KeysRead | TopicRead | ReadFailed


class ChunkReader(Protocol[R]):
    """Answers each request once, in any order. The reader reconnects by itself; requests of a lost connection fail, not
    permanently. One reads the source, another one the keys of topics, one scan at a time."""

    def ask(self, request: R, /) -> None:
        """Queues the request; does not wait."""

    def answers(self) -> list[Answer]:
        """Returns the answers that arrived since the last call; does not wait."""


class TopicComparison(Protocol):
    """Rows of a topic that was read. Thread-safe."""

    def differing(self, scan: str, lines: Sequence[bytes]) -> tuple[bytes, ...]:
        """Returns the lines, in their order, whose rows the topic did not have when it was read, and notes that the
        table has their keys. Raises ScanLostError for another reading than the last one."""
