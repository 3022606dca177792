"""Constructs of a query that are found before it is traced."""

import pytest
from sqlglot import exp, parse_one

from watershed.views.refusals import called, is_chosen


def parsed(text: str) -> exp.Select:
    tree = parse_one(text, dialect="postgres")
    assert isinstance(tree, exp.Select)
    return tree


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("SELECT id FROM orders", None),
        ("SELECT DISTINCT id FROM orders", None),
        ("SELECT id, count(*) FROM orders GROUP BY id HAVING count(*) > 1 ORDER BY id", None),
        ("SELECT id FROM (SELECT id FROM orders LIMIT 3) o", None),
        ("SELECT id FROM orders LIMIT 3", "LIMIT and OFFSET"),
        ("SELECT id FROM orders FETCH FIRST ROW ONLY", "LIMIT and OFFSET"),
        ("SELECT id FROM orders OFFSET 3", "LIMIT and OFFSET"),
        ("SELECT DISTINCT ON (region) id FROM orders ORDER BY region, id", "DISTINCT ON"),
        ("SELECT id, lag(id) OVER w FROM orders WINDOW w AS (ORDER BY id)", "window functions"),
        ("SELECT id FROM orders ORDER BY rank() OVER (ORDER BY id)", "window functions"),
        ("SELECT DISTINCT ON (region, id) id FROM orders ORDER BY region, id", None),
        ("SELECT DISTINCT ON (1) lower(region) AS low FROM orders ORDER BY 1", None),
        ("SELECT DISTINCT ON (low) lower(region) AS low FROM orders ORDER BY low", None),
        ("SELECT id, row_number() OVER (PARTITION BY id ORDER BY at) FROM orders", None),
        ("SELECT id, rank() OVER (PARTITION BY id), rank() OVER (PARTITION BY at) FROM orders", "window functions"),
    ],
)
def test_a_select_that_chooses_among_its_rows_is_found(text: str, choice: str | None) -> None:
    select = parsed(text)
    assert is_chosen(select, select.expressions[0]) == choice


def test_functions_have_the_names_that_postgresql_knows() -> None:
    """The parser has names of its own for some: date_trunc is its timestamp_trunc."""
    names = set(called(parsed("SELECT date_trunc('hour', at), public.mine(id), jsonb_agg(id ORDER BY id) FROM orders")))
    assert {"date_trunc", "mine", "jsonb_agg"} <= names
