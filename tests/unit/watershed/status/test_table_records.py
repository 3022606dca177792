"""What operators read of a table's topic."""

import json
from typing import Any

import pytest

from cdc.model.errors import WatershedError
from cdc.model.events import Column, TableId, TableSchema, pack_version
from watershed.status.table_records import key_text, read_table_record, record_key

ID = Column("id", 20, -1, "bigint", nullable=False)
REGION = Column("region", 25, -1, "text", nullable=False)


def schema(*columns: Column) -> TableSchema:
    names = tuple(column.name for column in columns)
    return TableSchema(TableId("public", "orders"), 1, 1, columns, names, "shop.public.orders")


ONE, TWO, NONE = (
    schema(ID),
    schema(REGION, ID),
    TableSchema(TableId("public", "log"), 1, 1, (ID,), (), "shop.public.log"),
)


@pytest.mark.parametrize(
    ("table", "text", "key"),
    [
        (ONE, "17", b'{"id":17}'),
        (ONE, '{"id": 17}', b'{"id":17}'),
        (schema(REGION), "17", b'{"region":"17"}'),
        (schema(REGION), '["a"]', b'{"region":"[\\"a\\"]"}'),
        (TWO, '["eu", 17]', b'{"region":"eu","id":17}'),
        (TWO, '["eu", "17"]', b'{"region":"eu","id":17}'),
        (TWO, '{"id": 17, "region": "ü"}', '{"region":"ü","id":17}'.encode()),
    ],
)
def test_a_key_is_typed_as_text_or_as_json(table: TableSchema, text: str, key: bytes) -> None:
    assert json.loads(record_key(table, text)) == json.loads(key)
    assert record_key(table, key_text(json.loads(key))) == record_key(table, text)


@pytest.mark.parametrize(
    ("table", "text", "problem", "hint"),
    [
        (ONE, "x", "a value is none of its column's type", "the key is id: write its value"),
        (ONE, "017", "a value is none of its column's type", "the key is id"),
        (ONE, '{"nr": 1}', "it has other columns", "the key is id"),
        (TWO, "eu", "1 values for 2 columns", "the key is region, id: write a JSON list"),
        (TWO, "[1, 2, 3]", "3 values for 2 columns", "write a JSON list"),
        (NONE, "1", "has no key", "leave it out"),
    ],
)
def test_a_text_that_is_no_key_is_explained(table: TableSchema, text: str, problem: str, hint: str) -> None:
    with pytest.raises(WatershedError) as refused:
        record_key(table, text)
    assert problem in refused.value.message
    assert hint in refused.value.hint


def value(op: str, after: Any, before: Any = None, **source: Any) -> bytes:
    ours = {"epoch": 1, "seq": 7, "commit_lsn": 0x16B3748, "ts_us": 1_767_323_079_990_123}
    return json.dumps({"before": before, "after": after, "source": ours | source, "op": op}).encode()


KEY = b'{"id":1}'


def test_an_update_is_the_row_or_what_changed_if_the_old_row_is_known() -> None:
    row = {"id": 1, "name": "new", "total": "1.50"}
    record = read_table_record(2, 40, KEY, value("u", row), [])
    assert record.line() == "03:04:39.990  update  1  0/16B3748  name=new, total=1.50"
    known = read_table_record(2, 40, KEY, value("u", row, {"id": 1, "name": "old", "total": "1.50"}), [])
    assert known.line() == "03:04:39.990  update  1  0/16B3748  name: old → new"
    assert known.as_json() == {
        "partition": 2,
        "offset": 40,
        "key": {"id": 1},
        "op": "update",
        "version": pack_version(1, 7),
        "epoch": 1,
        "seq": 7,
        "commit_lsn": "0/16B3748",
        "commit_us": 1_767_323_079_990_123,
        "row": row,
        "before": {"id": 1, "name": "old", "total": "1.50"},
    }


def test_other_records_have_their_word() -> None:
    assert read_table_record(0, 0, KEY, value("d", None, {"id": 1}), None).line().split() == [
        *("03:04:39.990", "delete", "1", "0/16B3748")
    ]
    tombstone = read_table_record(0, 0, KEY, None, [("watershed.version", b"42")])
    assert (tombstone.op, tombstone.version, tombstone.row) == ("tombstone", 42, None)
    assert (
        read_table_record(0, 0, KEY, value("r", {"id": 1, "note": "x" * 100}), []).line().endswith(f"note={'x' * 39}…")
    )


def test_records_with_schemas_are_read_as_without() -> None:
    wrapped = json.dumps({"schema": {}, "payload": json.loads(value("c", {"id": 1, "name": "a"}))}).encode()
    key = json.dumps({"schema": {}, "payload": {"id": 1}}).encode()
    record = read_table_record(0, 0, key, wrapped, [])
    assert (record.key, record.op, record.row) == ({"id": 1}, "c", {"id": 1, "name": "a"})


@pytest.mark.parametrize("content", [b"\xff", b"[]", b"{}", b'{"source": 1}', b'{"source": {"epoch": "x"}, "op": 1}'])
def test_a_record_of_another_program_has_no_version(content: bytes) -> None:
    record = read_table_record(0, 0, b"no json", content, [("watershed.version", None)])
    assert (record.key, record.version, record.op) == ("no json", None, "")
    assert "?" in record.line()
