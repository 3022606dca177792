"""Equalities and memberships that a condition demands."""

import pytest
from sqlglot import condition

from watershed.views.demands import equalities, memberships


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a = b AND (c = d AND e > f)", [("a", "b"), ("c", "d")]),
        ("a = b OR c = d", []),
        ("NOT a = b", []),
        ("(a, b) = (c, d)", [("a", "c"), ("b", "d")]),
        ("ROW(a, b) = ROW(c, d)", [("a", "c"), ("b", "d")]),
        ("a IS NOT DISTINCT FROM b", []),
    ],
)
def test_an_equality_is_demanded(text: str, found: list[tuple[str, str]]) -> None:
    tree = condition(text, dialect="postgres")
    assert [(left.sql(), right.sql()) for left, right in equalities(tree)] == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a IN (SELECT b FROM t)", [["a"]]),
        ("a = ANY (SELECT b FROM t)", [["a"]]),
        ("a = SOME (SELECT b FROM t)", [["a"]]),
        ("(a, b) IN (SELECT c, d FROM t)", [["a", "b"]]),
        ("a = ALL (SELECT b FROM t)", []),
        ("a <> ANY (SELECT b FROM t)", []),
        ("a NOT IN (SELECT b FROM t)", []),
        ("a = ANY (b)", []),
    ],
)
def test_a_membership_is_demanded(text: str, found: list[list[str]]) -> None:
    tree = condition(text, dialect="postgres")
    assert [[one.sql() for one in columns] for columns, _ in memberships(tree)] == found
