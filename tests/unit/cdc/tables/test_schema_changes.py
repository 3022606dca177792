"""What a change of a table's definition means for its rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdc.model.events import Column, TableId, TableSchema
from cdc.model.table_state import ColumnFacts, StorageFacts, TableFacts
from cdc.pgoutput.messages import Relation, RelationColumn
from cdc.pgoutput.relations import relation_of
from cdc.tables.schema_changes import (
    followed,
    key_types_replaced,
    rows_changed,
    why_not_followed,
    why_other_keys,
)

ID = Column("id", 23, -1, "integer", False)
NAME = Column("name", 25, -1, "text", True)
MOOD = Column("mood", 900, -1, "mood", True, "e", 900, labels=("calm", "glad"))
SCHEMA = TableSchema(TableId("public", "items"), 3, 7, (ID, NAME), ("id",), "shop.public.items")


def altered(*columns: Column, **changes: Any) -> Relation:
    return replace(relation_of(replace(SCHEMA, columns=columns or SCHEMA.columns)), **changes)


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        (altered(), None),
        (altered(ID, NAME, MOOD), None),
        (altered(NAME, ID), None),
        (altered(ID), None),
        (altered(replace(ID, type_oid=20), NAME), None),
        (altered(oid=8), "recreated"),
        (altered(name="things"), "it is called public.things now"),
        (altered(NAME), "key column id was dropped or renamed"),
        (altered(replace(ID, name="number"), NAME), "key column id was dropped or renamed"),
        (altered(replace(ID, type_oid=25), NAME), "the type of key column id was changed from integer"),
    ],
)
def test_what_can_be_followed(relation: Relation, expected: str | None) -> None:
    why = why_not_followed(SCHEMA, relation)
    assert why is None if expected is None else why is not None and expected in why


def test_a_key_that_left_the_replica_identity_is_not_followed() -> None:
    columns = tuple(replace(column, is_key=False) for column in altered().columns)
    assert why_not_followed(SCHEMA, altered(columns=columns)) == "key column id is not in the replica identity"


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ((23, -1), (20, -1), True),
        ((20, -1), (21, -1), True),
        ((1043, 14), (1043, 24), True),
        ((1043, 14), (25, -1), True),
        ((1042, 14), (25, -1), False),  # blanks at the end
        ((1700, (10 << 16 | 2) + 4), (1700, (12 << 16 | 2) + 4), True),
        ((1700, (10 << 16 | 2) + 4), (1700, (12 << 16 | 3) + 4), False),
        ((1700, (10 << 16 | 2) + 4), (1700, -1), False),
        ((23, -1), (25, -1), False),
        ((1114, 0), (1114, 3), False),
    ],
)
def test_keys_stay_the_same_where_their_texts_do(
    before: tuple[int, int], after: tuple[int, int], is_same: bool
) -> None:
    was, now = (replace(ID, type_oid=oid, type_modifier=modifier) for oid, modifier in (before, after))
    schema = replace(SCHEMA, columns=(was, NAME))
    assert (why_other_keys(schema, ("id",), (now, NAME)) is None) is is_same
    assert (why_not_followed(schema, altered(now, NAME)) is None) is is_same


MONEY = Column("id", 901, -1, "money2", False, "b", 1700, base_type_modifier=(10 << 16 | 2) + 4)
MOODS = Column("id", 902, -1, "mood[]", False, "b", 902, element_oid=900, labels=("calm",))


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        (replace(MOOD, name="id"), replace(MOOD, name="id", type_oid=950, base_type_oid=950), True),
        (replace(MOOD, name="id"), replace(MOOD, name="id", type_oid=950, base_type_oid=950, labels=("new",)), True),
        (MOODS, replace(MOODS, type_oid=952, base_type_oid=952, element_oid=950), True),
        (MONEY, replace(MONEY, type_oid=951), True),
        (MONEY, replace(MONEY, type_oid=951, base_type_modifier=(10 << 16 | 3) + 4), False),
        (MONEY, replace(MONEY, type_oid=951, base_type_oid=25), False),
        (replace(MOOD, name="id"), replace(NAME, name="id", base_type_oid=25), False),
        (MOODS, replace(MOOD, name="id"), False),
    ],
)
def test_a_key_type_that_was_created_again_has_the_same_keys_where_its_texts_are(
    before: Column, after: Column, is_same: bool
) -> None:
    """The stream can't be followed, since nobody knows what rows were meanwhile; but the table may join again."""
    schema = replace(SCHEMA, columns=(before, NAME))
    assert (why_other_keys(schema, ("id",), (after, NAME)) is None) is is_same
    assert "was replaced" in (key_types_replaced(schema, (after, NAME)) or "")
    assert why_not_followed(schema, altered(after, NAME)) is not None
    assert key_types_replaced(schema, (before, NAME)) is None


def test_another_key_has_other_keys() -> None:
    assert why_other_keys(SCHEMA, ("name",), (ID, NAME)) == "its key is (name), but its records have (id)"


def test_the_next_version_asks_for_what_is_new_only() -> None:
    asked: list[str] = []

    def describe(oid: int, columns: Sequence[RelationColumn]) -> list[Column]:
        asked.extend(column.name for column in columns)
        assert oid == 7
        return [MOOD]

    made = followed(SCHEMA, altered(MOOD, ID), describe)
    assert (made.version, made.columns, made.key, asked) == (4, (MOOD, ID), ("id",), ["mood"])
    assert followed(SCHEMA, altered(NAME, ID), describe).columns == (NAME, ID)
    assert asked == ["mood"]


