"""Deletes the documents of deleted rows (tombstones), which keep the rows' versions, after a while.

A tombstone can be deleted when no older change of its row can still be written. Changes come from the topics in order,
so a job that writes an older change also writes the delete that follows it, however far back it begins to read. The
remaining case is a job that was suspended in the middle of a write and resumes later: it must not have been suspended
for as long as `tombstone_ttl_s`. The time of deletion is the writer's clock; the clocks of writers may differ by much
less than that. Only tombstones that have not changed are deleted: OpenSearch compares the sequence number that its
query has found.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from opensearchpy import OpenSearch
from opensearchpy.exceptions import NotFoundError

from sinks.search.mapping import DELETED_AT_FIELD, DELETED_FIELD
from sinks.search.server import SearchServer

_PAUSE_S: Final = 3600.0
_NAMES_MAX: Final = 5  # in one URL


class TombstonePurge:
    """The tombstones of the tables of one sink."""

    def __init__(self, server: SearchServer, ttl_s: int) -> None:
        self._server = server
        self._ttl_s = ttl_s
        self._due_s = 0.0  # monotonic

    def purge_hourly(self, aliases: Sequence[str]) -> None:
        """Calls purge if the last call was an hour ago."""
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _PAUSE_S
            self.purge(aliases, time.time() - self._ttl_s)

    def purge(self, aliases: Sequence[str], before_s: float) -> None:
        """Starts the deletion of tombstones that were written before `before_s` (seconds since 1970). The server
        continues by itself.
        """
        query = {
            "bool": {
                "filter": [
                    {"term": {DELETED_FIELD: True}},
                    {"range": {DELETED_AT_FIELD: {"lt": int(before_s * 1000)}}},
                ]
            }
        }
        for start in range(0, len(aliases), _NAMES_MAX):
            indexes = self._indexes(aliases[start : start + _NAMES_MAX])
            if indexes:
                self._server.call(partial(_delete, indexes=indexes, query=query))

    def _indexes(self, aliases: Sequence[str]) -> list[str]:
        """Returns the indexes of the aliases, which themselves hide tombstones."""
        names = ",".join(aliases)
        try:
            return sorted(self._server.call(lambda client: client.indices.get_alias(name=names), (404,)))
        except NotFoundError:  # the next write reports it
            return []


def _delete(client: OpenSearch, indexes: Sequence[str], query: dict[str, Any]) -> None:
    client.delete_by_query(
        index=",".join(indexes),
        body={"query": query},
        params={"conflicts": "proceed", "wait_for_completion": "false", "ignore_unavailable": "true"},
    )
