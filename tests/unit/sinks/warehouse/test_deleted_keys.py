"""The highest version of deleted keys is remembered as long as nobody else adds any."""

from sinks.warehouse.deleted_keys import DeletedKeys
from tests.unit.sinks.warehouse.scripted import ScriptedEngine

TABLE = ("shop", "public__deleted", "a")


def test_it_is_asked_for_again_when_the_table_has_changed() -> None:
    engine, keys = ScriptedEngine(), DeletedKeys()
    assert keys.highest(engine, TABLE) == 0
    engine.deleted = 7  # also what the scripted engine calls its state
    assert keys.highest(engine, TABLE) == 7


def test_own_deletes_are_added_once() -> None:
    added: list[str] = []
    DeletedKeys().note(ScriptedEngine(), TABLE, [], lambda: added.append("a row"))
    assert added == ["a row"]
