"""Expressions of computed columns: their values and types, what has no value for one row, and what is refused."""

from contextlib import suppress
from random import Random
from typing import Any

import pytest

from cdc.model.events import Column, TableId, TableSchema
from sinks.shaping.expressions.expression import Expression
from sinks.shaping.expressions.functions import FUNCTIONS
from sinks.shaping.expressions.types import ComputationError, ExpressionError, MissingColumnError
from tests.conformance.tables import NUMERIC_12_2


def column(name: str, oid: int, type_name: str, modifier: int = -1, kind: str = "b") -> Column:
    return Column(name, oid, modifier, type_name, True, kind, oid)


SCHEMA = TableSchema(
    TableId("public", "orders"),
    1,
    16_385,
    (
        column("id", 20, "bigint"),
        column("price", 1700, "numeric(12,2)", NUMERIC_12_2),
        column("small", 21, "smallint"),
        column("quantity", 23, "integer"),
        column("name", 25, "text"),
        column("is_paid", 16, "boolean"),
        column("day", 1082, "date"),
        column("at", 1114, "timestamp without time zone"),
        column("moment", 1184, "timestamp with time zone"),
        column("token", 2950, "uuid"),
        column("state", 50_001, "state", kind="e"),
        column("ratio", 701, "double precision"),
        column("tags", 1009, "text[]"),
        column("Odd Name", 25, "text"),
    ),
    ("id",),
    "t",
)
ROW: dict[str, Any] = {
    "id": 2**40,
    "price": "12.50",
    "small": 32767,
    "quantity": 3,
    "name": "Zoë ",
    "is_paid": None,
    "day": "2024-02-29",
    "at": "2024-02-29T12:30:05.5",
    "moment": "2024-02-29T10:00:00Z",
    "token": "123e4567-e89b-12d3-a456-426614174000",
    "state": "new",
    "ratio": 0.5,
    "tags": ["a"],
    "Odd Name": "x",
}


def value(text: str, **changed: Any) -> Any:
    return Expression(text, SCHEMA).value(ROW | changed)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_documented_function_has_the_value_of_its_example(name: str) -> None:
    function = FUNCTIONS[name]
    assert name in function.form
    assert (found := value(function.example)) == function.result and type(found) is type(function.result)


@pytest.mark.parametrize(
    ("text", "type_name", "expected"),
    [
        ("price * quantity", "numeric", "37.50"),
        ("price", "numeric(12,2)", "12.50"),
        ("CAST(price * quantity AS numeric(14,1))", "numeric(14,1)", "37.5"),
        ("price / quantity", "numeric", "4.1666666666666667"),
        ("quantity / 2", "integer", 1),
        ("-quantity / 2", "integer", -1),
        ("id + 1", "bigint", 2**40 + 1),
        ("quantity + 2147483648", "bigint", 2147483651),
        ("-2147483648", "integer", -2147483648),
        ("9223372036854775808", "numeric", "9223372036854775808"),
        ("0.1 + 0.2", "numeric", "0.3"),
        ("0.0 * -1", "numeric", "0.0"),
        ("1.5e3", "numeric", "1500"),
        ("trim(name) || ':' || quantity", "text", "Zoë:3"),
        ("length(name)", "integer", 4),
        ("name || NULL", "text", None),
        ("concat(name, is_paid, quantity)", "text", "Zoë 3"),
        ("is_paid AND quantity > 5", "boolean", False),
        ("is_paid OR quantity > 5", "boolean", None),
        ("NOT is_paid", "boolean", None),
        ("is_paid IS NOT TRUE", "boolean", True),
        ("quantity IN (1, NULL)", "boolean", None),
        ("quantity NOT IN (1, 3)", "boolean", False),
        ("price BETWEEN 12.5 AND quantity * 5", "boolean", True),
        ("is_paid IS DISTINCT FROM NULL", "boolean", False),
        ("ratio IS NULL OR tags IS NULL", "boolean", False),
        ("token::text || state::text", "text", "123e4567-e89b-12d3-a456-426614174000new"),
        ("coalesce(NULL, price, 0)", "numeric", "12.50"),
        ("CASE quantity WHEN 3 THEN 'three' END", "text", "three"),
        ("CASE WHEN is_paid THEN day ELSE at END", "timestamp without time zone", "2024-02-29T12:30:05.5"),
        ("day + 1", "date", "2024-03-01"),
        ("day - DATE '2024-01-01'", "integer", 59),
        ("day > '2024-02-28'", "boolean", True),
        ("at::date = day", "boolean", True),
        ("moment AT TIME ZONE 'UTC'", "timestamp without time zone", "2024-02-29T10:00:00"),
        ("moment > TIMESTAMP '2024-02-29' AT TIME ZONE 'UTC'", "boolean", True),
        ("extract(epoch FROM moment)", "numeric", "1709200800.000000"),
        ("date_trunc('month', at)", "timestamp without time zone", "2024-02-01T00:00:00"),
        ("nullif(quantity, 3.0)", "numeric", None),
        ('upper("Odd Name")', "text", "X"),
        ("PRICE > 0 -- a comment", "boolean", True),
        ("NULL", "text", None),
        (".5 + 1", "numeric", "1.5"),
        ("quantity / (quantity - 3) = 1 AND 1 > 2", "boolean", False),
        ("quantity / (quantity - 3) + NULL::integer", "integer", None),
        ("right(name, -2147483648)", "text", "Zoë "),
        ("'it''s \\n'", "text", "it's \\n"),
    ],
)
def test_values_and_types(text: str, type_name: str, expected: Any) -> None:
    expression = Expression(text, SCHEMA)
    found = expression.value(ROW)
    assert found == expected and type(found) is type(expected)
    assert expression.column("made").type_name == type_name and expression.column("made").nullable