# ---- rows that changed without events


def column(
    number: int, name: str, changed_in: str = "700", *, has_missing: bool = False, form: str = ""
) -> ColumnFacts:
    return ColumnFacts(number=number, name=name, changed_in=changed_in, has_missing=has_missing, form=form)


def stored(*files: tuple[int, int]) -> tuple[StorageFacts, ...]:
    return tuple(StorageFacts(oid=oid, file=file) for oid, file in files)


THEN = TableFacts(
    oid=7, columns=(column(1, "id"), column(2, "name")), storage=stored((7, 70)), generated="", others="a"
)
PARTED = THEN.model_copy(update={"storage": stored((8, 80), (9, 90))})


def now(then: TableFacts = THEN, **changes: Any) -> TableFacts:
    return then.model_copy(update=changes)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (now(), None),
        (now(others="b"), None),
        (now(columns=(*THEN.columns, column(3, "more", "701"))), None),
        (now(columns=(*THEN.columns, column(3, "more", "701", has_missing=True))), "column more was added with a def"),
        (now(columns=(*THEN.columns, column(3, "more", "701")), storage=stored((7, 71))), "values were computed again"),
        (now(columns=(column(1, "id"), column(2, "title", "701"))), "column name was renamed to title"),
        (now(columns=(column(1, "id"),)), "column name was dropped"),
        (now(columns=(column(1, "id"), column(3, "name", "701"))), "column name was dropped"),
        (now(columns=(column(1, "id"), column(2, "name", "701"))), None),
        (now(columns=(column(1, "id"), column(2, "name", "701")), storage=stored((7, 71))), "computed again"),
        (now(generated="3 99", storage=stored((7, 71))), "computed again"),
        (now(storage=stored((7, 71))), None),  # VACUUM FULL; or TRUNCATE, of which the stream tells
        (now(PARTED, storage=stored((8, 80))), "a partition was detached or dropped"),
        (now(PARTED, storage=stored((8, 80), (9, 91))), "a partition was truncated or rewritten"),
        (now(PARTED, storage=stored((8, 80), (9, 90), (10, 1))), None),
    ],
)
def test_what_changed_rows_without_events(facts: TableFacts, expected: str | None) -> None:
    why = rows_changed(PARTED if facts.storage[0].oid == 8 else THEN, facts, frozenset())
    assert why is None if expected is None else why is not None and expected in why


FORMED = THEN.model_copy(
    update={
        "columns": (column(1, "id", form="23"), column(2, "name", form="25")),
        "attributes": 3,
        "labels": ("900 700", "901 700"),
    }
)


@pytest.mark.parametrize(
    ("then", "facts", "expected"),
    [
        (
            FORMED,
            now(FORMED, columns=(column(1, "id", form="23"), column(2, "name", form="26"))),
            "its values have another text",
        ),
        (THEN, FORMED, None),  # recorded before such was known
        (FORMED, now(FORMED, attributes=4), "added, and dropped again"),
        (FORMED, now(FORMED, attributes=4, columns=(*FORMED.columns, column(4, "more", "701"))), None),
        (FORMED, now(FORMED, labels=("900 700", "901 701")), "a value of an enum was renamed"),
        (FORMED, now(FORMED, labels=("900 700", "901 700", "902 701")), None),
    ],
)
def test_values_that_read_otherwise_without_events(then: TableFacts, facts: TableFacts, expected: str | None) -> None:
    why = rows_changed(then, facts, frozenset())
    assert why is None if expected is None else why is not None and expected in why


def test_a_table_that_the_publication_does_not_name_may_have_been_unlogged() -> None:
    def facts(file: int, toast: int, row_type: str = "500") -> TableFacts:
        return now(storage=(StorageFacts(oid=7, file=file, toast=toast),)).model_copy(update={"row_type": row_type})

    def why(then: TableFacts, found: TableFacts) -> str:
        assert rows_changed(then, found, frozenset()) is None, "it was published all the time"
        return rows_changed(then, found, frozenset(), is_named=False) or ""

    assert why(facts(70, 90), facts(71, 91)) == "the table was rewritten: it may have been unlogged meanwhile"
    assert why(facts(70, 0), facts(71, 0)) == "the table was rewritten: it may have been unlogged meanwhile"
    assert why(facts(70, 90), facts(71, 90)) == "", "TRUNCATE, of which the stream tells"
    assert "renamed or moved meanwhile" in why(facts(70, 90), facts(70, 90, "501"))
    assert why(facts(70, 90, ""), facts(70, 90)) == "", "recorded before such was known"


def test_a_partition_that_was_away_may_come_back_with_other_rows() -> None:
    facts = now(PARTED, storage=tuple(part.model_copy(update={"attached": "700"}) for part in PARTED.storage))
    again = now(facts, storage=(facts.storage[0], facts.storage[1].model_copy(update={"attached": "701"})))
    assert rows_changed(PARTED, facts, frozenset()) is None
    assert rows_changed(facts, again, frozenset()) == "a partition with rows was attached"


def test_a_partition_that_came_with_rows_changed_the_table() -> None:
    facts = now(PARTED, storage=stored((8, 80), (9, 90), (10, 1)))
    assert rows_changed(PARTED, facts, frozenset({10})) == "a partition with rows was attached"
