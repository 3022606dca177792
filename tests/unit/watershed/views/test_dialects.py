"""Advice for SQL of other databases."""

import pytest

from watershed.views.dialects import advice, syntax_advice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT NVL(a, b) FROM t", "write coalesce(a, b) instead of NVL"),
        ("SELECT `a` FROM t", 'write names without backticks, or "name" with capitals or spaces'),
        ("SELECT a FROM t LIMIT 5, 10", "write LIMIT b OFFSET a instead of LIMIT a, b, in a subquery with ORDER BY"),
        ("SELECT coalesce(a, 'nvl(`x`)') FROM t -- nvl(a)", None),
    ],
)
def test_what_postgresql_has_instead_is_named(text: str, message: str | None) -> None:
    assert advice(text) == message


def test_a_function_is_no_construct() -> None:
    """PostgreSQL may have a function of the same name."""
    assert syntax_advice("SELECT decode(a, 'hex') FROM t") is None
