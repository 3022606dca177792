"""Versions, positions and names."""

from dataclasses import replace

import pytest

from cdc.model.events import (
    EPOCH_MAX,
    SEQ_MAX,
    Column,
    Position,
    TableId,
    TableSchema,
    pack_version,
    unpack_version,
)
from cdc.model.lsn import Lsn


def test_a_version_is_epoch_then_seq() -> None:
    assert pack_version(1, 17) == 281474976710673
    assert unpack_version(281474976710673) == (1, 17)
    assert unpack_version(pack_version(EPOCH_MAX, SEQ_MAX)) == (EPOCH_MAX, SEQ_MAX)


def test_a_later_epoch_is_greater_than_any_seq_of_the_one_before() -> None:
    assert pack_version(2, 0) > pack_version(1, SEQ_MAX)
    assert pack_version(1, 2) > pack_version(1, 1)


def test_the_greatest_version_fits_a_signed_64_bit_integer() -> None:
    assert pack_version(EPOCH_MAX, SEQ_MAX) == (1 << 63) - 1


@pytest.mark.parametrize(("epoch", "seq"), [(-1, 0), (EPOCH_MAX + 1, 0), (0, -1), (0, SEQ_MAX + 1)])
def test_a_version_out_of_range_is_refused(epoch: int, seq: int) -> None:
    with pytest.raises(ValueError, match="version out of range"):
        pack_version(epoch, seq)


def test_positions_order_by_commit_then_index() -> None:
    first, second, third = Position(Lsn(5), 9), Position(Lsn(6), 0), Position(Lsn(6), 1)
    assert first < second < third
    assert str(third) == "0/6#1"


def test_a_table_is_written_with_its_schema() -> None:
    assert str(TableId("public", "orders")) == "public.orders"


def test_a_table_s_name_is_parted_at_its_first_dot() -> None:
    assert TableId.parse('public.we.ird "T"') == TableId("public", 'we.ird "T"')
    assert TableId.parse('"my.sch""ema".t.x') == TableId('my.sch"ema', "t.x")
    for table in (TableId("a.b", "c.d"), TableId('"a".b', "c"), TableId('a"b', '"c"'), TableId("public", "t")):
        assert TableId.parse(str(table)) == table
    assert str(TableId('a"b', "c")) == 'a"b.c'
    for text in ("", "public", "public.", ".t"):
        with pytest.raises(ValueError, match=r"is not schema\.table"):
            TableId.parse(text)


ID = Column("id", 20, -1, "bigint", False, base_type_oid=20)
MOOD = Column("mood", 16_500, -1, "public.mood", True, type_kind="e", base_type_oid=16_500, labels=("sad", "ok"))
PRICE = Column("price", 16_510, -1, "public.price", True, base_type_oid=1700, base_type_modifier=655_366)
MOODS = Column("moods", 16_501, -1, "public.mood[]", True, base_type_oid=16_501, element_oid=16_500)
ORDERS = TableSchema(TableId("public", "orders"), 3, 16_600, (ID, MOOD, PRICE, MOODS), ("id",), "shop.public.orders")


def test_a_restored_table_has_the_same_form_although_its_types_have_other_oids() -> None:
    columns = (
        ID,
        replace(MOOD, type_oid=30_000, base_type_oid=30_000),
        replace(PRICE, type_oid=30_002),
        replace(MOODS, type_oid=30_001, base_type_oid=30_001, element_oid=30_000),
    )
    assert replace(ORDERS, oid=30_100, version=4, columns=columns).has_form_of(ORDERS)


@pytest.mark.parametrize(
    "columns",
    [
        (ID, MOOD, PRICE),
        (MOOD, ID, PRICE, MOODS),
        (replace(ID, type_oid=23, base_type_oid=23, type_name="integer"), MOOD, PRICE, MOODS),
        (ID, replace(MOOD, labels=("sad", "ok", "happy")), PRICE, MOODS),
        (ID, MOOD, replace(PRICE, base_type_oid=25), MOODS),  # the domain's base is another type
        (ID, MOOD, replace(PRICE, base_type_modifier=None), MOODS),
        (ID, replace(MOOD, nullable=False), PRICE, MOODS),
        (ID, replace(MOOD, type_oid=25, base_type_oid=25), PRICE, MOODS),
    ],
)
def test_whatever_else_differs_is_another_form(columns: tuple[Column, ...]) -> None:
    assert not replace(ORDERS, columns=columns).has_form_of(ORDERS)


def test_another_key_or_topic_is_another_form() -> None:
    assert not replace(ORDERS, key=("id", "mood")).has_form_of(ORDERS)
    assert not replace(ORDERS, topic="other").has_form_of(ORDERS)
