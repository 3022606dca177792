"""Bulk requests: their bytes, their size, and the meaning of each item of the answer. Pure."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

from sinks.contract import Outcome, Result
from sinks.errors import FullError, SinkError
from sinks.json_documents import encode_document
from sinks.records import encode_json
from sinks.search.mapping import DELETED_AT_FIELD, DELETED_FIELD, VERSION_FIELD

# OpenSearch takes 100 MiB a request; larger requests write no more documents a second and cost heap.
BULK_BYTES_MAX: Final = 5 * 1024 * 1024
BULK_DOCUMENTS_MAX: Final = 2_000

_LINES: Final = b'{"index":{"_index":%b,"_id":%b,"version":%d,"version_type":"external"%b}}\n%b\n'
_WRITTEN = Result(Outcome.WRITTEN)
_STALE = Result(Outcome.STALE)
_FIELD = re.compile(r"field \[([^\]]*)\] of type \[([^\]]*)\]")
# Indexing pressure: the bytes of one operation, and the most that a node takes at once, a tenth of its heap by default.
_PRESSURE = re.compile(r"_operation_bytes=(\d+), max_\w+=(\d+)")
# Errors that a document's content causes, and what an illegal_argument_exception says of them: the index would get more
# fields, levels or nested documents than it may have, or a field another type. Others may be about the index; rejecting
# each of its rows would lose them all.
_OF_CONTENT: Final = re.compile(
    r"(pars(e|ing)|mapping|constraints|coercion|number_format|arithmetic|date_time)_exception"
)
_ABOUT_CONTENT: Final = re.compile(r"\b(fields?|mapper|mapping|depth|nested|document|dimension|value)\b", re.IGNORECASE)
_ABOUT_INDEX: Final = re.compile(r"\balias\b|write index|pipeline", re.IGNORECASE)
_IMMENSE_TERM = re.compile(r'immense term in field="([^"]*)"')
# 429: queues or heap are full, or the disk (flood stage). 502, 504: a proxy. 503: a shard is moving.
# Above a watermark of the disk: no write, or no new index.
BLOCKED: Final = frozenset({"cluster_block_exception", "index_create_block_exception"})
TRANSIENT_STATUSES: Final = frozenset({429, 502, 503, 504})


class Item(NamedTuple):
    """One document of a bulk request."""

    alias: str  # through which it is written
    document_id: str
    content: bytes  # action line and document line
    plain: Callable[[], "Item"] | None = None  # makes the same row in a form that fewer fields refuse


class Busy(NamedTuple):
    """The outcome of an item that the store could not take now. It is sent again, with the same version."""

    status: int
    error_type: str
    is_too_large: bool = False  # the request can never be taken: see is_too_large


def item(
    alias: str, document_id: str, version: int, document: Mapping[str, Any] | None, routing: str | None = None
) -> Item:
    """Returns a document that is written if its version is above the version held. `document`: None for a tombstone.

    A deleted row stays as a document without columns, because OpenSearch forgets the version of a document that it
    deletes (after index.gc_deletes, one minute). The time of deletion shows when the version is not needed any more.
    """
    if document is None:
        content = {VERSION_FIELD: version, DELETED_FIELD: True, DELETED_AT_FIELD: time.time_ns() // 1_000_000}
    else:
        content = {**document, VERSION_FIELD: version, DELETED_FIELD: False}
    routed = b"" if routing is None else b',"routing":%b' % encode_json(routing)
    names = orjson.dumps(alias), orjson.dumps(document_id)
    return Item(alias, document_id, _LINES % (*names, version, routed, encode_document(content)))


def requests(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yields the items in order, in requests of bounded size. An item larger than the limit is a request by itself."""
    request: list[Item] = []
    size_bytes = 0
    for entry in items:
        if request and (len(request) == BULK_DOCUMENTS_MAX or size_bytes + len(entry.content) > BULK_BYTES_MAX):
            yield request
            request, size_bytes = [], 0
        request.append(entry)
        size_bytes += len(entry.content)
    if request:
        yield request


def outcome(answer: dict[str, Any]) -> Result | Busy:
    """Returns the meaning of an item of the answer. Raises SinkError if the index is missing, blocked, or refuses the
    document for another reason than its content.
    """
    ((_, result),) = answer.items()
    status = int(result["status"])
    if status in (200, 201):
        return _WRITTEN
    error = result.get("error") or {}
    error_type, reason = str(error.get("type", "")), str(error.get("reason", ""))
    if status == 409 and error_type == "version_conflict_engine_exception":
        return _STALE
    if status in TRANSIENT_STATUSES:
        return Busy(status, error_type, is_too_large(status, reason))
    if status == 400 and (rejection := _rejection(error_type, reason)):
        return Result(Outcome.REJECTED, rejection)
    raise _refused(status, error_type, result.get("_index"))


def is_too_large(status: int, reason: str) -> bool:
    """Returns whether a request, or its part for one shard, is larger than can ever be taken: by
    http.max_content_length, by a proxy, or by a node's indexing pressure, which answers 429 as if the node were only
    busy.
    """
    pressure = _PRESSURE.search(reason) if status == 429 else None
    return status == 413 or (pressure is not None and int(pressure[1]) > int(pressure[2]))


def busy(blocked: Busy, where: str) -> SinkError:
    """Returns the error for a store that stayed busy, or did not answer (status 0)."""
    if blocked.status == 0:
        return SinkError(
            f"{where} does not answer ({blocked.error_type})",
            "check that it is running and that the sink's url is right; the sink tries again by itself",
        )
    message = f"{where} accepts no requests (status {blocked.status}, {blocked.error_type or 'no reason given'})"
    if blocked.error_type in BLOCKED:
        hint = "free disk space on its nodes, or remove its block cluster.blocks.*; the sink tries again by itself"
        return FullError(message, hint)
    return SinkError(message, "check its load and its cluster health; the sink tries again by itself")


def _rejection(error_type: str, reason: str) -> str | None:
    """Returns why this document can never be taken; None if the error is not about its content."""
    if error_type in ("mapper_parsing_exception", "document_parsing_exception"):
        field = _FIELD.search(reason)
        return (
            f"column {field[1]}: its value does not fit the field type {field[2]}"
            if field
            else f"the document does not fit the index ({error_type})"
        )
    if field := _IMMENSE_TERM.search(reason):
        return f"column {field[1]}: its value is too long to be a term of the index"
    if error_type == "illegal_argument_exception":
        is_of_content = bool(_ABOUT_CONTENT.search(reason)) and not _ABOUT_INDEX.search(reason)
    else:
        is_of_content = bool(_OF_CONTENT.search(error_type))
    return f"the document does not fit the index ({error_type})" if is_of_content else None


def _refused(status: int, error_type: str, index: str | None) -> SinkError:
    what = f"status {status}, {error_type or 'no reason given'}"
    if status == 404:
        return SinkError(
            f"search index {index} does not exist ({what})",
            "nothing to do: the sink restarts and fills the index again from the topics",
        )
    if error_type in BLOCKED:
        return FullError(
            f"search index {index} is blocked for writes ({what})",
            "free disk space on its nodes and remove the block index.blocks.*; the sink tries again by itself",
        )
    return SinkError(f"search index {index} refuses a document ({what})", "see the server's log for this error")
