"""The columns of a DataFrame, and rows in Arrow's form."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cdc.kafka.record_decoding import RecordReader
from cdc.model.errors import ConfigError
from cdc.model.events import TableId, pack_version
from sinks.schema_history import SchemaHistory
from spark_jobs.source.errors import SchemaChangedError, UnheldValueError
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.records import read_row
from spark_jobs.source.rows import RowForm
from tests.unit.spark_jobs.source.records import column, part, record, schema

PRICE = column("price", 1700, "numeric(10,2)", (10 << 16 | 2) + 4)
AT = column("at", 1184, "timestamp with time zone")


def options(columns: tuple[str, ...] | None = None, text: frozenset[str] = frozenset()) -> SourceOptions:
    return SourceOptions(part().kafka, "shop", TableId("public", "things"), columns, text)


def test_the_schema_in_sparks_sql() -> None:
    form = RowForm.of(schema(PRICE, AT, column("odd`name", 114, "json")), options())
    own = "_op` string, `_version` bigint, `_commit_lsn` bigint, `_commit_ts` timestamp, `_key` string"
    assert form.ddl == (
        "`id` int, `name` string, `price` decimal(10,2), `at` timestamp, `odd``name` string, "
        f"`{own}, `_unchanged` array<string>"
    )
    chosen = RowForm.of(schema(PRICE, AT), options(("at", "id"), frozenset({"at"})))
    assert chosen.ddl.startswith("`at` string, `id` int, `_op` string")


def test_rows_in_arrow() -> None:
    table = schema(PRICE, AT)
    schema_history = SchemaHistory((table,))
    form = RowForm.of(table, options())
    records = [
        record(1, "c", 1, 5, name="a", price="12.50", at="2026-01-02T03:04:05.678901Z"),
        record(2, "u", 1, 6, name=None, price=None, unchanged=("at",)),
        record(3, "d", 1, 7),
        record(4, "t", 2, 8),
    ]
    found = form.batch([read_row(each, schema_history, RecordReader(None)) for each in records]).to_pylist()
    assert found[0] == {
        "id": 1,
        "name": "a",
        "price": Decimal("12.50"),
        "at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        "_op": "c",
        "_version": pack_version(1, 5),
        "_commit_lsn": 500,
        "_key": '{"id":1}',
        "_unchanged": None,
        "_commit_ts": datetime(1970, 1, 1, 0, 0, 0, 5, UTC),
    }
    assert (found[1]["name"], found[1]["_unchanged"]) == (None, ["at"])
    assert (found[2]["_op"], found[2]["id"], found[2]["name"]) == ("d", 1, None)
    assert (found[3]["_op"], found[3]["_commit_lsn"], found[3]["_version"]) == ("d", None, pack_version(1, 8))
    assert found[3]["_commit_ts"] == datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)


def test_a_value_that_its_type_can_not_hold_is_named_and_can_be_read_as_text() -> None:
    table = schema(PRICE, AT)
    given = [
        record(7, "c", 1, 5, name="a", price="1.00", at=None),
        record(8, "c", 2, 6, name="a", price="NaN", at=None),
    ]
    rows = [read_row(each, SchemaHistory((table,)), RecordReader(None)) for each in given]
    with pytest.raises(UnheldValueError) as error:
        RowForm.of(table, options()).batch(rows)
    assert "partition 0, offset 8: column price" in error.value.message
    assert "NaN" not in error.value.message
    assert "textColumns=price" in error.value.hint
    text = RowForm.of(table, options(text=frozenset({"price"}))).batch(rows)
    assert text.column("price").to_pylist() == ["1.00", "NaN"]


def test_columns_that_are_not_there_or_not_the_querys_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no column nane"):
        RowForm.of(schema(), options(("id", "nane")))
    with pytest.raises(ConfigError, match="column _OP of table public"):
        RowForm.of(schema(column("_OP", 25, "text")), options())
    form = RowForm.of(schema(), options(("id",)))
    own = [("_op", "string"), ("_version", "bigint"), ("_commit_lsn", "bigint"), ("_commit_ts", "timestamp")]
    own += [("_key", "string"), ("_unchanged", "array<string>")]
    form.require([("id", "int"), *own])
    for other in ([("id", "bigint"), *own], [*own], [("id", "int"), ("name", "string"), *own]):
        with pytest.raises(SchemaChangedError, match="restart the query"):
            form.require(other)


def test_the_row_of_a_sweep() -> None:
    (row,) = RowForm.of(schema(PRICE), options()).sweep(77, 400).to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "_op": "t",
        "_version": 77,
        "_commit_lsn": 400,
    }
