"""The generation that the search index holds, and the check that every index which belongs to it is still the same one.

Each generation has a marker index. An alias names the marker of the generation that readers see; it moves together with
the aliases for readers, in one step. The marker index has a document `generation`, and one document for each prepared
table. The latter is named like the table's first index, contains name and UUID of the present one, and says whether it
was adopted from another generation: an index that
was deleted has no UUID, and one that another program created instead has another UUID. It also contains the UUID of
each primary shard's history, which the server replaces where a shard does not continue what it held: a snapshot that
was restored into a closed index, and a copy that lacks writes and was made the primary by force.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConflictError, NotFoundError, RequestError

from cdc.model.events import TableId
from sinks.contract import lost_writes
from sinks.errors import SinkError
from sinks.search.names import SearchNames
from sinks.search.server import SearchServer, error_type

log = structlog.get_logger(__name__)

_GENERATION_ID: Final = "generation"
# All documents fit into one page. A node takes 1,000 shards by default, so a prefix has fewer tables than this.
_INDEXES_MAX: Final = 10_000
_NAMES_MAX: Final = 5  # in one URL


class Overtaken(Exception):  # noqa: N818
    """Raised when another writer changed the marker or an index meanwhile. The caller reads both again and retries."""


class Mark(NamedTuple):
    """The index that a table has, and when that was recorded."""

    name: str
    uuid: str
    shape: str  # sinks.search.mapping.shape_digest of the table's index
    written: tuple[int, int]  # sequence number and primary term, for a write on condition that this is the last one


class Generations:
    """The marker index of one prefix."""

    def __init__(self, server: SearchServer, names: SearchNames, shape: Callable[[TableId], str]) -> None:
        """`shape`: the digest that each table's index must have."""
        self._server = server
        self._names = names
        self._marker = names.marker
        self._shape = shape

    def is_serving(self) -> bool:
        """Returns whether readers see this generation."""
        return serving_slot(self._server, self._names) == self._names.slot

    def current(self, *, any_shape: bool = False) -> int | None:
        """Returns the generation held; None if there is none, if one of its indexes is missing, or, unless `any_shape`,
        if one has another shape than configured.
        """
        documents = self._documents()
        generation = documents.pop(_GENERATION_ID, None)
        if generation is None:
            return None
        if not any_shape and (changed := self._changed(documents)):
            log.warning("filling the search index again: the shape of tables has changed", indexes=sorted(changed))
            return None
        marked = {str(document.get("index", name)): document for name, document in documents.items()}
        uuids = self._uuids(list(marked))
        if any(uuids.get(index) != document["uuid"] for index, document in marked.items()):
            return None
        for index, histories in self._histories(list(marked)).items():
            noted = marked[index].get("histories", {})
            if any(noted.get(shard, history) != history for shard, history in histories.items()):
                log.warning("filling the search index again: it was replaced by an older copy", index=index)
                return None
        return int(generation["generation"])

    def begin(self, generation: int) -> None:
        """Removes all index entries and records `generation`. A crash in between leaves no generation. Indexes of
        another shape are deleted, because they may have had another name.
        """
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
            if error_type(error) != "resource_already_exists_exception":  # another writer has created it: no error
                raise self._server.explained(error) from error
        self._put(_GENERATION_ID, {"generation": generation}, {})

    def save_position(self, text: str, before: str | None) -> None:
        """Implements sinks.contract.Sink.save_position."""
        held = self._get(_GENERATION_ID)
        if held is None or (before is not None and held["_source"].get("note") not in (before, text)):
            raise lost_writes(self._server.name)
        condition = {"if_seq_no": held["_seq_no"], "if_primary_term": held["_primary_term"]}
        try:
            # It is only read by its id, for which a document needs no refresh.
            self._put(_GENERATION_ID, {**held["_source"], "note": text}, {"refresh": "false", **condition})
        except ConflictError as error:
            if self.saved_position() != text:  # otherwise the answer to the first attempt was lost
                raise lost_writes(self._server.name) from error

    def saved_position(self) -> str | None:
        """Implements sinks.contract.Sink.saved_position."""
        held = self._get(_GENERATION_ID)
        return None if held is None else held["_source"].get("note")

    def is_begun(self) -> bool:
        return self._get(_GENERATION_ID) is not None

    def marked(self, name: str) -> Mark | None:
        """Returns the index of the table that was prepared under `name` in this generation."""
        answer = self._get(name)
        if answer is None:
            return None
        document = answer["_source"]
        written = answer["_seq_no"], answer["_primary_term"]
        return Mark(document.get("index", name), document["uuid"], document.get("shape", ""), written)

    def mark(self, name: str, index: str, uuid: str, table: TableId, before: Mark | None) -> None:
        """Records that the index belongs to the generation. Raises Overtaken if `before` is not the recorded mark any
        more.
        """
        if before is None:
            condition: dict[str, Any] = {"op_type": "create"}
        else:
            condition = {"if_seq_no": before.written[0], "if_primary_term": before.written[1]}
        try:
            document = {
                "index": index,
                "uuid": uuid,
                "histories": self._started(index),
                "table": str(table),
                "shape": self._shape(table),
            }
            self._put(name, document, condition)
        except ConflictError as error:
            raise Overtaken from error

    def indexes(self) -> dict[TableId, str]:
        """Returns the index of each table of the generation."""
        return {
            TableId.parse(document["table"]): str(document["index"])
            for name, document in self._documents().items()
            if name != _GENERATION_ID and "table" in document
        }

    def adopt(self, other: "Generations") -> dict[TableId, str]:
        """Records that the indexes of another generation belong to this one too, except those of tables that it has an
        index of its own for. Returns the index of each such table. Can be repeated after a kill."""
        held = self._documents().values()
        own = {document["table"] for document in held if "table" in document and "adopted" not in document}
        adopted = {}
        for document in other._documents().values():
            if "table" in document and document["table"] not in own:
                table = TableId.parse(document["table"])
                self._put(self._names.index(table), {**document, "adopted": True}, {})
                adopted[table] = str(document["index"])
        return adopted

    def _changed(self, documents: dict[str, dict[str, Any]]) -> dict[str, str]:
        """Returns names and UUIDs of the indexes whose tables are configured with another shape."""
        return {
            str(document.get("index", name)): document["uuid"]
            for name, document in documents.items()
            if name != _GENERATION_ID
            and ("table" not in document or document["shape"] != self._shape(TableId.parse(document["table"])))
        }

    def _delete(self, index: str) -> None:
        self._server.call(lambda client: client.indices.delete(index=index, ignore_unavailable=True))

    def _uuids(self, indexes: list[str]) -> dict[str, str]:
        # The limit of names keeps URLs below the 4 KiB that servers take.
        found: dict[str, str] = {}
        for start in range(0, len(indexes), _NAMES_MAX):
            names = ",".join(indexes[start : start + _NAMES_MAX])
            read = partial(_read_settings, names=names, setting="index.uuid")
            found |= {name: entry["settings"]["index"]["uuid"] for name, entry in self._server.call(read).items()}
        return found

    def _started(self, index: str) -> dict[str, str]:
        """Returns the histories of all primary shards, which the server starts after it has created the index."""
        for _ in self._server.retries.attempts():
            held = self._server.call(partial(_read_settings, names=index, setting="index.number_of_shards"))
            histories = self._histories([index]).get(index, {})
            if index not in held or len(histories) == int(held[index]["settings"]["index"]["number_of_shards"]):
                return histories
        raise SinkError(
            f"{self._server.name}: a primary shard of index {index} is not started",
            "GET /_cluster/allocation/explain says why; the sink tries again by itself",
        )

    def _histories(self, indexes: list[str]) -> dict[str, dict[str, str]]:
        """Returns the UUID of each primary shard's history, by index and number; without shards that are not
        started."""
        found: dict[str, dict[str, str]] = {}
        for start in range(0, len(indexes), _NAMES_MAX):
            names = ",".join(indexes[start : start + _NAMES_MAX])
            for index, entry in self._server.call(partial(_read_shards, names=names)).get("indices", {}).items():
                found[index] = {
                    number: copy["commit"]["user_data"]["history_uuid"]
                    for number, copies in entry["shards"].items()
                    for copy in copies
                    if copy["routing"]["primary"] and "commit" in copy
                }
        return found

    def _documents(self) -> dict[str, dict[str, Any]]:
        body = {"size": _INDEXES_MAX, "query": {"match_all": {}}, "_source": {"excludes": ["note"]}}
        try:  # each write to the marker index, except of a note, included a refresh
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
                f"{self._server.name}: the index {self._marker} was deleted just now",
                "nothing to do: the sink restarts",
            ) from error


def serving_slot(server: SearchServer, names: SearchNames) -> str:
    """Returns the slot of the generation that readers see; "" if there is none."""
    try:
        held = server.call(lambda client: client.indices.get_alias(name=names.serving), (404,))
    except NotFoundError:
        return ""
    return names.slot_of(min(held))


def _read_settings(client: OpenSearch, names: str, setting: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.indices.get_settings(index=names, name=setting, ignore_unavailable=True)
    return answer


def _read_shards(client: OpenSearch, names: str) -> dict[str, Any]:
    params = {
        "level": "shards",
        "filter_path": "indices.*.shards.*.routing.primary,indices.*.shards.*.commit.user_data.history_uuid",
        "ignore_unavailable": "true",
        "forbid_closed_indices": "false",
    }
    answer: dict[str, Any] = client.indices.stats(index=names, metric="docs", params=params)
    return answer
