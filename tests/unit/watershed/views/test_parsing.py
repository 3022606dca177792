"""A query's tables, and its columns under the aliases of their tables."""

import pytest
from sqlglot import exp, parse_one

from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from watershed.views.parsing import as_written, named_tables, parsed, qualified

COLUMNS = {TableId("public", "orders"): ("id", "customer_id", "Tags"), TableId("public", "customers"): ("id", "name")}


def test_functions_and_parts_of_a_with_are_no_tables() -> None:
    text = (
        "WITH x AS (SELECT * FROM Orders) SELECT x.id FROM x, unnest(x.tags) AS t, other.y, generate_series(1, 2) AS g"
    )
    assert set(named_tables("found", text)) == {TableId("public", "orders"), TableId("other", "y")}


def test_a_recursive_query_is_refused_for_what_it_is() -> None:
    """It reads a table of the name of its WITH, as every recursive query does: another name would not help."""
    text = "WITH RECURSIVE up AS (SELECT id FROM orders UNION SELECT o.id FROM orders o JOIN up USING (id)) TABLE up"
    with pytest.raises(ConfigError, match="view found: WITH RECURSIVE can't be traced to a key") as refused:
        qualified("view found", parsed("view found", text), COLUMNS, text)
    assert "pairs of ancestor and descendant" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ('SELECT O.ID, "Tags" FROM ORDERS O', {"o.id", "o.Tags"}),
        ("SELECT id, name FROM orders LEFT JOIN customers USING (id)", {"orders.id", "customers.name", "customers.id"}),
        ("SELECT coalesce(c.id, o.id) AS k FROM orders o JOIN customers c USING (id)", {"c.id", "o.id"}),
        ('SELECT t.tag AS tag FROM orders o, unnest(o."Tags") AS t(tag)', {"t.tag", "o.Tags"}),
        ("SELECT o.id, g FROM orders o, generate_series(1, o.id) AS g", {"o.id", "g.g"}),
        ('SELECT x.key FROM orders o, jsonb_each(o."Tags") AS x', {"x.key", "o.Tags"}),
        ("SELECT o.id % 2 AS half, count(*) AS n FROM orders o GROUP BY half", {"o.id"}),
    ],
)
def test_each_column_has_the_table_that_postgresql_takes_it_from(text: str, columns: set[str]) -> None:
    tree = qualified("view found", parsed("view found", text), COLUMNS, text)
    assert {f"{one.table}.{one.name}" for one in tree.find_all(exp.Column)} == columns


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
