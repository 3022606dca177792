"""The indexes that a sink has made in a search store, and their removal."""

from collections.abc import Collection
from contextlib import closing
from functools import partial
from typing import Any

from opensearchpy import OpenSearch

from cdc.config.stores import SearchConfig
from cdc.model.events import TableId
from sinks.retries import Retries
from sinks.search.names import SearchNames
from sinks.search.server import SearchServer


def search_contents(section: SearchConfig, prefix: str, tables: Collection[TableId], *, removes: bool) -> list[str]:
    """Returns the names of the sink's indexes, which say in `_meta` that they are its; with `removes`, they are
    deleted, and their aliases with them. Raises SinkError."""
    del tables
    with closing(SearchServer(section, Retries())) as server:
        names = SearchNames(prefix if section.index_prefix is None else section.index_prefix, section.shapes)
        asked = {"filter_path": "*.mappings._meta.watershed", "expand_wildcards": "all"}
        held: dict[str, Any] = server.call(lambda client: client.indices.get_mapping(params=asked))
        owned = [
            index
            for index, described in held.items()
            if described["mappings"]["_meta"]["watershed"].get("prefix") == names.prefix
        ]
        pattern = f"{names.in_slot('').marker},{names.in_slot('g*').marker}"
        options = {"ignore_unavailable": "true", "expand_wildcards": "all"}
        markers = server.call(lambda client: client.indices.get(index=pattern, params=options))
        # The markers first: what a crash leaves then belongs to no generation.
        found = [*sorted(markers), *sorted(owned)]
        for index in found if removes else ():
            server.call(partial(_delete, index=index))
        return found


def _delete(client: OpenSearch, index: str) -> None:
    client.indices.delete(index=index, ignore_unavailable=True)
