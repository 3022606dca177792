"""The syntax of row conditions: what is read, and where a mistake is."""

from decimal import Decimal

import pytest

from cdc.config.row_condition import (
    BeyondGrammarError,
    ColumnName,
    Comparison,
    Constant,
    Every,
    IsNull,
    IsTrue,
    Membership,
    Not,
    Some,
    columns_of,
    parse_condition,
)

A, B = ColumnName("a"), ColumnName("b")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("a = 1", Comparison(A, "=", Constant(Decimal(1)))),
        ("-1.5e3<a", Comparison(Constant(Decimal("-1500")), "<", A)),
        ("a != 'it''s'", Comparison(A, "<>", Constant("it's"))),
        ("A >= b", Comparison(A, ">=", B)),
        ('"A b" IS NOT NULL', Not(IsNull(ColumnName("A b")))),
        ("a is null", IsNull(A)),
        ("a", IsTrue(A)),
        ("a = TRUE", Comparison(A, "=", Constant(True))),
        ("a IN ('x', 'y')", Membership(A, (Constant("x"), Constant("y")))),
        ("a NOT IN (1)", Not(Membership(A, (Constant(Decimal(1)),)))),
        ("a AND NOT b OR a", Some((Every((IsTrue(A), Not(IsTrue(B)))), IsTrue(A)))),
        ("a AND (b OR a)", Every((IsTrue(A), Some((IsTrue(B), IsTrue(A)))))),
        ("  ((a))  ", IsTrue(A)),
    ],
)
def test_a_condition_is_read_as_sql_reads_it(text: str, condition: object) -> None:
    assert parse_condition(text) == condition


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "needs a column, a text in single quotes, a number, TRUE or FALSE at the end"),
        ("a =", "TRUE or FALSE at the end"),
        ("a = NULL", "write IS NULL or IS NOT NULL"),
        ("a == 1", "TRUE or FALSE at character 4"),
        ("a = 'x", "can't be read from character 5 on"),
        ("a; DROP", "can't be read from character 2 on"),
        ("a b", "needs AND, OR or the end at character 3"),
        ("(a", "needs ) at the end"),
        ("1 = 1", "a comparison needs a column on at least one side"),
        ("a IN ()", "at character 7"),
        ("a IN (b)", "the list of IN takes literals, not the column b"),
        ("a NOT 1", "needs IN at character 7"),
        ("a IS 1", "needs NULL at character 6"),
        ("NOT " * 60 + "a", "nested more than 50 deep"),
        ("a" * 5000, "at most 4096 characters"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, reported: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_condition(text)
    assert reported in str(caught.value)
    is_final = any(part in reported for part in ("NULL or IS NOT", "50 deep", "4096"))
    assert isinstance(caught.value, BeyondGrammarError) is not is_final, "it may be an SQL expression"


def test_the_columns_of_a_condition_are_known() -> None:
    assert columns_of(parse_condition("a > b OR NOT (c IS NULL AND d IN (1)) OR e")) == frozenset("abcde")
