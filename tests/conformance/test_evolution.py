"""A table's columns change under the store while rows of older versions are still on their way: in the end each stored
row is the newest's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from cdc.model.events import pack_version
from sinks.contract import Change, Json, Outcome, Sink, StoredRow
from sinks.schema_history import SchemaHistory
from tests.conformance.model import Model, assert_rows
from tests.conformance.tables import Table, table
from tests.conformance.trial import Trial

V = pack_version(1, 100)
FLOOR = V + 50
WRITTEN, STALE = Outcome.WRITTEN, Outcome.STALE
NUMERIC_6_2, NUMERIC_8_2, NUMERIC_8_4 = ((precision << 16 | scale) + 4 for precision, scale in ((6, 2), (8, 2), (8, 4)))


def version(number: int, types: dict[str, str], **modifiers: int) -> Table:
    made = table("public", "living", ("id",), {"id": types["id"], **types}, **modifiers)
    return replace(made, schema=replace(made.schema, version=number))


FIRST = version(
    1,
    {
        "id": "int4",
        "kept": "text",
        "gone": "text",
        "old_name": "text",
        "small": "int2",
        "precise": "float4",
        "price": "numeric",
        "scaled": "numeric",
        "to_text": "int4",
        "to_number": "text",
        "photo": "bytea",
    },
    price=NUMERIC_6_2,
    scaled=NUMERIC_6_2,
)
SECOND = version(
    2,
    {
        "id": "int8",
        "added": "text",
        "new_name": "text",
        "kept": "varchar",
        "small": "int8",
        "precise": "float8",
        "price": "numeric",
        "scaled": "numeric",
        "to_text": "text",
        "to_number": "int4",
        "photo": "bytea",
    },
    price=NUMERIC_8_2,
    scaled=NUMERIC_8_4,
)
ROW: dict[str, Json] = {
    "kept": "k",
    "gone": "g",
    "old_name": "n",
    "small": 7,
    "precise": 0.5,
    "price": "12.50",
    "scaled": "3.25",
    "to_text": 42,
    "to_number": "many",
    "photo": "AAEC",
}
NEW_ROW: dict[str, Json] = {
    "added": "a",
    "new_name": "n",
    "kept": "k",
    "small": 2**40,
    "precise": 0.1,
    "price": "123456.50",
    "scaled": "3.2501",
    "to_text": "forty-two",
    "to_number": 5,
    "photo": "AAEC",
}


def arrived(change: Change, *versions: Table) -> Change:
    """As the job hands it over when these versions are known."""
    schema_history = SchemaHistory.of(known.schema for known in versions)
    if change.row is None or change.schema_version is None:
        return change
    row, unchanged = schema_history.in_newest(change.schema_version, change.row, change.unchanged)
    return structs.replace(change, row=row, unchanged=unchanged)


def prepare(sink: Sink, *versions: Table) -> None:
    schema_history = SchemaHistory.of(known.schema for known in versions)
    sink.prepare(schema_history.newest, schema_history.earlier)


class Living:
    """One table of the trial, in the versions that it has had."""

    def __init__(self, trial: Trial, *versions: Table) -> None:
        self.trial = trial
        self.versions = versions
        self.model = Model()
        prepare(trial.sink, *versions)

    def become(self, newest: Table) -> None:
        self.versions += (newest,)
        prepare(self.trial.sink, *self.versions)
        prepare(self.trial.sink, *self.versions)  # again is nothing

    def apply(self, *changes: Change) -> list[Outcome]:
        there = [arrived(change, *self.versions) for change in changes]
        results = [result.outcome for result in self.trial.sink.apply(there)]
        expected = [self.model.apply(change) for change in there]
        if self.trial.store.tells_stale:
            assert results == expected
        return expected

    def stored(self) -> dict[Any, StoredRow]:
        self.trial.sink.make_readable({self.versions[-1].id})
        return {row.key["id"]: row for row in self.trial.sink.rows(self.versions[-1].id)}

    def check(self) -> None:
        """Exactly the newest version's rows."""
        newest = self.versions[-1]
        stored: Sequence[StoredRow] = list(self.stored().values())
        assert_rows(newest, stored, self.model, self.trial.store.exact_json)


@pytest.mark.promise(2)
def test_columns_come_go_and_change_their_types_under_the_rows(sink_under_test: Trial) -> None:
    living = Living(sink_under_test, FIRST)
    living.apply(*(FIRST.upsert(V + number, id=number, **ROW) for number in range(4)), FIRST.delete(V + 4, id=4))
    living.become(SECOND)
    assert sink_under_test.sink.generation() == 1
    held = living.stored()[0].row
    assert (held["kept"], held["small"], held["precise"]) == ("k", 7, 0.5), "what stayed the same is there all the time"
    assert held.get("added") is None
    if not sink_under_test.store.exact_json:  # typed columns; a document may stay what it was until it is written anew
        assert held["to_text"] is held["to_number"] is None
        assert held["scaled"] in (None, "3.25", "3.2500"), "absent, or the number that it was"
    # Rows of the first version that were still on their way, stale ones too, and one that lacks columns.
    late = FIRST.update(V + 10, ("gone", "photo"), id=1, **{**ROW, "kept": "late", "gone": None, "photo": None})
    outcomes = living.apply(
        FIRST.upsert(V + 1, id=4, **ROW),
        late,
        FIRST.upsert(V + 11, id=5, **ROW),
        SECOND.upsert(V + 12, id=2**40, **NEW_ROW),
        SECOND.delete(V + 13, id=3),
    )
    assert outcomes == [STALE, WRITTEN, WRITTEN, WRITTEN, WRITTEN]
    row = living.stored()[1].row
    assert (row["kept"], row["small"], row["to_text"], row["added"]) == ("late", 7, None, None)
    assert row["photo"] in ("AAEC", b"\x00\x01\x02")
    # Every row anew, and a sweep of what the source has no more.
    again = (0, 1, 5, 2**40)
    living.apply(*(SECOND.upsert(FLOOR + number, id=key, **NEW_ROW) for number, key in enumerate(again, 1)))
    assert sink_under_test.sink.sweep(SECOND.id, FLOOR) == living.model.sweep(SECOND.id, FLOOR) == 1
    living.check()


def test_a_column_that_was_dropped_and_added_again_is_another(sink_under_test: Trial) -> None:
    """The version between was never seen by the sink; nor is a row of the first taken for one of the third. A column
    that was only added is absent, or null, in rows that nothing publishes anew."""
    first = version(1, {"id": "int8", "note": "text", "other": "text"})
    second = version(2, {"id": "int8", "other": "text"})
    third = version(3, {"id": "int8", "other": "text", "note": "text", "late": "int4"})
    living = Living(sink_under_test, first)
    living.apply(*(first.upsert(V + number, id=number, note="old", other="o") for number in range(3)))
    living.versions += (second,)
    living.become(third)
    living.apply(first.upsert(V + 5, id=1, note="older still", other="p"), third.upsert(V + 6, id=2, late=5))
    rows = {key: row.row for key, row in living.stored().items()}
    assert rows[0] == {"id": 0, "other": "o", "note": rows[0]["note"]} | {
        name: None for name in ("late",) if name in rows[0]
    }
    assert rows[1] == {"id": 1, "other": "p", "note": None, "late": None}
    assert rows[2] == {"id": 2, "other": None, "note": None, "late": 5}
    assert sink_under_test.store.exact_json or rows[0]["note"] is None
