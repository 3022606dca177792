"""JSON columns as JSON values in a cached document: every value comes back exactly, and strict readers can read it."""

import json
from typing import Any

import msgspec
import orjson
import pytest
from pydantic import ValidationError

from cdc.config.store_shapes import CacheShape
from cdc.model.events import Column, TableId, TableSchema
from sinks.cache.forms import TableForm, shape_text
from sinks.cache.keys import CacheKeys
from sinks.contract import Json
from sinks.errors import RefusedError
from tests.conformance.test_values import ODD_JSON, ONLY_JSON

COLUMNS = (
    Column("id", 20, -1, "bigint", False),
    Column("name", 25, -1, "text", True),
    Column("raw", 114, -1, "json", True),
    Column("more", 3802, -1, "jsonb", True),
    Column("own", 70_000, -1, "public.document", True, base_type_oid=3802),  # a domain
    Column("items", 3807, -1, "jsonb[]", True, element_oid=3802),
)


def form(*more: Column, **shape: Any) -> TableForm:
    schema = TableSchema(TableId("public", "t"), 1, 16_400, (*COLUMNS, *more), ("id",), "t")
    return TableForm(CacheKeys("shop"), schema, CacheShape(**{"json": "object", **shape}))


def document_of(**values: Json) -> bytes:
    """Returns the document of a row, which comes back exactly."""
    row: dict[str, Json] = {"id": 1, "name": "[1]"} | dict.fromkeys(("raw", "more", "own", "items")) | values
    made = form()
    document = made.document(row)
    assert made.row(document) == row
    return document


def test_json_is_a_value_of_the_document_with_its_text() -> None:
    number = '{"n": 0.10000000000000000000001, "big": 123456789012345678901234567890}'
    document = document_of(raw='{"a":1,  "a":[2]}', more=number, own='"text"', items=['{"x": 1}', None, "[2]", "3"])
    assert document.decode() == (
        '{"id":1,"name":"[1]","raw":{"a":1,  "a":[2]},"more":' + number + ',"own":"text","items":[{"x": 1},null,[2],3]}'
    )


@pytest.mark.parametrize("text", [*ODD_JSON, *ONLY_JSON, "null", " {}", "[1]\n", "0", '""', "false", "1e400", "-0.0"])
def test_any_json_comes_back_and_any_reader_can_read_the_document(text: str) -> None:
    document = document_of(raw=text, items=[text, None])
    assert isinstance(msgspec.json.decode(document), dict)
    read = orjson.loads(document)
    assert ("raw" in read) is (text not in read.get("ws_json", {}).values())
    assert ("items" in read) is ("raw" in read)


def test_a_value_that_would_mean_another_is_text_in_the_field_for_such() -> None:
    assert json.loads(document_of(raw="null", more='{"a": 1}')) == {
        "id": 1,
        "name": "[1]",
        "more": {"a": 1},
        "own": None,
        "items": None,
        "ws_json": {"raw": "null"},
    }
    nested = [["{}"], ["[]"]]  # an array of two dimensions is no array of JSON arrays
    assert json.loads(document_of(items=nested))["ws_json"] == {"items": nested}
    bounds = "[0:0]={{}}"
    assert json.loads(document_of(items=bounds))["ws_json"] == {"items": bounds}


def test_integers_of_any_size_stay_exact_beside_json() -> None:
    wide = form(Column("wide", 1700, -1, "numeric", True))
    row: dict[str, Json] = {"id": 1, "raw": "[1]", "wide": 2**80, "items": ["{}", None]}
    assert wide.row(wide.document(row)) == row


def test_another_programs_document_is_no_row() -> None:
    for content in (b"[]", b"x", b'{"ws_json": 1}', b'{"items": 1}'):
        with pytest.raises(ValueError, match="not the document of a row"):
            form().row(content)


def test_the_form_of_json_is_a_part_of_the_shape_and_the_default_is_not_named() -> None:
    assert "json" not in json.loads(shape_text(CacheShape()))
    assert shape_text(CacheShape(json="object")) != shape_text(CacheShape()) == shape_text(CacheShape(json="text"))


def test_columns_with_the_fields_name_and_shapes_without_documents_are_refused() -> None:
    form(Column("ws_json", 25, -1, "text", True), json="text").check({})
    with pytest.raises(RefusedError, match="column ws_json has the name of a field that json: object adds"):
        form(Column("ws_json", 25, -1, "text", True)).check({})
    with pytest.raises(ValidationError, match="json: object is for value: document and value: json"):
        CacheShape.model_validate({"value": "columns", "json": "object"})
    with pytest.raises(ValidationError, match="value, json and ttl_s are for mode: upsert"):
        CacheShape.model_validate({"mode": "invalidate", "key": "a:{id}", "json": "text"})
