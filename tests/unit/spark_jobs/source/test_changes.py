"""Rows of a range of changes: deletes once, positions, and what compaction may have removed."""

from collections.abc import Sequence
from typing import Any

import pytest

from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.source.errors import CompactedError, SchemaChangedError
from spark_jobs.source.records import ChangeRows
from tests.unit.spark_jobs.source.records import column, part, record, schema


def changes(*pieces: Sequence[Any], **fields: Any) -> list[tuple[str, int]]:
    found = ChangeRows(part(**fields))
    rows = [row for piece in pieces for row in found.of(piece)]
    found.finish()
    return [(row.operation, row.offset) for row in rows]


def test_a_delete_and_its_tombstone_are_one_change_wherever_a_piece_or_a_batch_ends() -> None:
    delete, tombstone = record(10, "d", 1, 5), record(11, "t", 1, 5)
    assert changes([delete, tombstone]) == [("d", 10)]
    assert changes([delete], [tombstone]) == [("d", 10)]
    assert changes([delete, tombstone], start=11) == []  # the batch before had it
    assert changes([tombstone], start=11) == [("d", 11)]  # its delete was compacted
    assert changes([delete, record(11, "t", 1, 6)]) == [("d", 10), ("d", 11)]


def test_a_row_that_moved_and_is_not_known_yet_is_left_to_its_whole_record() -> None:
    moved = record(1, "c", 2, 5, unchanged=("name",))
    assert changes([record(0, "c", 1, 4, name="x"), moved]) == [("c", 0)]


def test_changes_between_two_positions() -> None:
    given = [record(seq, "c", seq, seq, name="x") for seq in range(1, 6)]
    window = {"after": (1, 200), "until": (1, 400)}
    assert changes(given, **window) == [("c", 3), ("c", 4)]
    assert changes([*given, record(6, "t", 9, 9)], after=(1, 500)) == []  # its position is that of the record before
    assert changes(given, after=(2, 0)) == []
    assert changes(given, after=(0, 999_999)) == [("c", number) for number in range(1, 6)]


@pytest.mark.parametrize(
    ("times", "is_refused"),
    [
        ((5_000, 5_000, 5_000), False),  # nothing is old
        ((10, 5_000, 5_000), True),  # what lay between may be gone
        ((10, 10, 5_000), True),
        ((10, 10, 10), True),
    ],
)
def test_changes_that_compaction_may_have_removed_are_refused(times: tuple[int, int, int], is_refused: bool) -> None:
    given = [
        record(offset, "c", offset, seq, at_ms=at_ms, name="x")
        for (offset, seq), at_ms in zip(((1, 1), (5, 4), (6, 5)), times, strict=True)
    ]
    window = {"after": (1, 200), "intact_ms": 1_000}
    if is_refused:
        with pytest.raises(CompactedError, match="after 0/C8 may have been removed"):
            changes(given, **window)
    else:
        assert changes(given, **window) == [("c", 5), ("c", 6)]
    assert changes(given, after=(1, 200)) == [("c", 5), ("c", 6)]  # compacted=allow
    proof = record(4, "u", 1, 2, name="y")  # young, and from before the position
    if times[1] == 5_000:
        assert changes([given[0], proof, *given[1:]], **window) == [("c", 5), ("c", 6)]
    assert changes(given[:1], **window) == []


def test_another_schema_stops_the_query() -> None:
    newer = record(3, "c", 1, 5, name="x", size=1, version=2)
    with pytest.raises(SchemaChangedError, match="restart the query from its checkpoint"):
        changes([newer])
    schema_history = SchemaHistory((schema(), schema(column("size", 23, "integer"), version=2)))
    found = ChangeRows(part(schema_history=schema_history)).of([record(2, "c", 1, 4, name="x"), newer])
    assert [row.change.row for row in found] == [
        {"id": 1, "name": "x", "size": None},
        {"id": 1, "name": "x", "size": 1},
    ]
    with pytest.raises(SinkError, match="partition 0, offset 7"):
        changes([record(7, "q", 1, 5, name="x")])
