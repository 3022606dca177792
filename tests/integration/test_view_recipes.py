"""The recipes for views in the documentation, over a base that a real SQL sink keeps: each is its query's result."""

import re
from collections.abc import Iterable, Iterator
from hashlib import md5
from typing import Any, Final

import psycopg
import pytest

from cdc.config.stores import SqlConfig
from cdc.model.events import pack_version
from sinks.contract import Change
from tests.support.view_tables import CLICKS, CUSTOMERS, PAGE, PAYMENTS, recipes
from tests.support.views import Views, Workload, base_sink, random_run, until_idle
from watershed.views.maintainer import define

pytestmark = [pytest.mark.whole, pytest.mark.long]

RECIPES: Final = recipes()
SEEDS_MAX: Final = 10


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_of_the_documentation_is_its_querys_result(name: str, views: Views, config: SqlConfig) -> None:
    query = RECIPES[name]
    rows, kills, fillings, seed = 0, 0, 0, 0
    with base_sink(config, query.tables) as sink:
        # Few random rows match a stored query, and a job may have no change left to end at.
        while not (rows and kills) and seed < SEEDS_MAX:
            seed += 1
            run = random_run(name, query, views, Workload(sink, query.tables, seed), seed, jobs=2)
            rows, kills, fillings = rows + run.rows, kills + run.kills, fillings + run.fillings
    assert rows > 0
    assert kills > 0, "a job ended without warning"
    assert views.waits == fillings, "the view was filled until a filling came to its end, and then no more"


def test_the_row_of_an_hour_is_found_by_the_index_that_the_page_has_made(views: Views, config: SqlConfig) -> None:
    query = RECIPES["revenue_by_hour"]
    (made,) = re.findall(r"<!-- index: revenue_by_hour -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with base_sink(config, [PAYMENTS]), views.base() as base:
        views.query(
            "INSERT INTO payments SELECT n, 1, timestamptz '2026-01-01Z' + n * interval '1 minute', 'paid', 1 "
            "FROM generate_series(1, 20_000) n"
        )
        views.query(made)
        views.query("ANALYZE payments")
        definition = define("revenue_by_hour", views.config(query), base)
        statement = definition.row([base.described(definition)[0].type_name]).as_string()
        with psycopg.connect(views.dsn) as connection:
            cursor = psycopg.RawCursor(connection).execute(f"EXPLAIN {statement}".encode(), ["2026-01-02 10:00:00+00"])
            plan = "\n".join(line for (line,) in cursor)
    assert "payments_by_hour" in plan, plan
    assert "Seq Scan" not in plan, plan


def test_a_pattern_is_found_and_withdrawn_when_a_late_event_comes_between(views: Views, config: SqlConfig) -> None:
    queries = {name: RECIPES[name] for name in ("paid_after_failures", "failures_of_customers")}

    def payment(number: int, minute: int, status: str) -> Any:
        at = f"2026-01-01T10:{minute:02}:00Z"
        return PAYMENTS.upsert(pack_version(1, number), id=number, customer_id=1, at=at, status=status)

    with base_sink(config, [PAYMENTS, CUSTOMERS]) as sink:
        sink.apply(
            [
                CUSTOMERS.upsert(pack_version(1, 1), id=1),
                *(payment(number, 5 * number, "failed") for number in (1, 2, 3)),
            ]
        )
        with (
            views.job("paid_after_failures", queries["paid_after_failures"]) as one,
            views.job("failures_of_customers", queries["failures_of_customers"]) as other,
        ):
            found = []
            for late in (payment(4, 30, "paid"), payment(5, 12, "paid")):
                sink.apply([late])
                until_idle(one)
                until_idle(other)
                found.append([views.assert_equal(name, query) for name, query in queries.items()])
    assert found == [[1, 1], [0, 0]]


def test_an_estimated_count_is_that_of_a_hyperloglog(views: Views, config: SqlConfig) -> None:
    """The registers of a plain Python implementation, for few users and for more users than registers."""
    query = RECIPES["visitors_of_pages"]
    counts = {"/few": 40, "/many": 3_000}

    def clicks() -> Iterator[Change]:
        users = [(url, user) for url, count in counts.items() for user in range(count)]
        for number, (url, user) in enumerate(users, 1):
            yield CLICKS.upsert(pack_version(1, number), id=number, user_id=user, url=url)

    with base_sink(config, [CLICKS]) as sink, views.job("visitors_of_pages", query) as maintainer:
        sink.apply(list(clicks()))
        until_idle(maintainer)
        rows = views.query("SELECT url, visitors, visitors_estimated, sketch FROM views.visitors_of_pages")
    assert {url: (exact, {int(key): rank for key, rank in sketch.items()}) for url, exact, _, sketch in rows} == {
        url: (count, _registers(range(count))) for url, count in counts.items()
    }
    errors = {url: abs(estimated - exact) / exact for url, exact, estimated, _ in rows}
    assert all(error < 0.1 for error in errors.values()), errors


def _registers(users: Iterable[int]) -> dict[int, int]:
    """Returns the ranks of the registers that are not empty, 1,024 in all."""
    found: dict[int, int] = {}
    for user in users:
        bits = f"{int(md5(str(user).encode(), usedforsecurity=False).hexdigest()[:16], 16):064b}"
        register, rank = int(bits[:10], 2), bits[10:].find("1") + 1 or 55
        found[register] = max(found.get(register, 0), rank)
    return found
