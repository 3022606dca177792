"""Large rows without what records don't have, and those that no record holds."""

from dataclasses import replace

import pytest

from cdc.model.errors import ProtocolError
from cdc.model.events import Column
from cdc.pgoutput.light_rows import LightRow, LightRows
from cdc.pgoutput.messages import NULL, UNCHANGED, TupleValue
from cdc.pgoutput.values import ColumnEncoding, quote
from tests.support import wire

OID = 16385
NAMES = ["id", "body", "secret", "hidden"]
COLUMNS = [Column(name, 25, -1, "text", name != "id") for name in NAMES]
FORMS = [ColumnEncoding(quote), ColumnEncoding(quote), ColumnEncoding(quote, is_bounded=True), ColumnEncoding(None)]
LARGE = b"x" * 100
MAX = 99


@pytest.fixture
def rows() -> LightRows:
    schema, relation = wire.schema_and_relation(COLUMNS, ["id"], oid=OID)
    return LightRows(schema, relation, FORMS)


def light(rows: LightRows, message: bytes) -> LightRow:
    return rows.message(memoryview(message), "0/1#0", MAX)


def test_what_records_do_not_have_is_left_out(rows: LightRows) -> None:
    row: list[TupleValue] = [b"1", b"b", LARGE, LARGE]
    assert light(rows, wire.insert(OID, row)) == LightRow(wire.insert(OID, [*row[:3], NULL]))
    assert rows.line(b"1\tb\t" + LARGE + b"\t" + LARGE, MAX) == LightRow(b"1\tb\t" + LARGE + b"\t\\N")


def test_of_a_row_that_no_record_holds_the_key_is_left_and_the_largest_column_named(rows: LightRows) -> None:
    alone: list[TupleValue] = [b"1", NULL, NULL, NULL]
    row: list[TupleValue] = [b"1", LARGE, b"s", b"h"]
    assert light(rows, wire.insert(OID, row)) == LightRow(wire.insert(OID, alone), "body", 100)
    assert light(rows, wire.update(OID, [b"2", b"b", NULL, NULL], row, b"O")) == LightRow(
        wire.update(OID, [b"2", NULL, NULL, NULL], alone, b"O"), "body", 100
    )


def test_a_line_that_no_record_holds(rows: LightRows) -> None:
    assert rows.line(b"1\t" + LARGE + b"\ts\th", MAX) == LightRow(b"1\t\\N\t\\N\t\\N", "body", 100)


def test_a_row_counts_as_a_whole_and_each_of_two_for_itself(rows: LightRows) -> None:
    half: list[TupleValue] = [b"i" * 49, b"x" * 50, NULL, NULL]
    more: list[TupleValue] = [b"i" * 49, b"x" * 51, NULL, NULL]
    assert light(rows, wire.update(OID, half, half, b"O")).column is None
    assert light(rows, wire.update(OID, half, more, b"O")).column == "body"
    assert rows.line(b"i" * 49 + b"\t" + b"x" * 51 + b"\t\\N\t\\N", MAX + 10).column is None
    assert rows.line(b"i" * 49 + b"\t" + b"x" * 51 + b"\t\\N\t\\N", MAX).column == "body"


def test_columns_that_are_not_captured_do_not_count() -> None:
    schema, relation = wire.schema_and_relation(COLUMNS, ["id"], oid=OID)
    there = [replace(column, is_captured=column.name != "body") for column in relation.columns]
    columns = tuple(column for column in schema.columns if column.name != "body")
    made = LightRows(replace(schema, columns=columns), replace(relation, columns=tuple(there)), [FORMS[0], *FORMS[2:]])
    row: list[TupleValue] = [b"1", LARGE, UNCHANGED, UNCHANGED]
    assert light(made, wire.insert(OID, row)) == LightRow(wire.insert(OID, [b"1", NULL, UNCHANGED, UNCHANGED]))


@pytest.mark.parametrize("values", [[LARGE], [LARGE] * 5, []])
def test_a_row_of_another_width_is_left_to_the_codec(rows: LightRows, values: list[TupleValue]) -> None:
    for message in (wire.insert(OID, values), wire.update(OID, [LARGE] * 4, values, b"O"), wire.delete(OID, values)):
        assert light(rows, message) == LightRow(message)
    assert rows.line(b"1\t2", MAX) == LightRow(b"1\t2")


ROW: list[TupleValue] = [b"1", NULL, b"\0\1", b""]
MESSAGES = {
    "insert": wire.insert(OID, ROW),
    "update": wire.update(OID, [b"1", UNCHANGED, NULL, UNCHANGED]),
    "update with old row": wire.update(OID, ROW, ROW, b"O"),
    "update with old key": wire.update(OID, ROW, [b"2", NULL, NULL, NULL], b"K"),
    "delete": wire.delete(OID, ROW),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_the_rest_of_a_row_stays_byte_for_byte_and_what_is_cut_is_refused(message: bytes) -> None:
    schema, relation = wire.schema_and_relation(COLUMNS, ["id"], oid=OID)
    rows = LightRows(schema, relation, [ColumnEncoding(quote)] * 4)
    assert light(rows, message) == LightRow(message)
    for size in range(len(message)):
        with pytest.raises(ProtocolError, match="at 0/1#0"):
            light(rows, message[:size])
    with pytest.raises(ProtocolError, match="1 bytes too many"):
        light(rows, message + b"\0")
