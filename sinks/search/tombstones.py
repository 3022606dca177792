"""Documents of deleted rows, which keep a row's version, are deleted themselves after a while.

A tombstone may go when no older change of its row can still be written. Changes come from the topics in order, so a job
that writes an older change writes the delete behind it, however far back it begins to read. What remains is a job that
was stopped in the middle of a write and goes on later: it must not have stood still for as long as `tombstone_ttl_s`.
The time of deletion is the writer's clock; the clocks of writers may differ by much less than that. Only tombstones
that are still the same are deleted: OpenSearch compares the sequence number that its query has found.
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


class Tombstones:
    """Of the tables of one sink."""

    def __init__(self, server: SearchServer, ttl_s: int) -> None:
        self._server = server
        self._ttl_s = ttl_s
        self._due_s = 0.0  # monotonic

    def purge_now_and_then(self, aliases: Sequence[str]) -> None:
        """Purge once an hour."""
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _PAUSE_S
            self.purge(aliases, time.time() - self._ttl_s)

    def purge(self, aliases: Sequence[str], before_s: float) -> None:
        """Begin to delete the tombstones of rows that were deleted before that time. The server goes on by itself."""
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
        """Behind the aliases, which hide tombstones."""
        names = ",".join(aliases)
        try:
            return sorted(self._server.call(lambda client: client.indices.get_alias(name=names), (404,)))
        except NotFoundError:  # noticed by who writes to it
            return []


def _delete(client: OpenSearch, indexes: Sequence[str], query: dict[str, Any]) -> None:
    client.delete_by_query(
        index=",".join(indexes),
        body={"query": query},
        params={"conflicts": "proceed", "wait_for_completion": "false", "ignore_unavailable": "true"},
    )
