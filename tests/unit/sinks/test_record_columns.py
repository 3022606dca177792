"""Records that are read at once are the changes that each record by itself is."""

import json
from typing import Any

import pytest

from cdc.model.events import EPOCH_MAX, SEQ_MAX, Column, TableId, TableSchema
from sinks.record_columns import ColumnReader
from sinks.records import ordinary_change

SCHEMA = TableSchema(
    TableId("public", "order lines"),
    3,
    16_400,
    tuple(Column(name, 25, -1, "text", True) for name in ("order_id", "line_no", "remark", "select")),
    ("line_no", "order_id"),
    "shop.public.order lines",
)
ROW = {"order_id": 7, "line_no": 1, "remark": "ünï\n", "select": [1.5, {"a": None}]}
Raw = tuple[bytes | None, bytes | None]


def record(seq: int = 17, op: str = "u", key: Any = None, row: Any = ROW, **source: Any) -> Raw:
    facts = {"schema": "public", "table": "order lines", "epoch": 2, "seq": seq, "schema_version": 3, "ts_us": 5}
    content = {"before": None, "after": row, "source": {"x": [1], **facts, **source}, "op": op, "ts_ms": 1}
    key = {name: ROW[name] for name in SCHEMA.key} if key is None else key
    return json.dumps(key).encode(), json.dumps(content).encode()


@pytest.fixture(scope="module")
def reader() -> ColumnReader:
    return ColumnReader(SCHEMA)


def test_columns_are_those_of_the_changes(reader: ColumnReader) -> None:
    others = [{**ROW, "order_id": number, "remark": None} for number in range(3)]
    keys = [{"line_no": 1, "order_id": number} for number in range(3)]
    records = [record(0, op="r"), record(SEQ_MAX, op="c", epoch=EPOCH_MAX)]
    records += [record(5 + n, key=key, row=row) for n, (key, row) in enumerate(zip(keys, others, strict=True))]
    found = reader.read(records)
    changes = [ordinary_change(SCHEMA, *one) for one in records]
    assert found is not None and found.numbers == list(range(5))
    rows = [dict(zip(found.columns, values, strict=True)) for values in zip(*found.columns.values(), strict=True)]
    assert [(row, version) for row, version in zip(rows, found.versions, strict=True)] == [
        (change.row, change.version) for change in changes if change is not None
    ]
    assert list(found.columns) == [column.name for column in SCHEMA.columns]


def test_deletes_and_tombstones_are_left_out(reader: ColumnReader) -> None:
    key, _ = record()
    delete = record(18, op="d", row=None)
    found = reader.read([record(), delete, (key, None), record(19)])
    assert found is not None and found.numbers == [0, 3]
    assert reader.read([delete, (key, None)]) is None


@pytest.mark.parametrize(
    "other",
    [
        record(schema_version=2),
        record(schema_version=4),
        record(table="other"),
        record(schema="other"),
        record(epoch=0),
        record(epoch=EPOCH_MAX + 1),
        record(epoch=True),
        record(seq=-1),
        record(seq=SEQ_MAX + 1),
        record(unchanged=["remark"]),
        record(op="x"),
        record(op="t"),
        record(row=None),
        record(row=[]),
        record(row={**ROW, "more": 1}),
        record(row={name: value for name, value in ROW.items() if name != "remark"}),
        record(key={"line_no": 1}),
        record(key={"line_no": 1, "order_id": None}),
        record(key={"line_no": 1, "order_id": 7, "more": 1}),
        record(key=[1, 7]),
        (None, record()[1]),
        (b"", record()[1]),
        (record()[0], b"{"),
        (record()[0], b""),
        (b"\x00\x00\x00\x00\x01", b"\x00\x00\x00\x00\x01"),
    ],
    ids=repr,
)
def test_any_other_record_is_left_with_all(reader: ColumnReader, other: Raw) -> None:
    assert ordinary_change(SCHEMA, *other) is None
    assert reader.read([record(), other]) is None


def test_a_row_with_another_key_than_its_record_is_left(reader: ColumnReader) -> None:
    assert reader.read([record(key={"line_no": 1, "order_id": 8})]) is None


def test_a_table_with_one_column(reader: ColumnReader) -> None:
    schema = TableSchema(TableId("public", "a"), 1, 1, (Column("id", 20, -1, "bigint", False),), ("id",), "t")
    value = {"op": "c", "after": {"id": 4}, "source": {"schema": "public", "table": "a"}}
    value["source"] |= {"epoch": 1, "seq": 2, "schema_version": 1}  # type: ignore[operator]
    found = ColumnReader(schema).read([(b'{"id":4}', json.dumps(value).encode())])
    assert found is not None and found.columns == {"id": (4,)}


def test_a_name_that_can_not_be_found_in_records_is_refused() -> None:
    columns = (Column('a "b"', 20, -1, "bigint", False),)
    with pytest.raises(ValueError, match=r"[Rr]enam"):
        ColumnReader(TableSchema(TableId("public", "a"), 1, 1, columns, ('a "b"',), "t"))
