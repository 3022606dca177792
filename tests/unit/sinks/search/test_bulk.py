"""Bulk requests say what is meant, stay small, and each item of the answer is judged by itself."""

import json
import time
from typing import Any

import pytest

from sinks.contract import Outcome, Result
from sinks.errors import SinkError
from sinks.search.bulk import (
    BULK_BYTES_MAX,
    BULK_DOCUMENTS_MAX,
    Busy,
    Item,
    busy,
    is_too_large,
    item,
    outcome,
    requests,
)


def answer(status: int, error_type: str = "", reason: str = "") -> dict[str, Any]:
    message: dict[str, Any] = {"_index": "shop.public.t", "status": status}
    if error_type:
        message["error"] = {"type": error_type, "reason": reason}
    return {"index": message}


def test_a_row_is_written_whole_at_its_external_version() -> None:
    made = item("alias", 'id "1"\n', 2**62, {"b": "ü", "a": None})
    action, document, rest = made.content.split(b"\n")
    assert json.loads(action) == {
        "index": {"_index": "alias", "_id": 'id "1"\n', "version": 2**62, "version_type": "external"}
    }
    assert document == f'{{"b":"ü","a":null,"ws_version":{2**62},"ws_deleted":false}}'.encode()
    assert rest == b""


def test_a_deleted_row_is_a_document_without_columns() -> None:
    before_ms = time.time_ns() // 1_000_000
    left = json.loads(item("alias", "1", 7, None).content.splitlines()[1])
    assert left.keys() == {"ws_version", "ws_deleted", "ws_deleted_at"}
    assert (left["ws_version"], left["ws_deleted"]) == (7, True)
    assert before_ms <= left["ws_deleted_at"] <= time.time_ns() // 1_000_000


def test_a_document_has_its_routing_beside_its_id() -> None:
    action = json.loads(item("alias", "1", 7, {}, routing="é").content.splitlines()[0])
    assert action == {
        "index": {"_index": "alias", "_id": "1", "version": 7, "version_type": "external", "routing": "é"}
    }


def test_requests_are_cut_by_count() -> None:
    items = [Item("a", str(number), b"x") for number in range(2 * BULK_DOCUMENTS_MAX + 1)]
    cut = list(requests(items))
    assert [len(request) for request in cut] == [BULK_DOCUMENTS_MAX, BULK_DOCUMENTS_MAX, 1]
    assert [entry for request in cut for entry in request] == items


def test_requests_are_cut_by_bytes_and_a_large_item_is_alone() -> None:
    half, large = b"x" * (BULK_BYTES_MAX // 2), b"x" * (BULK_BYTES_MAX + 1)
    items = [Item("a", str(number), content) for number, content in enumerate([half, half, half, large, half])]
    assert [[entry.document_id for entry in request] for request in requests(items)] == [
        ["0", "1"],
        ["2"],
        ["3"],
        ["4"],
    ]


def test_each_request_has_the_whole_room_and_a_large_item_is_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.search.bulk.BULK_BYTES_MAX", 20)
    items = [Item("a", str(number), b"x" * size) for number, size in enumerate([30, 10, 10, 10, 10])]
    assert [[entry.document_id for entry in request] for request in requests(items)] == [["0"], ["1", "2"], ["3", "4"]]


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (413, "", True),
        (429, "rejected [coordinating_operation_bytes=100, max_coordinating_bytes=99]", True),
        (429, "rejected [coordinating_operation_bytes=100, max_coordinating_bytes=100]", False),
        (429, "rejected [coordinating_operation_bytes=99, max_coordinating_bytes=100]", False),
        (429, "the queue is full", False),
        (503, "rejected [coordinating_operation_bytes=100, max_coordinating_bytes=99]", False),
        (412, "", False),
    ],
)
def test_a_request_that_can_never_be_taken_is_told_from_a_busy_store(status: int, reason: str, expected: bool) -> None:
    assert is_too_large(status, reason) == expected


def test_nothing_is_no_request() -> None:
    assert list(requests([])) == []


@pytest.mark.parametrize("status", [200, 201])
def test_a_success_is_written(status: int) -> None:
    assert outcome(answer(status)) == Result(Outcome.WRITTEN)


