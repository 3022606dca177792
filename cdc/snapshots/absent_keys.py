"""Rows that vanished without an event: keys that the topic has and the table does not. Pure.

Keys are read from the topic in pages and looked up in the table, one page in each short transaction, with a watermark
like a chunk's. A key that is not found becomes a delete when the watermark is received, by the rule for rows: unless it
was touched by a transaction that was received and that the lookup does not see. Keys published since the scan began are
not looked up: they are events, or rows of chunks. A key that an event touched since is not deleted either: its delete
is in the topic already, and it would be counted as vanished.

A snapshot that compares reads the topic first, once for both: its chunks leave out rows that the topic has, and only
keys that no chunk had are looked up.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cdc.ports.chunk_reader import Key, KeysRead, Lookup
from cdc.snapshots.change_memory import Watch
from cdc.snapshots.ranges import AHEAD_MAX, RETRY_S, OpenRequest

SNAPSHOT_S = 5.0
"""Interval of empty lookups during a long scan: with their transaction snapshots, transactions since the scan began can
be forgotten."""


@dataclass(slots=True)
class AbsentKeys:
    """The lookups of one table, from the beginning of the scan to the last lookup. Bounded: one page waits, and few are
    being looked up.

    `after`, `up_to`: the key range. `below`: only keys of rows with a lower version. `compares`: the topic is read
    before the chunks, and the pages have the keys that no chunk had.
    """

    after: Key | None
    up_to: Key | None
    below: int | None
    compares: bool = False
    is_read: bool = False  # the topic's rows are known, if `compares`
    scan: str | None = None  # id of the scan; None: not begun
    since: Watch | None = None  # changes since the scan began
    page: str | None = None  # nonce of the requested page
    is_scanned: bool = False
    pages: deque[tuple[bytes, ...]] = field(default_factory=deque)  # pages to look up
    open: list[OpenRequest] = field(default_factory=list)
    not_before: float = 0.0
    looked_up_at: float = float("-inf")  # time of the last lookup, monotonic seconds

    @property
    def is_done(self) -> bool:
        return self.is_scanned and not self.pages and not self.open

    def wants_page(self, now: float, scans: "Sequence[AbsentKeys]" = ()) -> bool:
        """Returns whether to request the next page. `scans`: those of all tables; one topic is scanned at a time."""
        if self.is_scanned or self.page is not None or self.pages or now < self.not_before:
            return False
        return self.scan is not None or all(other.scan is None or other.is_scanned for other in scans)

    def wants(self, now: float) -> bool:
        """Returns whether to look up a page or, after SNAPSHOT_S without one, nothing but the transaction snapshot."""
        if now < self.not_before or len(self.open) >= AHEAD_MAX:
            return False
        is_waiting = not self.compares or self.page is not None  # where chunks are read, these have snapshots
        is_silent = is_waiting and not self.is_scanned and not self.open and now - self.looked_up_at >= SNAPSHOT_S
        return bool(self.pages) or is_silent

    def take_page(self, answer: KeysRead) -> None:
        self.page = None
        self.is_scanned = answer.is_end
        if answer.keys:
            self.pages.append(answer.keys)

    def vanished(self, keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Returns those of these keys without a row that no event has touched."""
        if self.since is None:
            return keys
        if self.since.is_truncated and self.below is None:
            return ()  # the sweep covers them; with `below` set, tombstones behind it are still to be written
        return tuple(key for key in keys if key not in self.since.keys)

    def merged(self) -> None:
        """The first open lookup was published."""
        self.open.pop(0)

    def rewind(self, now: float) -> None:
        """Looks up all open pages again after RETRY_S. The open lookups are void."""
        while self.open:
            request = self.open.pop().request
            assert isinstance(request, Lookup)
            if request.keys:
                self.pages.appendleft(request.keys)
        self.not_before = now + RETRY_S

    def scan_failed(self, now: float) -> None:
        """Begins a new scan after RETRY_S. Keys that were deleted meanwhile are no longer in the topic."""
        self.not_before = now + RETRY_S
        self.scan = self.page = None
        self.is_scanned = self.is_read = False
        self.pages.clear()
