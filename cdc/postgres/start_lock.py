"""A lock so that one instance at a time creates the slot and loads existing rows."""

import hashlib
from contextlib import AbstractContextManager
from types import TracebackType

from cdc.config.settings import SourceConfig
from cdc.postgres.connection import connect, says_lost


class StartLock(AbstractContextManager["StartLock"]):
    """A session-level advisory lock in the source, named after the slot. Until the stream holds the slot, nothing else
    in the source prevents a second instance."""

    def __init__(self, source: SourceConfig) -> None:
        self._connection = connect(source, application="watershed start")
        digest = hashlib.sha256(f"watershed start {source.slot}".encode()).digest()
        self._key = int.from_bytes(digest[:8], "big", signed=True)

    @says_lost
    def try_acquire(self) -> bool:
        """Returns False while another instance holds the lock. Raises ConnectionLost."""
        return self._connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,)).fetchone() == (True,)

    def release(self) -> None:
        self._connection.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
