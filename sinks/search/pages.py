"""Reads an index completely, page by page, as it was at one moment. Memory holds one page."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from opensearchpy.exceptions import NotFoundError, OpenSearchException, RequestError

from sinks.errors import SinkError
from sinks.search.mapping import VERSION_FIELD
from sinks.search.server import SearchServer

_KEEP_ALIVE: Final = "5m"  # the time that a reader may take for one page
_PAGE_IDS: Final = 5_000
_PAGE_BYTES: Final = 4 * 1024 * 1024
_PAGE_ROWS_MAX: Final = 1_000


def live_documents(server: SearchServer, index: str, query: dict[str, Any], with_row: bool) -> Iterator[dict[str, Any]]:
    """Yields the hits of the query with their `_version`, oldest version first; `_source` only `with_row`.

    The live documents of a table differ in version, so the version shows where the next page begins.
    """
    is_elasticsearch = server.product.is_elasticsearch
    pit_id = _open(server, index)
    last: list[Any] | None = None
    try:
        size = _page_rows(server, index) if with_row else _PAGE_IDS
        while True:
            body: dict[str, Any] = {
                "size": size,
                "query": query,
                "pit": {"id": pit_id, "keep_alive": _KEEP_ALIVE},
                # The second field distinguishes documents of one version, should there be any.
                "sort": [{VERSION_FIELD: "asc"}, {"_shard_doc" if is_elasticsearch else "_seq_no": "asc"}],
                "track_total_hits": False,
                "_source": with_row,
                "version": True,
            }
            if last is not None:
                body["search_after"] = last
            answer = _search(server, index, body)
            hits = answer["hits"]["hits"]
            yield from hits
            if len(hits) < size:
                return
            last, pit_id = hits[-1]["sort"], answer["pit_id"]
    finally:
        _close(server, pit_id)


def _page_rows(server: SearchServer, index: str) -> int:
    """Returns the number of rows that take about _PAGE_BYTES in the index (compressed, so a few times that in
    memory).
    """
    answer = server.call(lambda client: client.indices.stats(index=index, metric="docs,store"))
    held = answer["_all"]["primaries"]
    row_bytes: int = held["store"]["size_in_bytes"] // max(1, held["docs"]["count"])
    return max(10, min(_PAGE_ROWS_MAX, _PAGE_BYTES // max(1, row_bytes)))


def _open(server: SearchServer, index: str) -> str:
    params = {"keep_alive": _KEEP_ALIVE}
    try:
        if server.product.is_elasticsearch:
            url = f"/{index}/_pit"
            answer = server.call(lambda client: client.transport.perform_request("POST", url, params=params), (404,))
        else:
            answer = server.call(lambda client: client.create_pit(index=index, params=params), (404,))
    except NotFoundError as error:
        raise SinkError(f"{server.name}: there is no index {index}", "start the sink, which creates it") from error
    pit_id: str = answer["id" if server.product.is_elasticsearch else "pit_id"]
    return pit_id


def _search(server: SearchServer, index: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = server.call(lambda client: client.search(body=body), (400, 404))
    except (NotFoundError, RequestError) as error:
        raise SinkError(
            f"{server.name}: reading index {index} was interrupted (its point in time has expired)", "read it again"
        ) from error
    if answer.get("timed_out") or answer["_shards"]["failed"]:
        raise SinkError(f"{server.name}: index {index} could only be read in part", "check the cluster's health")
    return answer


def _close(server: SearchServer, pit_id: str) -> None:
    with suppress(OpenSearchException):  # otherwise it expires after _KEEP_ALIVE
        if server.product.is_elasticsearch:
            body = {"id": pit_id}
            server.once(lambda client: client.transport.perform_request("DELETE", "/_pit", body=body))
        else:
            server.once(lambda client: client.delete_pit(body={"pit_id": [pit_id]}))
