"""Which of the configured tables a session captures."""

from dataclasses import replace
from typing import Any

import pytest

from cdc.model.control import PartialTransaction, PositionRecord, SourceIdentity, TopicState
from cdc.model.errors import BrokerError, GapError, SourceError, UnsupportedChangeError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.table_state import TableRecord
from cdc.model.topics import Topics
from cdc.ports.source_table import SourceTable, TableDescription
from cdc.tables.selection import Doubts, TableSelection, assign, compare_tables, newly_stopped

ID, NAME = Column("id", 23, -1, "integer", False), Column("name", 25, -1, "text", True)
ITEMS = TableSchema(TableId("public", "items"), 1, 7, (ID, NAME), ("id",), "shop.public.items")
FOUND = SourceTable(ITEMS.table, 7, False, True, False, True, ITEMS.columns, ("id",))
LOOK = TableDescription(FOUND, None, "entry", "state", None)
POSITION = PositionRecord(
    phase="streaming",
    epoch=1,
    seq=0,
    resume_lsn=1_000,
    source=SourceIdentity(system_identifier="1", timeline=1, database="shop", slot="shop"),
    publication="p",
    protocol="proto_version=1",
    topics={ITEMS.topic: TopicState(topic_id="t", end_offsets=(), publication_entry="entry")},
)
GONE = SourceError("table public.items does not exist", "create it")


def selection(description: TableDescription = LOOK, *, is_kept: bool = True, **others: Any) -> TableSelection:
    tables = TableSelection((ITEMS,), ()) if is_kept else TableSelection((), (ITEMS.table,))
    return assign(
        tables,
        others.get("position", POSITION),
        {ITEMS.table: ITEMS},
        {ITEMS.table: description},
        {record.table: record for record in others.get("records", ())},
        replace(others.get("doubts", Doubts()), failures=others.get("failures", {})),
        others.get("unread", ()),
    )


def stopped(*, is_held: bool) -> TableRecord:
    return TableRecord.stopped(ITEMS.table, GONE, 17, is_held=is_held)


def test_a_table_that_is_as_it_was_is_kept() -> None:
    assert selection() == TableSelection((ITEMS,), (), {})
    wider = replace(FOUND, columns=(ID, NAME, replace(NAME, name="more")))
    assert selection(replace(LOOK, found=wider)).kept == (ITEMS,), "the stream or the catalog's look follows it"


@pytest.mark.parametrize(
    "description",
    [replace(LOOK, entry="another"), replace(LOOK, found=replace(FOUND, oid=8))],
    ids=["published otherwise", "recreated"],
)
def test_a_table_that_can_join_again_does_so_at_once(description: TableDescription) -> None:
    assert selection(description) == TableSelection((), (ITEMS.table,), {})
    half = POSITION.model_copy(update={"partial": PartialTransaction(commit_lsn=1_100, xid=7, next_index=2)})
    waiting = selection(description, position=half)
    assert (waiting.kept, waiting.joining) == ((), ()), "not in the middle of a transaction"
    assert not waiting.stopped[ITEMS.table].is_held


def test_a_table_whose_rows_are_not_read_needs_no_chunks() -> None:
    description = replace(LOOK, entry="another", found=replace(FOUND, is_chunkable=False))
    assert selection(description).joining == ()
    assert selection(description, unread=[ITEMS.table]).joining == (ITEMS.table,)
    assert selection(description, unread=[ITEMS.table], is_kept=False, records=[stopped(is_held=False)]).joining


def test_a_table_joins_again_when_its_key_has_an_enum_that_was_created_again() -> None:
    """It was told to get its key back, which it had."""
    mood = Column("id", 900, -1, "mood", False, "e", 900, labels=("calm",))
    before = replace(ITEMS, columns=(mood, NAME))
    again = replace(mood, type_oid=950, base_type_oid=950)
    description = replace(LOOK, found=replace(FOUND, columns=(again, NAME)))
    for tables in (TableSelection((before,), ()), TableSelection((), (before.table,))):
        found = assign(
            tables,
            POSITION,
            {before.table: before},
            {before.table: description},
            {before.table: stopped(is_held=False)} if tables.joining else {},
            Doubts(),
        )
        assert (found.kept, found.joining, found.stopped) == ((), (ITEMS.table,), {})


def test_a_table_that_was_created_again_is_not_told_to_take_that_back() -> None:
    description = replace(LOOK, found=replace(FOUND, oid=8, is_chunkable=False))
    why = selection(description).stopped[ITEMS.table].why
    assert why.message == "table public.items was dropped and created again"
    assert "undo the change" not in why.hint


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        (TableDescription(None, None, "", "state", GONE, GONE), "does not exist"),
        (replace(LOOK, found=replace(FOUND, key=("name",))), r"its key is \(name\), but its records have \(id\)"),
        (replace(LOOK, found=replace(FOUND, columns=(replace(ID, type_oid=25), NAME))), "its records have integer"),
    ],
)
def test_a_table_that_can_not_be_captured_stops_alone(description: TableDescription, expected: str) -> None:
    found = selection(description)
    assert (found.kept, found.joining) == ((), ())
    with pytest.raises(Exception, match=expected):
        raise found.stopped[ITEMS.table].why
    again = selection(description, is_kept=False, records=[stopped(is_held=False)])
    assert again.joining == ()
    assert not again.stopped[ITEMS.table].is_held


