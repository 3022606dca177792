"""The recipes for views in the documentation, over a base that a real SQL sink keeps: each is its query's result."""

from collections.abc import Iterable, Iterator
from hashlib import md5
from typing import Any, Final

import pytest

from cdc.config.sink_settings import SqlConfig
from cdc.model.events import pack_version
from sinks.contract import Change
from tests.support.view_tables import CLICKS, CUSTOMERS, PAYMENTS, recipes
from tests.support.views import Views, Workload, base_config, base_sink, random_run, until_idle

RECIPES: Final = recipes()
SEEDS_MAX: Final = 10


@pytest.fixture
def config(fresh_database: str) -> SqlConfig:
    return base_config(fresh_database)


@pytest.fixture
def views(config: SqlConfig, fresh_database: str) -> Views:
    return Views(config, fresh_database)


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_of_the_documentation_is_its_querys_result(name: str, views: Views, config: SqlConfig) -> None:
    query = RECIPES[name]
    rows, seed = 0, 0
    with base_sink(config, query.tables) as sink:
        while not rows and seed < SEEDS_MAX:  # few random rows make a pattern, or match a stored query
            seed += 1
            rows = random_run(name, query, views, Workload(sink, query.tables, seed), seed, jobs=1)
    assert rows > 0
    assert views.waits == 1, "the view was filled once, at its beginning"


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
