"""The job's position, kept in the hash of the cache's generation (see sinks.contract.Sink.save_position).

A server takes over a primary's writes in their order: where it lacks rows, it lacks the note that was written after
them. In a cluster, tables and the note are on different primaries. Each table's hash therefore counts the notes that
followed writes of this table, and the note contains the counts. A table whose count is below that of the note lost
writes.

A note is only kept by the process that the generation is bound to (its run id), and this is checked on the same
connection after the write: a note that was repeated, and so reached a promoted replica, does not count as kept.
"""

import json
from collections.abc import Collection
from typing import Any

from cdc.model.control import table_key, table_of_key
from cdc.model.events import TableId
from sinks.cache.keys import NOTE, NOTE_COUNT, REBUILDING_NOTE, CacheKeys
from sinks.cache.scripts import COUNT, NOTE_TEXT
from sinks.cache.server import RedisServer
from sinks.contract import lost_writes

Counts = dict[str, int]  # table_key → number


class SavedPosition:
    """The note of the serving generation, or that of a rebuild."""

    def __init__(self, server: RedisServer, keys: CacheKeys, *, rebuilds: bool) -> None:
        self._server = server
        self._keys = keys
        self._field = REBUILDING_NOTE if rebuilds else NOTE
        self._written: set[TableId] = set()  # since the last note; only in a cluster

    def written(self, tables: Collection[TableId]) -> None:
        """Records that rows of these tables were written."""
        if self._server.in_cluster:
            self._written.update(tables)

    def write(self, text: str, before: str | None) -> None:
        """Implements Sink.save_position."""
        key = self._keys.generation
        held = self._server.run("HGET", key, self._field)
        last, counts = (None, {}) if held is None else _parsed(held)
        if before is not None and last not in (before, text):
            raise self._lost()
        written = set(self._written)
        counts |= self._counted(written, counts)
        note = f"{json.dumps(counts)}\n{text}"
        found, run_id, about = self._server.run_all(
            [
                ("EVALSHA", NOTE_TEXT.sha, 1, key, self._field, b"" if held is None else held, note),
                ("HGET", key, "run_id"),
                ("INFO", "server"),
            ],
            [NOTE_TEXT],
        )
        if not found or run_id != str(about["run_id"]).encode():
            raise self._lost()
        self._written -= written

    def read(self) -> str | None:
        """Implements Sink.saved_position."""
        held = self._server.run("HGET", self._keys.generation, self._field)
        if held is None:
            return None
        text, counts = _parsed(held)
        reads = [("HGET", self._keys.table(table_of_key(table)), NOTE_COUNT) for table in counts]
        found = self._server.run_all(reads)
        return text if all(int(now or 0) >= noted for now, noted in zip(found, counts.values(), strict=True)) else None

    def _counted(self, tables: Collection[TableId], noted: Counts) -> Counts:
        """Counts a note in each table's hash, behind its rows."""
        names = list(map(table_key, tables))
        calls = [("EVALSHA", COUNT.sha, 1, self._keys.table(table), NOTE_COUNT) for table in tables]
        counts: Counts = dict(zip(names, self._server.run_all(calls, [COUNT]), strict=True))
        if any(count <= noted.get(name, 0) for name, count in counts.items()):
            raise self._lost()
        return counts

    def _lost(self) -> Exception:
        return lost_writes(f"Redis at {self._server.name}")


def joined(former: bytes | None, new: bytes) -> bytes:
    """Returns the new note, with the counts of tables that the former one alone has."""
    if former is None:
        return new
    text, counts = _parsed(new)
    return f"{json.dumps(_parsed(former)[1] | counts)}\n{text}".encode()


def _parsed(held: Any) -> tuple[str, Counts]:
    counts, _, text = bytes(held).decode().partition("\n")
    return text, json.loads(counts)