@pytest.mark.parametrize(
    ("text", "changed", "reason"),
    [
        ("quantity / (quantity - 3)", {}, "division by zero"),
        ("price % (quantity - 3)", {}, "division by zero"),
        ("small + 1::smallint", {}, "smallint out of range"),
        ("quantity * 1000000000", {}, "integer out of range"),
        ("-small::smallint", {"small": -32768}, "smallint out of range"),
        ("name::integer", {}, "a text is not an integer"),
        ("name::integer", {"name": "0x1F"}, "a text is not an integer"),
        ("name::numeric", {"name": "NaN"}, "a text is not a finite number"),
        ("name::numeric", {"name": "1e999999999"}, "more digits than numeric can have"),
        ("name::boolean", {"name": "o"}, "a text is not a boolean"),
        ("price::numeric(3,2)", {}, "too many digits for numeric(3,2)"),
        ("id::integer", {}, "integer out of range"),
        ("price + 1", {"price": "NaN"}, "column price has a value that is NaN or infinite"),
        ("day + 1", {"day": "infinity"}, "column day"),
        ("day + 1", {"day": "9999-12-31"}, "outside the years 1 to 9999"),
        ("substring(name, 1, -1)", {}, "negative substring length"),
        ("split_part(name, ',', 0)", {}, "field position must not be zero"),
    ],
)
def test_a_row_without_a_value(text: str, changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(ComputationError) as caught:
        value(text, **changed)
    assert reason in str(caught.value)


def test_what_does_not_count_is_not_computed() -> None:
    assert value("CASE WHEN quantity = 3 THEN 0 ELSE 1 / (quantity - 3) END") == 0
    assert value("quantity = 3 OR 1 / (quantity - 3) > 0") is True
    assert value("quantity <> 3 AND 1 / (quantity - 3) > 0") is False
    assert value("coalesce(quantity, 1 / (quantity - 3))") == 3
    assert value("price IS NULL", price="NaN") is False, "such a value is not computed with"


def test_a_row_that_lacks_a_column() -> None:
    row = {name: one for name, one in ROW.items() if name != "name"}
    with pytest.raises(MissingColumnError):
        Expression("coalesce(name, 'x')", SCHEMA).value(row)
    assert Expression("coalesce(state::text, name)", SCHEMA).value(row) == "new"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("prise * quantity", "table public.orders has no column prise; it has id, price"),
        ("orders.price", "a column's name stands alone"),
        ("soundex(name)", "soundex(…) is not available: available are abs,"),
        ("nvl(price, 0)", "nvl(…) is not available"),
        ("count(*)", "count(…) is not available"),
        ("now()", "now(…) is not available"),
        ("current_date", "CURRENT_DATE is not available"),
        ("(SELECT 1)", "is not available"),
        ("name LIKE 'a%'", "is not available"),
        ("price ^ 2", "^ is not available"),
        ("price == 2", "== is not available"),
        ("E'a'", "is not available"),
        ("ratio * 2", "* needs a number, not double precision"),
        ("coalesce(ratio, 0)", "have no common type"),
        ("tags", "its value has type text[]"),
        ("lower(quantity)", "lower needs text, not integer: cast it to text"),
        ("name + 1", "+ needs a number, not text"),
        ("price = '1'", "write a number without quotes"),
        ("is_paid = 'yes'", "write TRUE or FALSE"),
        ("day = '2024-13-01'", "write a date such as"),
        ("moment > '2024-01-01'", "AT TIME ZONE 'UTC'"),
        ("date_trunc('day', moment)", "write … AT TIME ZONE 'UTC'"),
        ("date_trunc('decade', at)", "date_trunc has no field decade"),
        ("date_trunc(month, at)", "needs its field as a text"),
        ("extract(hour FROM moment)", "write … AT TIME ZONE 'UTC'"),
        ("moment AT TIME ZONE 'Europe/Paris'", "only available for 'UTC'"),
        ("round(quantity)", "round needs a numeric, not integer"),
        ("name::varchar(3)", "a cast to VARCHAR(3) is not available"),
        ("day::text", "a cast from date to text is not available"),
        ("'x'::integer", "CAST('x' AS INT) has no value: a text is not an integer"),
        ("CASE WHEN quantity THEN 1 END", "WHEN needs a boolean, not integer"),
        ("CASE WHEN is_paid THEN 1 ELSE 'x' END", "write a number without quotes"),
        ("coalesce(name, quantity)", "text and integer have no common type"),
        ("quantity < 1 = is_paid", "needs parentheses"),
        ("quantity || small", "|| needs a text on one side"),
        ("quantity +", "it can't be read"),
        ("coalesce(quantity, 1 / 0)", "1 / 0 has no value: division by zero"),
        ("is_paid AND NULL::integer", "AND needs a boolean, not integer"),
        ("coalesce(quantity, 1 / coalesce(0, small))", "has no value: division by zero"),
        ("extract(epoch FROM name)", "extract(epoch FROM text) is not available"),
        ("ceil()", "an operand or argument is missing"),
        ("price::numeric(1.5)", "is not available"),
        ("price::numeric(2,3)", "numeric(2,3) is not available"),
        ("btrim(name, DISTINCT 'x', %)", "is not available"),
        ("quantity, small", "it can't be read"),
        ("quantity; small", "; is not available"),
        ("", "it is not one expression"),
        ("-" * 500 + "quantity", "it is"),
        ("- " * 500 + "quantity", "nested too deep"),
        ("1 + " * 2000 + "1", "at most 4096 characters"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text, SCHEMA)
    assert reason in str(caught.value)


WORDS = (
    "AND OR NOT IN IS NULL CASE WHEN THEN ELSE END BETWEEN FROM FOR LIKE AS DISTINCT interval SELECT month year "
    "numeric text + - * / % || = < ( ) ( ) ( ) , :: . [ ; ' $1 ? @ ^ ~ ! { \\ 'a' '12' 1 2.5 1e3 -- /* E'a' $$"
)


def test_whatever_is_written_is_computed_or_refused() -> None:
    """The parser knows much more than expressions do, and fails in ways of its own."""
    random = Random(7)
    words = [*FUNCTIONS, *WORDS.split(), *(one.name for one in SCHEMA.columns if " " not in one.name)]
    computed = 0
    for _ in range(1_500):
        inner = " ".join(random.choice(words) for _ in range(random.randint(0, 5)))
        text = f"{random.choice(list(FUNCTIONS))}({inner})" if random.random() < 0.5 else inner
        with suppress(ExpressionError, ComputationError):
            Expression(text, SCHEMA).value(ROW)
            computed += 1
    assert computed > 20


def test_the_deepest_expression_can_be_evaluated() -> None:
    assert value("- " * 118 + "quantity") == 3


def test_columns_that_an_expression_reads() -> None:
    assert Expression("coalesce(price, 0) * Quantity", SCHEMA).columns == {"price", "quantity"}
