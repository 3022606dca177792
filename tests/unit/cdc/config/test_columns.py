"""Which columns are captured: by the whole of their names, never without the key, and never by mistake."""

import pytest

from cdc.config.columns import ALL_COLUMNS, ColumnChoice
from cdc.model.errors import ConfigError, SourceError
from cdc.model.events import Column, TableId
from cdc.pgoutput.relations import captured_columns
from tests.support import wire

CUSTOMERS = wire.CUSTOMERS
NAMES = ("id", "name", "phone", "telephone")
COLUMNS = tuple(Column(name, 25, -1, "text", name != "id") for name in NAMES)
SCHEMA, RELATION = wire.schema_and_relation(COLUMNS, ["id"])


def taken(choice: ColumnChoice) -> tuple[str, ...]:
    return tuple(column.name for column in choice.of(CUSTOMERS, COLUMNS, ["id"]))


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (ALL_COLUMNS, NAMES),
        (ColumnChoice(exclude=(r"public\.customers\.phone",)), ("id", "name", "telephone")),
        (ColumnChoice(exclude=(".*phone",)), ("id", "name")),
        (ColumnChoice(exclude=("phone",)), NAMES),  # the whole name, from its schema on
        (ColumnChoice(exclude=("public.customers.phon",)), NAMES),
        (ColumnChoice(exclude=("public.customers.PHONE",)), NAMES),
        (ColumnChoice(exclude=("public.orders.phone",)), NAMES),
        (ColumnChoice(include=("public.customers.(id|name)",)), ("id", "name")),
        (ColumnChoice(include=(".*",), exclude=(".*name",)), ("id", "phone", "telephone")),
    ],
)
def test_patterns_match_the_whole_of_schema_table_and_column(choice: ColumnChoice, names: tuple[str, ...]) -> None:
    assert taken(choice) == names


@pytest.mark.parametrize(
    ("choice", "reported"),
    [
        (ColumnChoice(exclude=("public.*",)), "source.exclude_columns leaves out column id of table public.customers"),
        (ColumnChoice(include=(".*name",)), "source.include_columns leaves out column id of table public.customers"),
    ],
)
def test_a_key_column_can_not_be_left_out(choice: ColumnChoice, reported: str) -> None:
    with pytest.raises(ConfigError, match=f"{reported}, which is part of the record key") as caught:
        taken(choice)
    assert "source.key_columns" in caught.value.hint


def test_a_relation_tells_of_each_column_whether_it_is_captured() -> None:
    marked = ColumnChoice(exclude=(".*phone",)).marked(RELATION)
    assert [(column.name, column.is_captured) for column in marked.columns] == [
        ("id", True),
        ("name", True),
        ("phone", False),
        ("telephone", False),
    ]
    assert [column.name for column in captured_columns(marked)] == ["id", "name"]
    assert ALL_COLUMNS.marked(RELATION) is RELATION


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    """A mistyped name would publish what it should hide."""
    columns = [(CUSTOMERS, name) for name in NAMES] + [(TableId("public", "orders"), "id")]
    ColumnChoice(include=(".*",), exclude=("public.customers.phone",)).require_meaning(columns)
    with pytest.raises(ConfigError, match=r"source\.exclude_columns: public.orders.phone matches no column"):
        ColumnChoice(exclude=("public.customers.phone", "public.orders.phone")).require_meaning(columns)
    with pytest.raises(ConfigError, match=r"source\.include_columns: public.customer.id matches no column"):
        ColumnChoice(include=("public.customer.id",)).require_meaning(columns)


def test_a_column_that_is_published_already_is_not_left_out_in_silence() -> None:
    ColumnChoice(exclude=("public.customers.other",)).require_unpublished([SCHEMA])
    with pytest.raises(SourceError, match=r"column phone of table public\.customers is excluded now, but"):
        ColumnChoice(exclude=("public.customers.phone",)).require_unpublished([SCHEMA])
