"""A row becomes a document that can be searched by its parts, and comes back to the last digit."""

from typing import Any

import pytest

from cdc.config.store_shapes import SearchShape
from cdc.model.events import Column, TableId, TableSchema
from sinks.errors import RefusedError
from sinks.json_documents import encode_document
from sinks.json_numbers import read_json
from sinks.search.documents import DocumentForm, has_few_digits
from sinks.search.mapping import Capabilities


def typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


COLUMNS = {
    "id": Column("id", 20, -1, "bigint", False),
    "doc": Column("doc", 3802, -1, "jsonb", True),
    "raw": Column("raw", 114, -1, "json", True),
    "price": Column("price", 1700, typmod(12, 2), "numeric(12,2)", True),
    "exact": Column("exact", 1700, typmod(16, 2), "numeric(16,2)", True),
    "at": Column("at", 600, -1, "point", True),
    "near": Column("near", 90_001, -1, "vector(3)", True),
    "rating": Column("rating", 701, -1, "double precision", True),
}
SCHEMA = TableSchema(TableId("public", "t"), 1, 16_400, tuple(COLUMNS.values()), ("id",), "t")
FORM = DocumentForm(SCHEMA, SearchShape(), Capabilities("flat_object", "knn_vector", 16_000))


def stored(row: dict[str, Any], form: DocumentForm = FORM, *, objects: bool = True) -> str:
    return encode_document(form.document(row, objects=objects)).decode()


@pytest.mark.parametrize(
    ("row", "document"),
    [
        ({"doc": '{"a": {"b": [1, 2.50, 1e400]}}'}, '{"doc":{"a": {"b": [1, 2.50, 1e400]}}}'),
        ({"doc": '[{"a": 1}]'}, '{"doc":[{"a": 1}]}'),
        ({"doc": "[1, 2]"}, '{"ws_json":{"doc":"[1, 2]"}}'),
        ({"doc": "[]"}, '{"doc":[]}'),
        ({"raw": "[]"}, '{"raw":[]}'),
        ({"raw": "[ ]"}, '{"raw":[],"ws_json":{"raw":"[ ]"}}'),
        # Half of a pair of UTF-16, which PostgreSQL takes in a json value.
        ({"raw": '{"s": "\\ud800"}'}, '{"raw":{"s": "\\ud800"}}'),
        ({"raw": '{"\\udfff": [1]}'}, '{"raw":{"\\udfff": [1]}}'),
        ({"raw": '{"s": "ü\\uD800"}'}, None),
        ({"raw": '"\\ud800"'}, '{"ws_json":{"raw":"\\"\\\\ud800\\""}}'),
        ({"raw": '{"s": "\\u0000"}'}, '{"raw":{"s": "\\u0000"}}'),
        ({"raw": '{"a": %s}' % ("9" * 5_000)}, '{"raw":{"a": %s}}' % ("9" * 5_000)),
        ({"doc": '{"a": -%s}' % ("9" * 5_000)}, '{"doc":{"a": -%s}}' % ("9" * 5_000)),
        ({"doc": '"text"'}, '{"ws_json":{"doc":"\\"text\\""}}'),
        ({"doc": "null"}, '{"ws_json":{"doc":"null"}}'),
        ({"doc": None}, '{"doc":null}'),
        ({"raw": '{"a": 1}'}, '{"raw":{"a": 1}}'),
        ({"raw": '{ "a" : 1,  "a" : 2.0 }'}, '{"raw":{"a": 2.0},"ws_json":{"raw":"{ \\"a\\" : 1,  \\"a\\" : 2.0 }"}}'),
        ({"price": "-1234567890.10"}, '{"price":-1234567890.10}'),
        ({"price": "NaN"}, '{"price":"NaN"}'),
        ({"exact": "12345678901234.50"}, '{"exact":"12345678901234.50"}'),
        ({"at": "(1.50,-2)"}, '{"at":[1.50,-2]}'),
        ({"at": "(181,2)"}, '{"at":"(181,2)"}'),
        ({"at": "(NaN,2)"}, '{"at":"(NaN,2)"}'),
        ({"near": "[1,-2.5,3e-05]"}, '{"near":[1,-2.5,3e-05]}'),
        ({"rating": 1e16, "id": 2**70}, None),
    ],
)
def test_a_row_comes_back_as_it_was(row: dict[str, Any], document: str | None) -> None:
    if document is not None:
        assert stored(row) == document
    back = FORM.row(read_json(stored(row)))
    assert back == row
    assert all(type(value) is type(row[name]) for name, value in back.items())
    if "doc" in row or "raw" in row:
        assert FORM.row(read_json(stored(row, objects=False))) == row
    else:
        assert stored(row, objects=False) == stored(row)


