"""Columns as the query's text has them."""

import pytest
from sqlglot import exp, parse_one

from watershed.views.written import as_written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("SELECT id, to_hex(o.a + 1) AS k FROM o", "to_hex(X + 1)"),
        ("SELECT DISTINCT /* c */ to_char(a, '%Y') k FROM o", "to_char(X, '%Y')"),
        ('SELECT coalesce(o."a b", \'x,y\') || lower(  b) AS "K" FROM o', "coalesce(X, 'x,y') || lower(  X)"),
        ("SELECT k FROM (SELECT 1 AS z, (a)::date AS k FROM o) x", "X"),
        ("SELECT DISTINCT ON (a) upper(a) AS k FROM o ORDER BY a", "UPPER(X)"),  # as the parser writes it
    ],
)
def test_an_expression_is_found_before_its_name(text: str, written: str) -> None:
    projection = parse_one(text, dialect="postgres").expressions[-1]

    def renamed(node: exp.Expr) -> exp.Expr:
        return exp.column("X") if isinstance(node, exp.Column) else node

    again = projection.unalias().copy().transform(renamed)
    assert as_written(text, projection, lambda _: "X", again) == written
