"""What a store is to hold of a row: mapping, masks and conditions, and keys from either side."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from cdc.config.masking import Mask
from cdc.config.store_mapping import StoredTables as Section
from cdc.model.events import Column, TableId, TableSchema
from sinks.schema_history import SchemaHistory
from watershed.verify.expected import ExpectedRows, plain_key

TYPES = {"id": "int8", "name": "text", "price": "numeric", "seen": "timestamptz", "on": "bool"}
OIDS = {"id": 20, "name": 25, "price": 1700, "seen": 1184, "on": 16}
TABLE = TableSchema(
    TableId("public", "goods"),
    1,
    1,
    tuple(Column(name, oid, -1, name, nullable=name != "id", base_type_oid=oid) for name, oid in OIDS.items()),
    ("id",),
    "shop.public.goods",
)
ROW = ("1", "tea", "2.50", "2026-01-02 03:04:05+00", "t")
STORED = {"id": 1, "name": "tea", "price": "2.50", "seen": "2026-01-02T03:04:05Z", "on": True}


def rows(mapping: dict[str, Any] | None = None, masks: dict[str, Mask] | None = None, **other: Any) -> ExpectedRows:
    section = Section.model_validate({"mapping": {"public.goods": mapping or {}}})
    return ExpectedRows("cache", section, SchemaHistory.of([other.get("table", TABLE)]), TYPES, masks or {})


def test_without_a_mapping_every_column_is_compared_by_its_type() -> None:
    assert rows().differences(ROW, STORED) == ()
    typed = STORED | {"price": Decimal("2.50"), "seen": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}
    assert rows().differences(ROW, typed) == ()
    found = rows().differences(ROW, {**STORED, "name": "tee", "price": None, "more": 1} | {"on": False})
    assert [(c.column, c.source, c.store) for c in found] == [
        ("name", "'tea'", "'tee'"),
        ("price", "'2.50'", "null"),
        ("on", "True", "False"),
        ("more", "absent", "1"),
    ]
    lacking = {name: value for name, value in STORED.items() if name != "name"}
    assert [(c.column, c.store) for c in rows().differences(ROW, lacking)] == [("name", "absent")]


def test_a_mapping_renames_leaves_out_adds_and_masks() -> None:
    made = rows(
        {
            "rename": {"id": "number", "name": "title"},
            "exclude": ["on"],
            "constants": {"shop": "main", "flag": True},
            "mask": {"truncate": {"name": 1}},
        }
    )
    stored = {"number": 1, "title": "t", "price": "2.50", "seen": STORED["seen"], "shop": "main", "flag": True}
    assert made.differences(ROW, stored) == ()
    wrong = made.differences(ROW, stored | {"title": "tea", "flag": 1, "on": True})
    assert [(c.column, c.store) for c in wrong] == [("title", "'tea'"), ("flag", "1"), ("on", "True")]
    assert made.store_key(b'{"id":1}') == {"number": 1}
    assert made.record_key({"number": 1}) == b'{"id":1}'


def test_a_column_that_is_kept_as_text_is_compared_by_its_type() -> None:
    made = rows({"as_text": ["on", "price", "name"]})
    assert made.differences(ROW, STORED | {"on": "true"}) == ()
    assert made.differences((*ROW[:2], "NaN", *ROW[3:]), STORED | {"on": "true", "price": "NaN"}) == ()
    assert [c.column for c in made.differences(ROW, STORED | {"on": "false", "price": "2.5"})] == ["price", "on"]


def test_a_column_that_is_null_with_a_flag_is_compared_by_both() -> None:
    made = rows({"as_null": ["price", "seen"]})
    flags = {"price_not_held": False, "seen_not_held": False}
    assert made.differences(ROW, STORED | flags) == ()
    endless = (*ROW[:2], "NaN", *ROW[3:])
    assert made.differences(endless, STORED | flags | {"price": None, "price_not_held": True}) == ()
    found = made.differences(endless, STORED | flags)
    assert [(c.column, c.source, c.store) for c in found] == [
        ("price_not_held", "True", "False"),
        ("price", "null", "'2.50'"),
    ]


def test_computed_columns_are_computed_from_the_source() -> None:
    made = rows(
        {
            "computed": {
                "net": "price / 2",
                "label": "upper(name)",
                "share": "1 / (id - 1)",
                "at": "seen",
                "no": 'NOT "on"',
            },
            "exclude": ["name"],
        }
    )
    plain = {name: value for name, value in STORED.items() if name != "name"}
    stored = plain | {"net": "1.25000000000000000000", "label": "TEA", "share": 1, "no": False, "at": STORED["seen"]}
    two = ("2", *ROW[1:])
    assert made.differences(two, stored | {"id": 2}) == ()
    typed = {"net": Decimal("1.25"), "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}
    assert made.differences(two, stored | {"id": 2} | typed) == ()
    wrong = {"id": 2, "net": "1.26", "label": None, "no": 0}
    assert [(c.column, c.source, c.store) for c in made.differences(two, stored | wrong)] == [
        ("net", "'1.25000000000000000000'", "'1.26'"),
        ("label", "'TEA'", "null"),
        ("no", "False", "0"),
    ]
    lacking = {name: value for name, value in stored.items() if name != "share"}
    assert [(c.column, c.source, c.store) for c in made.differences(ROW, lacking)] == [
        ("share", "nothing, as it can't be computed: division by zero", "absent")
    ]
    masked = rows({"computed": {"label": "lower(name)"}}, {"name": Mask(TABLE.table, "name", "truncate", 1)})
    assert masked.differences(ROW, STORED | {"name": "t", "label": "t"}) == ()


def test_captures_own_masks_come_first() -> None:
    made = rows(masks={"name": Mask(TABLE.table, "name", "asterisks", 3)})
    assert made.differences(ROW, STORED | {"name": "***"}) == ()
    assert [c.column for c in made.differences(ROW, STORED)] == ["name"]


def test_a_condition_decides_which_rows_are_held() -> None:
    made = rows({"where": "price >= 2.5 AND seen < '2027-01-01 00:00:00Z' AND \"on\""})
    assert made.is_held(ROW)
    assert not made.is_held(("1", "tea", "2.49", ROW[3], "t"))
    assert not made.is_held(("1", "tea", None, ROW[3], "t"))
    assert not made.is_held((*ROW[:3], "2027-01-02 03:04:05+00", "t"))


def test_keys_of_a_store_become_record_keys() -> None:
    assert rows().record_key({"id": 7}) == b'{"id":7}'
    assert rows().record_key({"id": "seven"}) is None
    assert rows().record_key({"id": None}) is None
    assert plain_key(b'{"id": 7}') == b'{"id":7}'


@pytest.mark.parametrize("key", [b"", b"\xff", b"seven", b"[" * 100_000])
def test_a_key_that_is_no_json_stays_as_it_is(key: bytes) -> None:
    assert plain_key(key) == key


def test_a_row_whose_condition_has_no_value_differs_from_whatever_the_store_has() -> None:
    made = rows({"where": "100 / price > 1"})
    assert made.is_held(ROW) and made.differences(ROW, STORED) == ()
    assert not made.is_held((*ROW[:2], "100", *ROW[3:]))
    failing = (*ROW[:2], "0", *ROW[3:])
    assert made.is_held(failing), "a store that lacks it lacks a row"
    found = made.differences(failing, STORED | {"price": "0"})
    assert [(one.column, one.source) for one in found] == [
        ("(row)", "not computed: the condition can't be decided: division by zero")
    ]
