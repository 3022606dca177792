"""Columns from version to version, and rows of older versions in the newest's shape."""

from dataclasses import replace

import pytest

from cdc.model.events import Column, TableId, TableSchema
from sinks.schema_history import SchemaHistory, reads_as

INT2, INT4, INT8, FLOAT4, FLOAT8 = 21, 23, 20, 700, 701
TEXT, VARCHAR, NAME, NUMERIC, DATE, TIMESTAMP, UUID, MOOD, INT4_ARRAY = (
    25,
    1043,
    19,
    1700,
    1082,
    1114,
    2950,
    90_001,
    1007,
)


def column(name: str, oid: int = TEXT, modifier: int = -1, kind: str = "b") -> Column:
    return Column(name, oid, modifier, str(oid), True, kind, oid)


def numeric(precision: int, scale: int) -> Column:
    return column("n", NUMERIC, (precision << 16 | scale & 0x7FF) + 4)


def schema(version: int, *columns: Column) -> TableSchema:
    return TableSchema(TableId("public", "t"), version, 16385, (column("id", INT8), *columns), ("id",), "shop.public.t")


def test_versions_come_in_any_order_and_again() -> None:
    first, second = schema(1), schema(2, column("a"))
    schema_history = SchemaHistory.of([second, first, replace(second)])
    assert schema_history == SchemaHistory((first, second))
    assert (schema_history.newest, schema_history.earlier) == (second, (first,))


def test_what_was_added_later_may_be_absent_from_older_rows() -> None:
    required = replace(column("required"), nullable=False)
    schema_history = SchemaHistory.of(
        [schema(1, column("a")), schema(2), schema(3, column("a"), column("b"), required)]
    )
    assert schema_history.added == {"a", "b"}
    assert SchemaHistory((schema(1, column("a")),)).added == frozenset()


@pytest.mark.parametrize(
    ("old", "new", "reads"),
    [
        (column("a", INT2), column("a", INT8), True),
        (column("a", INT8), column("a", INT4), False),
        (column("a", FLOAT4), column("a", FLOAT8), True),
        (column("a", INT4), column("a", FLOAT8), False),
        (column("a", INT4), column("a"), False),
        (column("a"), column("a", INT4), False),
        (column("a", VARCHAR, 14), column("a", VARCHAR, 24), True),
        (column("a", VARCHAR, 14), column("a"), True),
        (column("a", NAME), column("a", VARCHAR), True),
        (column("a", MOOD, kind="e"), column("a"), True),
        (column("a", MOOD, kind="e"), column("a", MOOD, kind="e"), True),
        (column("a", MOOD, kind="e"), column("a", MOOD + 1, kind="e"), False),
        (column("a", UUID), column("a"), False),
        (column("a", DATE), column("a", TIMESTAMP), False),
        (column("a", INT4_ARRAY), column("a", INT4_ARRAY), True),
        (column("a", INT4_ARRAY), column("a", INT4), False),
        (numeric(5, 2), numeric(9, 4), True),
        (numeric(5, 2), numeric(5, 3), False),
        (numeric(5, 2), numeric(4, 2), False),
        (numeric(5, -2), numeric(7, 0), True),
        (numeric(5, 2), column("a", NUMERIC), True),
        (column("a", NUMERIC), numeric(30, 10), False),
    ],
)
def test_a_type_reads_as_another(old: Column, new: Column, reads: bool) -> None:
    assert reads_as(old, new) is reads


def test_a_domain_counts_as_its_base_type_with_the_domains_modifier() -> None:
    domain = replace(numeric(5, 2), type_oid=90_002, type_modifier=-1, base_type_modifier=numeric(5, 2).type_modifier)
    assert reads_as(domain, numeric(6, 2))
    assert not reads_as(column("n", NUMERIC), domain)