def test_what_failed_waits_for_an_operator() -> None:
    failure = UnsupportedChangeError("a value is not UTF-8", "correct it", table=ITEMS.table)
    found = selection(failures={ITEMS.table: failure})
    assert (found.joining, found.stopped[ITEMS.table].is_held) == ((), True)
    assert selection(is_kept=False, failures={ITEMS.table: failure}) == found, "also while it joins"
    assert selection(is_kept=False, records=[stopped(is_held=True)]).stopped[ITEMS.table].is_held
    assert selection(is_kept=False, records=[stopped(is_held=False)]).joining == (ITEMS.table,), (
        "an operator started it"
    )


def test_an_operator_stops_a_table() -> None:
    found = selection(records=[stopped(is_held=True)])
    assert (found.kept, found.joining, found.stopped[ITEMS.table].is_held) == ((), (), True)


def test_a_table_without_a_fitting_index_can_not_join_again() -> None:
    description = replace(LOOK, found=replace(FOUND, is_chunkable=False))
    found = selection(description, is_kept=False, records=[stopped(is_held=False)])
    assert "no unique index has exactly its key columns (id)" in found.stopped[ITEMS.table].why.message
    left = selection(description, is_kept=False)
    assert "no unique index" in left.stopped[ITEMS.table].why.message, "also one that was taken out of source.tables"
    assert selection(description, is_kept=False, unread=[ITEMS.table]).joining == (ITEMS.table,), (
        "its rows are not wanted"
    )


def test_a_table_with_another_key_than_its_records_can_not_join_again() -> None:
    """Also where state has no record of it: each row would be in the topic twice."""
    found = selection(replace(LOOK, found=replace(FOUND, key=("name",))), is_kept=False)
    assert "its key is (name), but its records have (id)" in found.stopped[ITEMS.table].why.message


def test_a_table_whose_topic_is_in_doubt_stops_alone_until_an_operator_starts_it() -> None:
    doubts = Doubts(topics={ITEMS.table: "topic shop.public.items is gone"})
    found = selection(doubts=doubts)
    assert (found.kept, found.joining) == ((), ())
    stop = found.stopped[ITEMS.table]
    assert (stop.why.message, stop.is_held) == ("topic shop.public.items is gone", True)
    assert stop.why.hint == "cdc table start public.items: all its rows are read again"
    assert selection(doubts=replace(doubts, are_held=False)).joining == (ITEMS.table,), "gaps are healed by themselves"


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_table_whose_topic_takes_no_rows_stops_alone(is_kept: bool) -> None:
    doubts = Doubts(unusable={ITEMS.table: BrokerError("its policy is delete", "set it")}, are_held=False)
    found = selection(doubts=doubts, is_kept=is_kept)
    assert (found.kept, found.joining, found.stopped[ITEMS.table].is_held) == ((), (), True)


def test_tables_of_a_publication_that_was_altered_are_added_again() -> None:
    doubts = Doubts(is_publication_altered=True)
    assert selection(doubts=doubts) == TableSelection((), (ITEMS.table,), {})
    found = selection(replace(LOOK, found=replace(FOUND, is_chunkable=False)), doubts=doubts)
    assert "the publication has other options" in found.stopped[ITEMS.table].why.message


def test_a_stopped_table_is_recorded_once() -> None:
    failure = UnsupportedChangeError("a value is not UTF-8", "correct it", table=ITEMS.table)
    found = selection(failures={ITEMS.table: failure})
    (record,) = newly_stopped(found, {}, 17)
    assert (record.table, record.status, record.message, record.next) == (
        *(ITEMS.table, "stopped"),
        *("a value is not UTF-8", "correct it"),
    )
    assert (record.is_held, record.changed_us) == (True, 17)
    assert newly_stopped(found, {ITEMS.table: record}, 18) == [], "it is recorded"
    other = record.model_copy(update={"message": "another reason"})
    assert len(newly_stopped(found, {ITEMS.table: other}, 18)) == 1


TOPICS = Topics("shop")
NEW = TableId("public", "new")


def test_tables_are_those_that_stay_and_those_that_join() -> None:
    captured = {ITEMS.table: ITEMS}
    assert compare_tables([ITEMS.table], captured, POSITION, TOPICS) == TableSelection((ITEMS,), ())
    assert compare_tables([NEW, ITEMS.table], captured, POSITION, TOPICS) == TableSelection((ITEMS,), (NEW,))
    assert compare_tables([NEW], captured, POSITION, TOPICS) == TableSelection((), (NEW,))


def test_a_table_that_left_and_is_configured_again_joins() -> None:
    captured = {ITEMS.table: ITEMS, NEW: replace(ITEMS, table=NEW, topic="shop.public.new")}
    assert compare_tables([NEW, ITEMS.table], captured, POSITION, TOPICS) == TableSelection((ITEMS,), (NEW,))


def test_a_table_whose_schema_was_lost_is_a_gap() -> None:
    with pytest.raises(GapError, match=r"topic shop\.control has no schema of table public\.items"):
        compare_tables([ITEMS.table], {}, POSITION, TOPICS)
