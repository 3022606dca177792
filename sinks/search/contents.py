"""The content of the search index, for comparison with the source. The version is the document's `_version`, which
guards it. A document whose version field differs was edited by another program.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from opensearchpy.exceptions import ConflictError, NotFoundError

from cdc.config.stores import SearchConfig
from cdc.model.events import TableId, TableSchema
from sinks.contents import Key, StoreContents, StoredEntry
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.search.documents import DocumentForm
from sinks.search.mapping import DELETED_FIELD, LIVE, VERSION_FIELD
from sinks.search.pages import live_documents
from sinks.search.sink import SearchSink

READ_DOCUMENTS_MAX: Final = 200  # in one request
FORGETTING_S: Final = 1.0


class SearchContents(StoreContents):
    """Implements sinks.contents.StoreContents."""

    def __init__(self, sink: SearchSink) -> None:
        self._sink = sink
        self._server = sink.server

    @classmethod
    def open(cls, section: SearchConfig, prefix: str, name: str) -> Self:
        return cls(SearchSink.open(section, prefix, Retries(attempt_count_max=4), name))

    def attach(self, schema: TableSchema) -> None:
        self._sink.attach(schema)

    def is_partial(self, table: TableId) -> bool:  # noqa: ARG002 - the same for every table
        return False

    def rows(self, table: TableId) -> Iterator[tuple[Key, StoredEntry]]:
        alias, form = self._sink.place(table)
        for hit in live_documents(self._server, alias, LIVE, with_row=True):
            held = _held(hit, form)
            assert held.row is not None, "the query finds live documents"
            yield {column: held.row.get(column) for column in form.schema.key}, held

    def held(self, table: TableId, keys: Sequence[Key]) -> list[StoredEntry | None]:
        _, form = self._sink.place(table)
        return [None if found is None else _held(found, form) for found in self._documents(table, keys)]

    def remove(self, table: TableId, held: Sequence[tuple[Key, int]]) -> None:
        """Implements StoreContents.remove. OpenSearch remembers the version of a document that it deletes for
        `index.gc_deletes`, and would go on refusing lower versions. So that time is set to zero meanwhile; a refresh
        then forgets older deletions by the server's clock, which advances in steps of 200 ms.
        """
        alias, _ = self._sink.place(table)
        self._set_memory(alias, "0s")
        try:
            for (_, version), found in zip(held, self._documents(table, [key for key, _ in held]), strict=True):
                if found is not None and int(found["_version"]) == version:
                    self._delete(found)
            time.sleep(FORGETTING_S)
            self._server.call(lambda client: client.indices.refresh(index=alias))
        finally:
            self._set_memory(alias, None)

    def close(self) -> None:
        self._sink.close()

    def _documents(self, table: TableId, keys: Sequence[Key]) -> Iterator[dict[str, Any] | None]:
        alias, form = self._sink.place(table)
        for start in range(0, len(keys), READ_DOCUMENTS_MAX):
            wanted: list[dict[str, str]] = []
            for key in keys[start : start + READ_DOCUMENTS_MAX]:
                routing = form.routing(key)
                document = {"_index": alias, "_id": form.document_id(key)}
                wanted.append(document if routing is None else document | {"routing": routing})
            body = {"docs": wanted}
            for found in self._call(alias, body)["docs"]:
                yield found if found.get("found") else None

    def _call(self, alias: str, body: dict[str, Any]) -> Any:
        try:
            answer: Any = self._server.call(lambda client: client.mget(body=body), (404,))
        except NotFoundError:
            answer = {"docs": [{"error": "404"}]}
        if any("error" in found for found in answer["docs"]):
            raise SinkError(f"{self._server.name}: there is no index {alias}", "start the sink, which creates it")
        return answer

    def _delete(self, found: dict[str, Any]) -> None:
        guard = {"if_seq_no": found["_seq_no"], "if_primary_term": found["_primary_term"]}
        routing = {"routing": found["_routing"]} if "_routing" in found else {}
        with suppress(NotFoundError, ConflictError):  # it was changed or deleted meanwhile
            self._server.call(
                lambda client: client.delete(index=found["_index"], id=found["_id"], params={**guard, **routing}),
                (404, 409),
            )

    def _set_memory(self, alias: str, kept: str | None) -> None:
        body = {"index": {"gc_deletes": kept}}
        self._server.call(lambda client: client.indices.put_settings(index=alias, body=body))


def _held(found: dict[str, Any], form: DocumentForm) -> StoredEntry:
    version, document = int(found["_version"]), found["_source"]
    is_edited = document.get(VERSION_FIELD) != version
    is_live = document.get(DELETED_FIELD) is False
    return StoredEntry(version, form.row(document) if is_live else None, is_edited=is_edited)
