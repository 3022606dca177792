"""A query with set operations as queries with one branch of each."""

import pytest

from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from watershed.views.branches import single_branches
from watershed.views.parsing import parsed, qualified

COLUMNS = {TableId("public", "a"): ("id", "n"), TableId("public", "b"): ("id", "m")}


def branches(text: str) -> list[str]:
    """The queries, with the names of tables and columns as they are written without quotes."""
    tree = qualified("view found", parsed("view found", text), COLUMNS, text)
    return [one.sql("postgres").replace('"', "") for one in single_branches("view found", tree)]


def test_a_query_without_set_operations_is_its_own() -> None:
    assert branches("SELECT id FROM a") == ["SELECT a.id AS id FROM public.a AS a"]


def test_the_columns_of_each_branch_have_the_first_ones_names() -> None:
    assert branches("SELECT * FROM a UNION (SELECT m, id AS x FROM b EXCEPT SELECT 1, n FROM a)") == [
        "SELECT a.id AS id, a.n AS n FROM public.a AS a",
        "SELECT b.m AS id, b.id AS n FROM public.b AS b",
        "SELECT 1 AS id, a.n AS n FROM public.a AS a",
    ]


def test_each_branch_of_one_operation_is_combined_with_each_of_another() -> None:
    found = branches(
        "SELECT x.id, y.id AS other FROM (SELECT id FROM a UNION SELECT m FROM b) x, "
        "(SELECT n AS id FROM a UNION ALL SELECT id FROM b) y"
    )
    assert found == [
        f"SELECT x.id AS id, y.id AS other FROM (SELECT {x}) AS x, (SELECT {y}) AS y"
        for x in ("a.id AS id FROM public.a AS a", "b.m AS id FROM public.b AS b")
        for y in ("a.n AS id FROM public.a AS a", "b.id AS id FROM public.b AS b")
    ]


def test_a_branch_has_the_order_and_limit_of_the_whole_and_what_it_reads_of_its_with() -> None:
    text = (
        "WITH w AS (SELECT id FROM a), v AS (SELECT m FROM b) SELECT id FROM w UNION SELECT m FROM v ORDER BY 1 LIMIT 3"
    )
    assert branches(text) == [
        "WITH w AS (SELECT a.id AS id FROM public.a AS a) SELECT w.id AS id FROM w AS w ORDER BY id LIMIT 3",
        "WITH v AS (SELECT b.m AS m FROM public.b AS b) SELECT v.m AS id FROM v AS v ORDER BY id LIMIT 3",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT id FROM a UNION SELECT m FROM b LIMIT 1", "some rows of a UNION in no order"),
        (" UNION ".join(["SELECT id FROM a"] * 65), "more than 64 combinations"),
    ],
)
def test_what_can_not_be_taken_apart_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        branches(text)