def test_without_objects_all_json_is_text() -> None:
    assert stored({"doc": '{"a": 1}'}, objects=False) == '{"ws_json":{"doc":"{\\"a\\": 1}"}}'


@pytest.mark.parametrize("column", ["doc", "raw"])
def test_a_value_of_more_than_a_hundred_levels_is_text(column: str) -> None:
    at_most = '{"a": ' * 99 + '"{[{[\\"{"' + "}" * 99
    many = '[{"a": {}}' + ', {"a": {}}' * 99 + "]"
    for text in ('{"a": ' + at_most + "}", many):
        assert stored({column: text}) == f'{{"{column}":{text}}}'
    for deep in ('{"a": {"a": ' + at_most + "}}", '{"a": ' * 5_000 + "1" + "}" * 5_000):
        assert FORM.document({column: deep}) == {"ws_json": {column: deep}}
        assert FORM.row(read_json(stored({column: deep}))) == {column: deep}


def test_json_as_text_stays_text() -> None:
    form = DocumentForm(SCHEMA, SearchShape(json="text"), Capabilities())
    assert stored({"doc": '{"a": 1}'}, form) == '{"doc":"{\\"a\\": 1}"}'
    assert not form.has_objects


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [(15, 0, True), (15, 15, True), (16, 2, False), (5, -2, False), (3, 5, False), (12, 2, True)],
)
def test_a_double_holds_fifteen_digits(precision: int, scale: int, expected: bool) -> None:
    assert has_few_digits(Column("c", 1700, typmod(precision, scale & 0x7FF), "numeric", True)) is expected


def test_a_numeric_without_limits_has_many_digits() -> None:
    assert not has_few_digits(Column("c", 1700, -1, "numeric", True))


def test_fifteen_digits_are_the_same_after_a_double() -> None:
    for text in ("999999999999999", "0.123456789012345", "1234567890.12345", "0.1"):
        assert format(float(text), f".{len(text.partition('.')[2])}f") == text


def test_ids_and_routing_come_from_the_key() -> None:
    schema = TableSchema(TableId("public", "t"), 1, 1, SCHEMA.columns, ("id", "rating"), "t")
    form = DocumentForm(schema, SearchShape(id="{rating}/{id}", routing="tenant {id}"), Capabilities())
    form.check()
    key = {"id": 7, "rating": 1.5}
    assert (form.document_id(key), form.routing(key)) == ("1.5/7", "tenant 7")
    long = DocumentForm(SCHEMA, SearchShape(id="x" * 600 + "{id}"), Capabilities())
    assert long.document_id({"id": 1}).startswith("sha256:") and FORM.routing({"id": 1}) is None


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"id": "{price}"}, "not part of the key"),
        ({"id": "product"}, "names no column"),
        ({"routing": "{price}"}, "not part of the key"),
        ({"routing": "{nope}"}, "does not have"),
    ],
)
def test_templates_that_do_not_fit_are_refused(shape: dict[str, str], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        DocumentForm(SCHEMA, SearchShape(**shape), Capabilities()).check()
