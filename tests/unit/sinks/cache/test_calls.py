"""Calls of the script: what they hold, and how much."""

from typing import Any

from cdc.config.store_shapes import CacheShape
from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.cache.calls import SCRIPT_BYTES_MAX, SCRIPT_KEYS_MAX, ApplyCall
from sinks.cache.forms import TableForm
from sinks.cache.keys import CacheKeys, version_text
from sinks.contract import Change

TABLE = TableId("public", "t")
V = pack_version(1, 1)
COLUMNS = tuple(Column(name, oid, -1, "type", name != "id") for name, oid in (("id", 20), ("name", 25)))
SCHEMA = TableSchema(TABLE, 1, 16_400, COLUMNS, ("id",), "t")


def form(**shape: Any) -> TableForm:
    return TableForm(CacheKeys("shop"), SCHEMA, CacheShape(**shape))


def upsert(number: int, name: str = "x") -> Change:
    return Change(TABLE, {"id": number}, V + number, {"id": number, "name": name}, 1)


def rows(call: ApplyCall) -> list[Any]:
    """What a call holds behind its options: whether keys are sent, the number of lookup keys, versions, and rows."""
    return list(call.command()[15:])


def test_a_call_takes_rows_of_bounded_number_and_size_and_always_the_first() -> None:
    call = ApplyCall(form(), 1000, "")
    taken = [call.add(number, upsert(number)) for number in range(SCRIPT_KEYS_MAX + 1)]
    assert taken == [True] * SCRIPT_KEYS_MAX + [False]
    assert call.numbers == list(range(SCRIPT_KEYS_MAX))
    call = ApplyCall(form(), 1000, "")
    assert call.add(0, upsert(1, "x" * SCRIPT_BYTES_MAX)) and not call.add(1, upsert(2))


def test_what_belongs_to_rows_stands_in_columns() -> None:
    call = ApplyCall(form(lookups=["n:{name}"]), 1000, "")
    assert call.add(7, upsert(1)) and call.add(9, Change(TABLE, {"id": 2}, V, None, 1))
    call.add_deletion("3", V)
    assert call.numbers == [7, 9, 0]
    versions = version_text(V + 1) + 2 * version_text(V)
    assert rows(call) == ["", 1, versions, "1", "2", "3", b'{"id":1,"name":"x"}', "", "", "n:x", "", ""]


def test_a_row_that_does_not_fit_leaves_nothing_in_the_call() -> None:
    call = ApplyCall(form(value="columns", key="t:{id}"), 1000, "")
    assert call.add(0, upsert(1))
    before = rows(call)
    assert not call.add(1, upsert(2, "x" * SCRIPT_BYTES_MAX))
    assert rows(call) == before == ["keys", 0, version_text(V + 1), "1", "4", "t:1", "id", "1", "name", "x"]


def test_a_row_whose_keys_are_only_deleted_is_present_without_its_document() -> None:
    call = ApplyCall(form(mode="invalidate", key="t:{id}"), 1000, "")
    assert call.add(0, upsert(1))
    assert rows(call)[3:] == ["1", "1", "t:1"]
