"""What decides about a value's form."""

import pytest

from cdc.formats.kinds import ValueType, is_of_domain, numeric_modifier, value_type
from cdc.model.events import Column


@pytest.mark.parametrize(
    ("modifier", "declared"),
    [(-1, None), (786_438, (12, 2)), ((5 << 16 | -2 & 0x7FF) + 4, (5, -2)), ((3 << 16 | 5) + 4, (3, 5))],
)
def test_a_numerics_modifier_is_precision_and_scale(modifier: int, declared: tuple[int, int] | None) -> None:
    assert numeric_modifier(modifier) == declared


def test_a_domain_is_its_base_type_with_the_modifier_that_it_gives() -> None:
    cents = Column("c", 16_500, -1, "cents", True, "b", 1700, base_type_modifier=786_438)
    assert value_type(cents) == ValueType(1700, 786_438, "", ())


@pytest.mark.parametrize(
    ("type_name", "name"),
    [
        ("public.hstore", "hstore"),
        ("vector(3)", "vector"),
        ('"Odd s".citext', "citext"),
        ("public.geometry(Point)", "geometry"),
    ],
)
def test_an_extensions_type_is_known_by_its_name(type_name: str, name: str) -> None:
    assert value_type(Column("c", 16_500, 7, type_name, True)) == ValueType(16_500, 7, name, ())


def test_a_composite_is_no_extensions_type_whatever_its_name() -> None:
    assert value_type(Column("c", 16_500, -1, "public.hstore", True, "c")).name == ""


def test_an_arrays_elements_have_their_own_type() -> None:
    column = Column("c", 16_501, -1, "mood[]", True, "b", 16_501, 16_500, labels=("a", "b"))
    assert value_type(column) == ValueType(16_500, -1, "mood", ("a", "b"))
    assert value_type(Column("c", 1231, 786_438, "numeric(12,2)[]", True, element_oid=1700)).modifier == 786_438


def test_an_array_of_a_domain_is_told_by_its_own_type() -> None:
    assert is_of_domain(Column("c", 16_501, -1, "positive[]", True, element_oid=23))
    assert not is_of_domain(Column("c", 1007, -1, "integer[]", True, element_oid=23))
    assert not is_of_domain(Column("c", 16_502, -1, "numbers", True, "b", 1007, 23))  # a domain over integer[]
    assert not is_of_domain(Column("c", 16_501, -1, "mood[]", True, element_oid=16_500))