def test_a_version_conflict_is_stale() -> None:
    assert outcome(answer(409, "version_conflict_engine_exception", "[1]: version conflict")) == Result(Outcome.STALE)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_store_is_asked_again(status: int) -> None:
    assert outcome(answer(status, "es_rejected_execution_exception")) == Busy(status, "es_rejected_execution_exception")


@pytest.mark.parametrize("error_type", ["mapper_parsing_exception", "document_parsing_exception"])
def test_a_value_that_does_not_fit_is_rejected_by_column_without_the_value(error_type: str) -> None:
    reason = (
        "failed to parse field [is_active] of type [boolean] in document with id 'k'. "
        "Preview of field's value: 'sesame'"
    )
    result = outcome(answer(400, error_type, reason))
    assert result == Result(Outcome.REJECTED, "column is_active: its value does not fit the field type boolean")


def test_a_document_that_does_not_fit_otherwise_is_rejected_by_the_errors_type() -> None:
    result = outcome(answer(400, "mapper_parsing_exception", "failed to parse 'sesame'"))
    assert result == Result(Outcome.REJECTED, "the document does not fit the index (mapper_parsing_exception)")


def test_a_term_that_lucene_refuses_is_rejected_by_column() -> None:
    reason = 'Document contains at least one immense term in field="code" (whose UTF8 encoding is longer), sesame'
    result = outcome(answer(400, "illegal_argument_exception", reason))
    assert result == Result(Outcome.REJECTED, "column code: its value is too long to be a term of the index")


@pytest.mark.parametrize(
    ("error_type", "reason"),
    [
        ("illegal_argument_exception", "Limit of total fields [1000] has been exceeded"),
        ("illegal_argument_exception", "Limit of mapping depth [20] has been exceeded due to object field [a]"),
        ("illegal_argument_exception", "mapper [raw.a] cannot be changed from type [text] to [ObjectMapper]"),
        ("illegal_argument_exception", "The number of nested documents has exceeded the allowed limit of [10000]."),
        ("strict_dynamic_mapping_exception", "mapping set to strict, dynamic introduction of [a] is not allowed"),
        ("x_content_parse_exception", "[1:7] Number value length (5000) exceeds the maximum allowed (1000)"),
    ],
)
def test_what_a_document_would_make_of_its_index_is_its_own_matter(error_type: str, reason: str) -> None:
    result = outcome(answer(400, error_type, reason))
    assert result == Result(Outcome.REJECTED, f"the document does not fit the index ({error_type})")


def test_an_alias_that_can_t_be_written_is_no_row_s_matter() -> None:
    reason = "no write index is defined for alias [a]. The alias points to several indices, with one document or more"
    with pytest.raises(SinkError, match="refuses a document"):
        outcome(answer(400, "illegal_argument_exception", reason))


@pytest.mark.parametrize(
    ("status", "error_type", "message"),
    [
        (400, "index_closed_exception", "refuses a document (status 400"),
        # Not about the row's content: rejecting every row of the index would lose them all.
        (400, "illegal_argument_exception", "refuses a document (status 400"),
        (404, "index_not_found_exception", "does not exist (status 404"),
        (403, "cluster_block_exception", "is blocked for writes"),
        (403, "security_exception", "refuses a document (status 403"),
        (500, "", "refuses a document (status 500, no reason given)"),
        (409, "something_else", "refuses a document (status 409"),
        (400, "version_conflict_engine_exception", "refuses a document (status 400"),
        (500, "mapper_parsing_exception", "refuses a document (status 500"),
    ],
)
def test_anything_else_stops_the_sink(status: int, error_type: str, message: str) -> None:
    with pytest.raises(SinkError) as caught:
        outcome(answer(status, error_type, "sesame"))
    assert message in caught.value.message
    assert "shop.public.t" in caught.value.message
    assert caught.value.hint
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("blocked", "message", "hint"),
    [
        (Busy(0, "ConnectionError"), "does not answer (ConnectionError)", "the sink's url"),
        (Busy(429, "cluster_block_exception"), "accepts no requests (status 429", "free disk space"),
        (Busy(503, ""), "accepts no requests (status 503, no reason given)", "cluster health"),
    ],
)
def test_a_store_that_stayed_busy_is_said_with_the_next_step(blocked: Busy, message: str, hint: str) -> None:
    error = busy(blocked, "OpenSearch at h:9200")
    assert error.message.startswith("OpenSearch at h:9200")
    assert message in error.message
    assert hint in error.hint
