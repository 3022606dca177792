"""Values of an event's columns."""

from cdc.config.format_options import FormatOptions
from cdc.model.events import Column
from cdc.outbox.column_readers import EventValue, readers_of

COLUMNS = (
    Column("id", 20, -1, "bigint", nullable=False),
    Column("amount", 1700, (10 << 16 | 2) + 4, "numeric(10,2)", nullable=True),
    Column("at", 1114, -1, "timestamp without time zone", nullable=True),
    Column("f4", 700, -1, "real", nullable=True),
    Column("what", 600, -1, "point", nullable=True),
    Column("odd", 99_999, -1, "somebodys", nullable=True),
)


def values(options: FormatOptions, *row: str | None) -> dict[str, EventValue]:
    return {name: read(row) for name, read in readers_of("a.b", COLUMNS, ("id",), options).items()}


def test_values_are_debeziums_whatever_the_profile() -> None:
    found = values(FormatOptions(), "7", "12.50", "2024-01-31 12:00:00.123456", "1e+21", None, "x")
    assert found.keys() == {"id", "amount", "at", "f4", "what"}, "a type that Debezium leaves out"
    assert (found["amount"].json, found["amount"].plain) == ('"BOI="', "12.50")
    assert (found["at"].json, found["at"].plain) == ("1706702400123456", "1706702400123456")
    assert (found["f4"].json, found["f4"].plain) == ("1.0E21", "1.0E21")
    assert (found["what"].json, found["what"].plain) == ("null", None)
    readers = readers_of("a.b", COLUMNS, ("id",), FormatOptions())
    assert (readers["id"].node["optional"], readers["at"].node["optional"]) == (False, True)


def test_a_mode_that_was_chosen_counts() -> None:
    found = values(FormatOptions(decimal_handling_mode="string"), "7", "12.50", None, None, None, None)
    assert (found["amount"].json, found["amount"].plain) == ('"12.50"', "12.50")


def test_a_number_without_place_is_null() -> None:
    assert values(FormatOptions(), "7", "NaN", None, None, None, None)["amount"].plain is None
