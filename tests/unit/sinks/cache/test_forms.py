"""Keys and values of one row, and the row from them."""

import json
from typing import Any

import pytest

from cdc.config.store_shapes import CacheShape
from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.cache.calls import ApplyCall
from sinks.cache.forms import RowKeys, TableForm, lookup_keys, shape_text
from sinks.cache.keys import CacheKeys, version_text
from sinks.cache.scripts import KEEP
from sinks.contract import Change
from sinks.reduction import key_text

TABLE = TableId("public", "t")
V = pack_version(1, 1)
SCHEMA = TableSchema(
    TABLE,
    1,
    16_400,
    (
        Column("region", 25, -1, "text", False),
        Column("id", 20, -1, "bigint", False),
        Column("name", 25, -1, "text", True),
        Column("rate", 701, -1, "double precision", True),
        Column("flags", 1000, -1, "boolean[]", True),
    ),
    ("region", "id"),
    "t",
)


def form(**shape: Any) -> TableForm:
    return TableForm(CacheKeys("shop"), SCHEMA, CacheShape(**shape))


@pytest.mark.parametrize(
    ("key", "expected"),
    [(None, 'shop:public.t:["e:u",7]'), ("t:{id}:{region}", "t:7:e:u"), ("t:{region}:{id}", "t:e%3Au:7")],
)
def test_a_key_is_made_from_the_text_of_the_primary_key(key: str | None, expected: str) -> None:
    row_id = key_text({"region": "e:u", "id": 7})
    made = form(key=key)
    assert made.row_key(row_id) == expected
    assert RowKeys.described(made.versions, json.dumps(SCHEMA.key), made.text).key(row_id) == expected


@pytest.mark.parametrize("value", ["document", "json", "columns"])
def test_a_row_comes_back_from_what_its_key_holds(value: str) -> None:
    row = {"region": "eu", "id": 2**63 - 1, "name": "[1]", "rate": "NaN", "flags": [True, None]}
    made = form(value=value)
    change = Change(TABLE, {"region": "eu", "id": 2**63 - 1}, V, row, 1)
    call = ApplyCall(made, 1000, "")
    assert call.add(0, change)
    *_, row_id, value_or_count, key = call.command()[:21]
    assert (row_id, key) == ('["eu",9223372036854775807]', "")
    parts = call.command()[21:]
    assert not parts or int(value_or_count) == len(parts)
    held = [part if isinstance(part, bytes) else str(part).encode() for part in parts or (value_or_count,)]
    answer = dict(zip(held[::2], held[1::2], strict=True)) if value == "columns" else held[0]
    assert made.row(answer) == row
    assert made.row(None) is None


def test_lookup_keys_are_empty_for_null_and_kept_for_what_is_not_known() -> None:
    made = form(lookups=["a:{name}", "b:{rate}", "c:{id}"])
    assert made.lookup_arguments({"region": "eu", "id": 1, "name": None}) == ["", KEEP, "c:1"]
    assert lookup_keys(version_text(V).encode() + b'["x","","\\/y"]') == ["x", "/y"]
    assert lookup_keys(version_text(V).encode()) == []


def test_what_may_change_while_keys_are_there_is_no_part_of_their_shape() -> None:
    def text(**shape: Any) -> str:
        return shape_text(CacheShape(**shape))

    assert text(ttl_s=5) == text(ttl_s=6) != text()
    assert len({text(), text(value="json"), text(key="a:{id}"), text(lookups=["b:{id}"])}) == 4
    plain = {"key": "a:{id}", "mode": "invalidate"}
    assert text(**plain) == text(**plain, publish="channel", stream="stream") != text(key="a:{id}")


@pytest.mark.parametrize(("oid", "is_short"), [(20, True), (2950, True), (25, False), (1700, False)])
def test_keys_are_sent_where_the_script_may_not_make_them(oid: int, is_short: bool) -> None:
    key = Column("id", oid, -1, "type", False)
    keyed = TableForm(CacheKeys("shop"), TableSchema(TABLE, 1, 16_400, (key,), ("id",), "t"), CacheShape())
    assert keyed.has_short_keys is is_short
    assert not form(key="t:{id}:{region}").has_short_keys
    assert (keyed.key_argument("x"), keyed.key_argument("x" * 600)[:20]) == ("", "shop:public.t:sha256")
