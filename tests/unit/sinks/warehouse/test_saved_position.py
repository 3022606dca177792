"""The warehouse's note: properties of the namespace, and the snapshots that the tables had."""

import json
from collections.abc import Iterator

import pytest

from cdc.model.events import TableId
from sinks.errors import SinkError
from sinks.warehouse import properties
from sinks.warehouse.engine import Snapshot
from sinks.warehouse.naming import TableLocation, table_location
from sinks.warehouse.properties import Note, note_of, note_writes
from sinks.warehouse.saved_position import Commits, SavedPosition
from tests.unit.sinks.warehouse.scripted import ScriptedEngine

ORDERS = TableId("public", "orders")
LONG = json.dumps([number**9 for number in range(3_000)])


class Engine(ScriptedEngine):
    """With one table, whose snapshots a test names by their sequence numbers, newest first."""

    def __init__(self) -> None:
        super().__init__()
        self.namespace = {properties.NOTE: properties.NO_NOTE}
        self.tables[_place(ORDERS).rows] = {}
        self.numbers: list[int] = []
        self.ids = 100  # the snapshot number 7 has the id 107

    def run(self, statement: str, *_: object, **__: object) -> None:
        assert self.namespace is not None
        entries = statement.partition("SET PROPERTIES (")[2].removesuffix(")").replace("'", '"').replace(" = ", ": ")
        self.namespace |= json.loads(f"{{{entries}}}")

    def history(self, table: tuple[str, ...]) -> Iterator[Snapshot]:
        del table
        return (Snapshot(self.ids + number, None, {}, number) for number in self.numbers)

    def state(self, table: tuple[str, ...]) -> str | None:
        del table
        return str(self.numbers)


def _place(table: TableId) -> TableLocation:
    return table_location("shop", table)


@pytest.mark.parametrize("text", ["short", LONG])
def test_a_kill_between_two_changes_of_properties_leaves_the_former_note(text: str) -> None:
    held = {properties.NOTE: properties.NO_NOTE}
    former = None
    for number in range(4):
        note = Note(f"{number} {text}", {"public.orders": (number, 2**63 - number)})
        *first, last = note_writes(note, held)
        for changed in first:
            held |= changed
            assert note_of(held) == former
        held |= last
        assert note_of(held) == note
        assert all(len(value) <= 1_000 for value in held.values())
        former = note


@pytest.mark.parametrize(
    ("numbers", "is_kept"),
    [
        ([7, 6, 5], True),  # as it was
        ([9, 8, 7, 6], True),  # somebody's commits
        ([9, 8], True),  # the noted one has expired
        ([6, 5], False),  # rolled back
        ([8, 6, 5], False),  # rolled back, then written
        ([], False),
    ],
)
def test_a_table_that_was_rolled_back_has_no_note(numbers: list[int], is_kept: bool) -> None:
    engine = Engine()
    notes = SavedPosition(engine, "shop", _place)
    engine.numbers = [7, 6, 5]
    notes.written([ORDERS])
    notes.write("text", None)
    assert notes.read() == "text"
    engine.numbers = numbers
    assert SavedPosition(engine, "shop", _place).read() == ("text" if is_kept else None)
    assert notes.read() == ("text" if is_kept else None)
    notes.written([ORDERS])
    if is_kept:
        notes.write("next", "text")
        assert notes.read() == "next"
    else:
        with pytest.raises(SinkError, match="may have lost its last writes"):
            notes.write("next", "text")


def test_a_table_without_a_snapshot_is_noted() -> None:
    engine = Engine()
    notes = SavedPosition(engine, "shop", _place)
    notes.written([ORDERS])
    notes.write("text", None)
    engine.numbers = [2, 1]
    assert notes.read() == "text"


def test_a_dropped_table_leaves_the_note() -> None:
    engine = Engine()
    notes = SavedPosition(engine, "shop", _place)
    engine.numbers = [1]
    notes.written([ORDERS])
    notes.write("text", None)
    del engine.tables[_place(ORDERS).rows]
    engine.numbers = []
    assert notes.read() == "text"


def test_a_table_that_returned_to_older_metadata_uses_numbers_again() -> None:
    engine = Engine()
    notes = SavedPosition(engine, "shop", _place)
    engine.numbers = [7, 6]
    notes.written([ORDERS])
    notes.write("text", None)
    assert notes.read() == "text"
    engine.ids = 200
    engine.numbers = [7]
    assert notes.read() is None


def test_a_table_of_which_all_commits_are_known_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    notes = SavedPosition(engine, "shop", _place)
    engine.numbers = [7]
    notes.written([ORDERS])
    notes.write("text", None)
    engine.numbers = [8, 7]
    notes.written([ORDERS])
    notes.committed(ORDERS, Commits((7, 107), (8, 108), str(engine.numbers)))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "history", None)
        notes.write("next", "text")
        assert notes.read() == "next"
    engine.numbers = [7]
    assert notes.read() is None, "rolled back"


def test_commits_that_others_interrupt_are_looked_for() -> None:
    engine = Engine()
    notes = SavedPosition(engine, "shop", _place)
    engine.numbers = [7]
    notes.written([ORDERS])
    notes.write("text", None)
    engine.numbers = [9, 8]
    notes.committed(ORDERS, Commits((8, 108), (9, 109), None))
    notes.write("next", "text")
    assert engine.namespace is not None
    note = note_of(engine.namespace)
    assert note is not None and note.snapshots == {"public.orders": (9, 109)}


def test_commits_follow_each_other_or_are_not_known() -> None:
    first, second = Commits((7, 107), (8, 108), None), Commits((8, 108), (9, 109), "state")
    assert first.and_then(second) == Commits((7, 107), (9, 109), "state")
    assert second.and_then(first) is None and first.and_then(None) is None
