"""The generations of a cache, which is rebuilt in place: readers use its keys directly, so there is only one set of
keys.

A rebuild writes each row again, also at the version that is held, and records each row that it writes. Readers
therefore never see a row that is missing or older than before. When the rebuild has read all records up to a version,
the rows up to that version that it did not write are removed.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, Final

from cdc.config.stores import CacheConfig
from cdc.model.events import TableId
from sinks.cache.calls import SCRIPT_KEYS_MAX
from sinks.cache.cluster import connected
from sinks.cache.forms import RowKeys, lookup_keys
from sinks.cache.keys import (
    KEY_COLUMNS,
    NOTE,
    REBUILDING,
    REBUILDING_NOTE,
    SHAPE,
    VERSION_DIGITS,
    cache_keys,
    version_text,
)
from sinks.cache.saved_position import joined
from sinks.cache.scripts import REMOVE_UNSEEN
from sinks.cache.sink import tables_of
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.slots import FIRST, generation_of, slot_of

MET_BYTES: Final = 100  # the approximate memory for each row that a rebuild has written


class CacheSlots:
    """Implements sinks.slots.Slots."""

    in_place = True

    def __init__(self, config: CacheConfig, prefix: str, retries: Retries | None = None) -> None:
        self._server = connected(config, retries)
        self._keys = cache_keys(config, prefix)

    def serving(self) -> str:
        return FIRST

    def others(self) -> dict[str, int | None]:
        rebuilding = self._server.run("HGET", self._keys.generation, REBUILDING)
        return {} if rebuilding is None else {slot_of(int(rebuilding)): int(rebuilding)}

    def generation(self, slot: str) -> int | None:
        held = self._server.run("HGET", self._keys.generation, REBUILDING if slot else "generation")
        return None if held is None else int(held)

    def check_room(self, tables: Collection[TableId] | None = None) -> None:
        wanted: Counter[str] = Counter()
        for table in self._tables(tables):
            versions = self._keys.table(table)
            wanted[self._server.place(versions)] += int(self._server.run("HLEN", versions)) * MET_BYTES
        for place, memory in self._server.infos("memory").items():
            limit, used = int(memory.get("maxmemory", 0)), int(memory["used_memory"])
            if limit and used + wanted[place] > limit:
                raise SinkError(
                    f"Redis at {place}: a rebuild needs about {wanted[place]:,} bytes, and {max(0, limit - used):,} "
                    "are left below maxmemory",
                    "raise maxmemory, then start the rebuild again",
                )

    def remove_unmet(self, slot: str, version: int, tables: Collection[TableId] | None = None) -> int:
        del slot
        return sum(self._remove_unmet(table, version) for table in self._tables(tables))

    def serve(self, slot: str, *, adopts: bool = False) -> None:
        """There is one set of keys: all tables are the new generation's, whether it has written them or not."""
        del adopts
        generation, key = generation_of(slot), self._keys.generation
        held, note = self._server.run("HMGET", key, NOTE, REBUILDING_NOTE)
        fields = ("generation", generation) if note is None else ("generation", generation, NOTE, joined(held, note))
        self._server.run("HSET", key, *fields)
        self.drop(slot)

    def drop(self, slot: str) -> None:
        del slot
        tables = self._tables()
        # Before the rows that it wrote are forgotten: a rebuild that went on without them would remove these rows.
        self._server.run("HDEL", self._keys.generation, REBUILDING, REBUILDING_NOTE)
        self._server.run_all([("UNLINK", self._keys.met(table)) for table in tables])

    def close(self) -> None:
        self._server.close()

    def _tables(self, only: Collection[TableId] | None = None) -> list[TableId]:
        held = tables_of(self._server.run("HKEYS", self._keys.generation), self._keys)
        return [table for table in held if only is None or table in only]

    def _remove_unmet(self, table: TableId, version: int) -> int:
        versions, met = self._keys.table(table), self._keys.met(table)
        shape, key_columns = self._server.run("HMGET", versions, SHAPE, KEY_COLUMNS)
        if shape is None or key_columns is None:
            return 0
        rows = RowKeys.described(versions, key_columns.decode(), shape.decode())
        removed = 0
        unmet = self._unmet(versions, met, version)
        while page := list(islice(unmet, SCRIPT_KEYS_MAX)):
            arguments: list[Any] = []
            for row_id, entry in page:
                lookups = lookup_keys(entry)
                arguments += [row_id, entry, rows.key(row_id.decode()), len(lookups), *lookups]
            command = ("EVALSHA", REMOVE_UNSEEN.sha, 2, versions, met, *arguments)
            removed += int(self._server.run_all([command], [REMOVE_UNSEEN])[0])
        return removed

    def _unmet(self, versions: str, met: str, version: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows up to this version that the rebuild did not write, with their entries; some of them twice."""
        newest = version_text(version).encode()
        for held in self._server.fields(versions):
            rows = [
                (row_id, entry)
                for row_id, entry in held.items()
                if not row_id.startswith(b"\0") and entry[:VERSION_DIGITS] <= newest
            ]
            if rows:
                known = self._server.run("HMGET", met, *(row_id for row_id, _ in rows))
                yield from (row for row, found in zip(rows, known, strict=True) if found is None)