def test_a_column_is_carried_through_every_known_version() -> None:
    schema_history = SchemaHistory.of(
        [
            schema(1, column("stays"), column("gone"), column("again", INT4), column("retyped", INT4)),
            schema(2, column("stays"), column("retyped", INT4), column("late")),
            schema(4, column("stays"), column("again", INT4), column("retyped"), column("late")),
        ]
    )
    assert schema_history.carried(1) == {"id", "stays"}
    assert schema_history.carried(2) == {"id", "stays", "late"}
    assert schema_history.carried(4) == {"id", "stays", "again", "retyped", "late"}
    # Not known: as far as later versions say.
    assert schema_history.carried(3) == schema_history.carried(4)
    counts = [names and len(names) for names in map(schema_history.column_names, (1, 2, 3, 4))]
    assert counts == [5, 4, None, 5]


def test_an_older_row_gets_the_newest_columns_in_their_order() -> None:
    schema_history = SchemaHistory.of(
        [
            schema(1, column("gone"), column("stays"), column("retyped", INT4)),
            schema(2, column("added"), column("retyped"), column("stays")),
        ]
    )
    row, unchanged = schema_history.in_newest(1, {"id": 1, "gone": "x", "stays": "y", "retyped": 7}, frozenset())
    assert list(row.items()) == [("id", 1), ("added", None), ("retyped", None), ("stays", "y")]
    assert unchanged == frozenset()


def test_what_an_older_row_lacks_is_kept_only_of_the_same_column() -> None:
    schema_history = SchemaHistory.of(
        [
            schema(1, column("gone"), column("stays"), column("retyped")),
            schema(2, column("stays"), column("retyped", INT4), column("added")),
        ]
    )
    row, unchanged = schema_history.in_newest(1, {"id": 1}, frozenset({"gone", "stays", "retyped"}))
    assert row == {"id": 1, "retyped": None, "added": None}
    assert unchanged == {"stays"}


def test_a_widened_key_is_carried() -> None:
    key = column("id", INT4)
    narrow = replace(schema(1, column("a")), columns=(key, column("a")))
    assert SchemaHistory.of([narrow, schema(2, column("a"))]).carried(1) == {"id", "a"}


def test_an_older_row_has_the_constant_with_which_a_column_was_added() -> None:
    schema_history = SchemaHistory.of(
        [
            schema(1, column("a")),
            replace(schema(2, column("a"), column("n", INT8)), filled=(("n", "9007199254740993"),)),
            replace(schema(3, column("a"), column("n", INT8), column("items")), filled=(("items", '["x", null]'),)),
        ]
    )
    assert schema_history.in_newest(1, {"id": 1, "a": "x"}, frozenset({"n"}))[0] == {
        "id": 1,
        "a": "x",
        "n": 9007199254740993,
        "items": ["x", None],
    }
    assert schema_history.in_newest(2, {"id": 1, "a": "x", "n": None}, frozenset())[0]["n"] is None, "it was written"
    assert [schema_history.filled(version) for version in (2, 3)] == [{"items": ["x", None]}, {}]
    assert schema_history.ever_filled == {"n", "items"}


def test_a_constant_is_that_of_the_present_column() -> None:
    """Of a former column of that name nothing is left; of one that has another type, capture publishes the rows."""
    schema_history = SchemaHistory.of(
        [
            schema(1),
            replace(schema(2, column("n", INT4), column("m", INT4)), filled=(("n", "1"), ("m", "1"))),
            schema(3, column("m")),
            replace(schema(4, column("n", INT4), column("m")), filled=(("n", "4"),)),
            schema(5, column("n", INT8), column("m")),
        ]
    )
    assert [schema_history.filled(version) for version in (1, 2, 3, 4)] == [{"n": 4}, {"n": 4}, {"n": 4}, {}]
    row, _ = schema_history.in_newest(2, {"id": 1, "n": 1, "m": 1}, frozenset({"n"}))
    assert row == {"id": 1, "n": 4, "m": None}
