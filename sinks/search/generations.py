"""Which generation the search index holds, and whether every index that belongs to it is still the same one.

Each generation has a marker index. An alias names that of the generation which readers see; it moves together with
their aliases, in one step. The marker index has a document `generation`, and one for each prepared table, named as its
first index is, with the name and the UUID of the one that it has now: an index that was deleted, or deleted and made
again by somebody else, has another UUID or none.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConflictError, NotFoundError, RequestError

from cdc.model.errors import SinkError
from cdc.model.events import TableId
from sinks.search.names import SearchNames
from sinks.search.server import SearchServer, error_type

log = structlog.get_logger(__name__)

_GENERATION_ID: Final = "generation"
# One page. A node takes 1,000 shards by default, so a prefix has fewer tables than this.
_INDEXES_MAX: Final = 10_000
_NAMES_MAX: Final = 5  # in one URL


class Overtaken(Exception):  # noqa: N818
    """Another writer was here meanwhile: look again."""


class Mark(NamedTuple):
    """Which index a table has, and when that was written."""

    name: str
    uuid: str
    shape: str  # sinks.search.mapping.shape_digest of the table's index
    written: tuple[int, int]  # sequence number and primary term: a write may ask for it to be the last


class Generations:
    """The marker index of one prefix."""

    def __init__(self, server: SearchServer, names: SearchNames, shape: Callable[[TableId], str]) -> None:
        """`shape`: the digest that each table's index must have."""
        self._server = server
        self._names = names
        self._marker = names.marker
        self._shape = shape

    def is_serving(self) -> bool:
        """Whether readers see this generation."""
        return serving_slot(self._server, self._names) == self._names.slot

    def current(self, *, any_shape: bool = False) -> int | None:
        """The generation held; None when there is none, or one of its indexes is gone or has another shape, unless
        `any_shape`."""
        documents = self._documents()
        generation = documents.pop(_GENERATION_ID, None)
        if generation is None:
            return None
        if not any_shape and (changed := self._changed(documents)):
            log.warning("search index is filled again: the shape of tables has changed", indexes=sorted(changed))
            return None
        marked = {str(document.get("index", name)): document["uuid"] for name, document in documents.items()}
        held = self._uuids(list(marked))
        if any(held.get(index) != uuid for index, uuid in marked.items()):
            return None
        return int(generation["generation"])

    def begin(self, generation: int) -> None:
        """Forget all indexes and hold `generation`. A crash in between leaves no generation. Indexes of another shape
        are deleted, since they may have had another name."""
        is_serving = self.is_serving()
        documents = self._documents()
        held = self._uuids(list(changed := self._changed(documents)))
        for index in (index for index, uuid in changed.items() if held.get(index) == uuid):
            self._delete(index)
        self._delete(self._marker)
        body: dict[str, Any] = {"settings": {"auto_expand_replicas": "0-1"}, "mappings": {"dynamic": False}}
        if is_serving:
            body["aliases"] = {self._names.serving: {}}
        try:
            self._server.call(lambda client: client.indices.create(index=self._marker, body=body), (400,))
        except RequestError as error:
            if error_type(error) != "resource_already_exists_exception":  # another writer was faster: fine
                raise self._server.explained(error) from error
        self._put(_GENERATION_ID, {"generation": generation}, {})

    def is_begun(self) -> bool:
        return self._get(_GENERATION_ID) is not None

    def marked(self, name: str) -> Mark | None:
        """The index of the table that was prepared under `name` in this generation."""
        answer = self._get(name)
        if answer is None:
            return None
        document = answer["_source"]
        written = answer["_seq_no"], answer["_primary_term"]
        return Mark(document.get("index", name), document["uuid"], document.get("shape", ""), written)

    def mark(self, name: str, index: str, uuid: str, table: TableId, before: Mark | None) -> None:
        """This index belongs to the generation from now on. Raises Overtaken where `before` is not the mark any
        more."""
        if before is None:
            condition: dict[str, Any] = {"op_type": "create"}
        else:
            condition = {"if_seq_no": before.written[0], "if_primary_term": before.written[1]}
        try:
            document = {"index": index, "uuid": uuid, "table": str(table), "shape": self._shape(table)}
            self._put(name, document, condition)
        except ConflictError as error:
            raise Overtaken from error

    def indexes(self) -> dict[TableId, str]:
        """The index that each table of the generation has."""
        return {
            TableId.parse(document["table"]): str(document["index"])
            for name, document in self._documents().items()
            if name != _GENERATION_ID and "table" in document
        }

    def _changed(self, documents: dict[str, dict[str, Any]]) -> dict[str, str]:
        """Names and UUIDs of the indexes whose tables are to have another shape."""
        return {
            str(document.get("index", name)): document["uuid"]
            for name, document in documents.items()
            if name != _GENERATION_ID
            and ("table" not in document or document["shape"] != self._shape(TableId.parse(document["table"])))
        }

    def _delete(self, index: str) -> None:
        self._server.call(lambda client: client.indices.delete(index=index, ignore_unavailable=True))

    def _uuids(self, indexes: list[str]) -> dict[str, str]:
        # Servers take URLs of 4 KiB.
        found: dict[str, str] = {}
        for start in range(0, len(indexes), _NAMES_MAX):
            names = ",".join(indexes[start : start + _NAMES_MAX])
            read = partial(_read_uuids, names=names)
            found |= {name: entry["settings"]["index"]["uuid"] for name, entry in self._server.call(read).items()}
        return found

    def _documents(self) -> dict[str, dict[str, Any]]:
        body = {"size": _INDEXES_MAX, "query": {"match_all": {}}}
        try:  # each write to it was refreshed
            hits = self._server.call(lambda client: client.search(index=self._marker, body=body), (404,))["hits"][
                "hits"
            ]
        except NotFoundError:
            return {}
        return {hit["_id"]: hit["_source"] for hit in hits}

    def _get(self, document_id: str) -> dict[str, Any] | None:
        try:
            answer = self._server.call(lambda client: client.get(index=self._marker, id=document_id), (404,))
        except NotFoundError:
            return None
        found: dict[str, Any] = answer
        return found

    def _put(self, document_id: str, document: dict[str, Any], condition: dict[str, Any]) -> None:
        params = {"refresh": "true", **condition}
        try:
            self._server.call(
                lambda client: client.index(index=self._marker, id=document_id, body=document, params=params),
                (404, 409),
            )
        except NotFoundError as error:
            raise SinkError(
                f"{self._server.name}: the index {self._marker} was deleted just now", "nothing: the sink starts again"
            ) from error


def serving_slot(server: SearchServer, names: SearchNames) -> str:
    """The slot of the generation that readers see; that without a name where there is none."""
    try:
        held = server.call(lambda client: client.indices.get_alias(name=names.serving), (404,))
    except NotFoundError:
        return ""
    return names.slot_of(min(held))


def _read_uuids(client: OpenSearch, names: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.indices.get_settings(index=names, name="index.uuid", ignore_unavailable=True)
    return answer
