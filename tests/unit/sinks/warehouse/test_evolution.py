"""Which columns stay, and which are made anew."""

import pytest

from sinks.warehouse.evolution import Evolution, evolution

HELD = {"id": "int", "name": "string", "price": "decimal(5,2)", "weight": "float", "tags": "array<int>"}


def test_the_same_columns_are_left_alone() -> None:
    assert not evolution(HELD, dict(reversed(HELD.items())), HELD)


def test_columns_come_and_go() -> None:
    wanted = {"id": "int", "price": "decimal(5,2)", "weight": "float", "label": "string", "tags": "array<int>"}
    assert evolution(HELD, wanted, wanted) == Evolution(dropped=("name",), added=(("label", "string"),))


def test_what_iceberg_widens_stays() -> None:
    wanted = {**HELD, "id": "bigint", "price": "decimal(9,2)", "weight": "double"}
    assert evolution(HELD, wanted, wanted) == Evolution(
        widened=(("id", "bigint"), ("price", "decimal(9,2)"), ("weight", "double"))
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("name", "int"),
        ("id", "string"),
        ("price", "decimal(9,4)"),
        ("price", "decimal(4,2)"),
        ("price", "string"),
        ("weight", "bigint"),
        ("tags", "array<bigint>"),
    ],
)
def test_any_other_type_is_a_column_anew(name: str, kind: str) -> None:
    wanted = {**HELD, name: kind}
    assert evolution(HELD, wanted, wanted) == Evolution(dropped=(name,), added=((name, kind),))


def test_another_column_of_the_same_name_is_a_column_anew() -> None:
    assert evolution(HELD, HELD, HELD.keys() - {"name"}) == Evolution(dropped=("name",), added=(("name", "string"),))
