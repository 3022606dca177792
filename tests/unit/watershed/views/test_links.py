"""The links between the tables of a query; what they lead to is in test_tracing.py."""

import pytest
from sqlglot import condition
from sqlglot.optimizer.scope import build_scope

from cdc.model.events import TableId
from watershed.views.links import ScopeFindings, equalities, memberships, walk
from watershed.views.parsing import base_tables, parsed, qualified

COLUMNS = {TableId("public", "a"): ("id", "n"), TableId("public", "b"): ("id", "m")}


def found_in(text: str) -> ScopeFindings:
    tree = parsed("view found", text)
    numbers = {table.this.meta["start"]: number for number, table in enumerate(base_tables(tree))}
    found = ScopeFindings(numbers)
    scope = build_scope(qualified("view found", tree, COLUMNS, text))
    assert scope is not None
    walk(scope, found)
    return found


def test_each_place_of_a_table_is_an_occurrence_with_the_columns_that_it_reads() -> None:
    found = found_in("SELECT x.id FROM a x JOIN a y ON y.n = x.id WHERE EXISTS (SELECT 1 FROM b WHERE b.m = y.id)")
    assert sorted(table.name for table in found.tables.values()) == ["a", "a", "b"]
    assert {table.name: sorted(columns) for table, columns in found.used.items()} == {"a": ["id", "n"], "b": ["m"]}


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("SELECT x.id FROM a x JOIN b y ON y.m = x.id", {"a.id → b.m", "b.m → a.id"}),
        ("SELECT x.id FROM a x LEFT JOIN b y ON y.m = x.id", {"b.m → a.id"}),
        ("SELECT x.id, (SELECT max(y.m) FROM b y WHERE y.id = x.n) AS m FROM a x", {"b.id → a.n"}),
        ("SELECT id FROM a WHERE (id, n) IN (SELECT m, id FROM b)", {"b.m → a.id", "b.id → a.n"}),
        ("SELECT x.id FROM a x JOIN (SELECT m AS k FROM b) y ON y.k = x.id", {"a.id → b.m", "b.m → a.id"}),
        ("SELECT x.id FROM a x JOIN (SELECT m FROM b ORDER BY 1 LIMIT 1) y ON y.m = x.id", set()),
        ("SELECT x.id FROM a x JOIN b y ON y.m > x.id OR y.m = x.n", set()),
    ],
)
def test_an_equality_links_two_occurrences(text: str, links: set[str]) -> None:
    found = found_in(text)
    assert {
        f"{found.tables[one.start.occurrence].name}.{one.start.column} → "
        f"{found.tables[one.end.occurrence].name}.{one.end.column}"
        for one in found.links
    } == links


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
