"""Records of rejected rows."""

from cdc.model.events import TableId
from cdc.model.rejected_rows import RejectedRow, dead_letter_generation, dead_letter_key, dead_letter_table

ROW = RejectedRow(
    table_schema="my.schema",
    table_name="a/b",
    key={"id": 1 << 70, "name": "ü"},
    version=5,
    reason="column x: too odd",
    topic="shop.a",
    partition=1,
    offset=7,
    rejected_us=3,
)


def test_a_record_reads_back() -> None:
    assert RejectedRow.decode(ROW.encode(), "here") == ROW
    assert ROW.table == TableId("my.schema", "a/b")


def test_a_key_names_generation_table_and_row() -> None:
    key = dead_letter_key(12, ROW.table, "x/y")
    assert (key, dead_letter_generation(key), dead_letter_table(key)) == ("12/my%2Eschema.a%2Fb/x/y", 12, ROW.table)
    assert dead_letter_generation("public.a/1") is None
