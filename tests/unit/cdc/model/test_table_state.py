"""Records of tables in the state topic."""

from cdc.model.errors import SourceError
from cdc.model.events import TableId
from cdc.model.table_state import ColumnFacts, StorageFacts, TableFacts, TableRecord

TABLE = TableId("public", "a.b")
FACTS = TableFacts(
    oid=7,
    columns=(ColumnFacts(number=1, name="id", changed_in="700", has_missing=False),),
    storage=(StorageFacts(oid=7, file=9),),
    generated="",
    others="abc",
)


def test_a_captured_table_is_told_with_its_facts() -> None:
    record = TableRecord.captured(TABLE, FACTS, 17).to("shop.state")
    assert (record.topic, record.key) == ("shop.state", b"table/public.a%2Eb")
    read = TableRecord.decode(record.value or b"", "state")
    assert (read.table, read.status, read.facts, read.changed_us) == (TABLE, "captured", FACTS, 17)


def test_a_stopped_table_is_told_with_the_way_out() -> None:
    record = TableRecord.stopped(TABLE, SourceError("it is gone", "create it"), 17, is_held=True)
    assert (record.status, record.message, record.next, record.is_held) == ("stopped", "it is gone", "create it", True)
    assert record.facts is None
