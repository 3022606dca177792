"""Rows that vanished without an event: keys that the topic holds and the table has not. Pure.

Keys come from the topic in pages and are looked up in the table, a page for each short transaction, with a watermark
behind it like a chunk's. A key that is not found becomes a delete when the watermark is received, by the rule that
holds for rows: not if it was touched by a transaction that was received and that the lookup does not see. A key that
lies in the topic since the scan began needs no look: what was published since is an event, or a row of a chunk. Neither
does one that an event took since: its delete is in the topic, and an operator would be told that rows vanished which
did not.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cdc.ports.chunk_reader import Key, KeysRead, Lookup
from cdc.snapshots.change_memory import Watch
from cdc.snapshots.ranges import AHEAD_MAX, RETRY_S, OpenChunk

SNAPSHOT_S = 5.0
"""How often a long scan looks at the database, so that transactions need not be remembered from its beginning."""


@dataclass(slots=True)
class AbsentKeys:
    """One table's, from the scan to the last lookup. Bounded: a page waits, and few are being looked up."""

    after: Key | None
    up_to: Key | None
    below: int | None  # only keys of rows with a version below
    scan: str | None = None  # None: not begun
    since: Watch | None = None  # what happened since it began
    page: str | None = None  # nonce of the page that is on its way
    is_scanned: bool = False
    pages: deque[tuple[bytes, ...]] = field(default_factory=deque)  # that are to be looked up
    open: list[OpenChunk] = field(default_factory=list)
    not_before: float = 0.0
    looked_at: float = float("-inf")  # monotonic seconds

    @property
    def is_done(self) -> bool:
        return self.is_scanned and not self.pages and not self.open

    def wants_page(self, now: float, scans: "Sequence[AbsentKeys]" = ()) -> bool:
        """Whether the next page may be asked for. `scans`: all tables'; one topic at a time is scanned."""
        if self.is_scanned or self.page is not None or self.pages or now < self.not_before:
            return False
        return self.scan is not None or all(other.scan is None or other.is_scanned for other in scans)

    def wants(self, now: float) -> bool:
        """Whether a page is to be looked up, or, after a while without one, the database be looked at."""
        if now < self.not_before or len(self.open) >= AHEAD_MAX:
            return False
        is_silent = not self.is_scanned and not self.open and now - self.looked_at >= SNAPSHOT_S
        return bool(self.pages) or is_silent

    def came(self, answer: KeysRead) -> None:
        """The page that was asked for."""
        self.page = None
        self.is_scanned = answer.is_end
        if answer.keys:
            self.pages.append(answer.keys)

    def vanished(self, keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Those of them, which have no row, that went without an event."""
        if self.since is None:
            return keys
        if self.since.is_truncated and self.below is None:
            return ()  # the sweep has them all; where tombstones follow sweeps, they are still to be written
        return tuple(key for key in keys if key not in self.since.keys)

    def merged(self) -> None:
        """The first open lookup is published."""
        self.open.pop(0)

    def rewind(self, now: float) -> list[OpenChunk]:
        """Look up again what is open, a moment later."""
        given_up, self.open = self.open, []
        for chunk in reversed(given_up):
            assert isinstance(chunk.request, Lookup)
            if chunk.request.keys:
                self.pages.appendleft(chunk.request.keys)
        self.not_before = now + RETRY_S
        return given_up

    def scan_failed(self, now: float) -> None:
        """Begin a new scan, a moment later. What became a delete is in the topic no more."""
        self.not_before = now + RETRY_S
        self.scan = self.page = None
        self.is_scanned = False
        self.pages.clear()
