"""Views that are filled again: because a target has lost its rows, and what a filling forgets."""

from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

import pytest

from cdc.config.stores import SqlConfig
from cdc.model.events import pack_version
from sinks.errors import SinkError
from sinks.sql.sink import SqlSink
from tests.support.view_tables import CUSTOMERS, Query
from tests.support.views import Views, base_sink, until_idle
from watershed.views.base import Base
from watershed.views.definition import ViewDefinition
from watershed.views.states import ViewState

pytestmark = pytest.mark.whole

NAMED: Final = Query("SELECT id, name FROM customers", ["id"])


@pytest.fixture
def shop(config: SqlConfig) -> Iterator[SqlSink]:
    with base_sink(config, [CUSTOMERS]) as sink:
        yield sink


def customer(number: int, version: int = 1, **values: Any) -> Any:
    return CUSTOMERS.upsert(pack_version(1, version), id=number, **values)


def test_a_target_that_has_lost_its_rows_is_filled_again_without_a_change(views: Views, shop: SqlSink) -> None:
    shop.apply([customer(number, name=f"n{number}") for number in range(1, 5)])
    with views.job("named", NAMED) as maintainer, patch("watershed.views.maintainer.TARGET_CHECK_S", 0.0):
        until_idle(maintainer)
        views.query("DROP TABLE views.named")
        with pytest.raises(SinkError, match="its target has lost rows"):
            until_idle(maintainer)
    with views.job("named", NAMED):  # as `cdc view run` goes on
        assert views.assert_equal("named", NAMED) == 4
    assert views.waits == 2


def test_a_filling_forgets_rejected_rows_that_are_good_now(views: Views, shop: SqlSink) -> None:
    query = Query("SELECT id, 1 / length(name) AS share FROM customers", ["id"])

    def rejected() -> int:
        with views.base() as base:
            counts = base.counts("shares")
            assert counts is not None
            return counts.rejected

    with views.job("shares", query) as maintainer:
        shop.apply([customer(1, name="")])
        until_idle(maintainer)
        assert rejected() == 1
    shop.apply([customer(1, 2, name="a")])
    with views.base() as base:
        base.ask_rebuild("shares")
    with views.job("shares", query) as maintainer:
        until_idle(maintainer)
        assert views.assert_equal("shares", query) == 1
        assert rejected() == 0


def test_a_rebuild_that_is_asked_for_while_the_view_is_filled_is_done_afterwards(views: Views, shop: SqlSink) -> None:
    shop.apply([customer(number, name=f"n{number}") for number in range(1, 5)])
    sweep = SqlSink.sweep
    states: list[ViewState | None] = []

    def ask_and_sweep(*arguments: Any) -> int:
        with views.base() as base:
            if not states:
                views.query("UPDATE views.named SET name = 'edited' WHERE id = 1")
                base.ask_rebuild("named")
            states.append(base.state("named"))
        return sweep(*arguments)

    with patch.object(SqlSink, "sweep", ask_and_sweep), views.job("named", NAMED) as maintainer, views.base() as base:
        rebuild = base.state("named")
        until_idle(maintainer)
        serving = base.state("named")
    assert [state and state.state for state in (*states, rebuild, serving)] == [
        "rebuild",
        "filling",
        "rebuild",
        "serving",
    ]
    assert views.assert_equal("named", NAMED) == 4
    assert views.waits == 2


MADE_AGAIN: Final = (
    "CREATE TABLE other (LIKE customers INCLUDING ALL); DROP TABLE customers; ALTER TABLE other RENAME TO customers"
)
REGIONS: Final = Query("SELECT region, count(*) AS n FROM customers GROUP BY region", ["region"])


@pytest.mark.parametrize(("owner", "method"), [(Base, "keys"), (Base, "install_triggers"), (ViewDefinition, "doubles")])
def test_a_base_table_that_is_created_again_meanwhile_is_not_read_while_it_is_empty(
    owner: type, method: str, views: Views, shop: SqlSink
) -> None:
    """In the midst of a step and of a filling: its columns are the same, its rows are yet to come."""
    original = getattr(owner, method)

    def made_again(*arguments: Any) -> Any:
        result = original(*arguments)
        views.query(MADE_AGAIN)
        return result

    shop.apply([customer(number, region="north") for number in (1, 2)])
    with views.job("regions", REGIONS) as maintainer:
        views.query("UPDATE customers SET region = 'south' WHERE id = 1")
        if method != "keys":
            with views.base() as base:
                base.ask_rebuild("regions")
        with (
            patch.object(owner, method, made_again),
            pytest.raises(SinkError, match="view regions: a table of its base was dropped and created again"),
        ):
            maintainer.step()
    assert views.query("SELECT region, n FROM views.regions") == [("north", 2)]
    views.query("INSERT INTO customers (id, region) VALUES (1, 'south'), (2, 'north'), (3, 'north')")
    with views.job("regions", REGIONS):  # as `cdc view run` goes on
        assert views.assert_equal("regions", REGIONS) == 2
