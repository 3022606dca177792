"""`cdc run` with the published rule for chunks: it drops a chunk's row if its key was touched between two watermarks.

The rule is wrong on PostgreSQL, and tests show that they detect it: `python -m tests.support.naive_capture run`."""

from typing import Any

import cdc.daemon.streaming_session
from cdc.ports.chunk_reader import Chunk
from cdc.ports.transaction_snapshot import TransactionSnapshot
from cdc.snapshots.absent_keys import AbsentKeys
from cdc.snapshots.change_memory import ChangeMemory, Unseen
from cdc.snapshots.chunk_engine import SnapshotEngine
from cdc.snapshots.jobs import SnapshotJob
from cdc.snapshots.ranges import OpenRequest, Range
from watershed.cli.main import main


class NaiveEngine(SnapshotEngine):
    """The low mark is the moment at which a chunk is asked for: later than where the rule has it can't be."""

    def __init__(self, **arguments: Any) -> None:
        self._between = _BetweenTheMarks()
        super().__init__(**arguments, memory=self._between)
        self._low: dict[str, int] = {}

    def _read_chunk(self, job: SnapshotJob, part: Range) -> Chunk:
        request = super()._read_chunk(job, part)
        self._low[request.nonce] = len(self._between.touched)
        return request

    def _merge(self, job: SnapshotJob, part: Range | AbsentKeys, chunk: OpenRequest, *rest: Any) -> None:
        since = self._between.touched[self._low[chunk.request.nonce] :]
        self._between.window = {key for topic, key in since if topic == job.schema.topic}
        super()._merge(job, part, chunk, *rest)


class _BetweenTheMarks(ChangeMemory):
    """Finds what was touched between the two marks of the chunk that is being merged."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: list[tuple[str, bytes | None]] = []  # None: every key, by TRUNCATE
        self.window: set[bytes | None] = set()

    def touch(self, topic: str, key: bytes) -> None:
        self.touched.append((topic, key))
        super().touch(topic, key)

    def truncate(self, topic: str) -> None:
        self.touched.append((topic, None))
        super().truncate(topic)

    def unseen(self, topic: str, snapshot: TransactionSnapshot) -> Unseen:  # noqa: ARG002
        keys = {key for key in self.window if key is not None}
        return Unseen(is_forgotten=False, is_truncated=None in self.window, touched=keys.__contains__)


if __name__ == "__main__":
    vars(cdc.daemon.streaming_session)["SnapshotEngine"] = NaiveEngine
    main()
