"""A view over its base as it is now: what is missing is named, with who makes it, and what can't be kept is refused."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from cdc.config.event_logs import SCHEMA_OF_LOGS
from cdc.config.views import MINUTES, ViewConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from sinks.errors import SinkError
from watershed.views.base import Base
from watershed.views.definition import ViewDefinition
from watershed.views.maintainer import define
from watershed.views.tracing import BaseColumn

ORDERS, LINES = TableId("public", "orders"), TableId("public", "lines")
LOG = TableId(SCHEMA_OF_LOGS, "clicks")
MANY = "abs(floor(ceil(sign(round({})))))"  # several functions
TEXT = "SELECT o.id, sum(l.price) AS total FROM orders AS o JOIN lines AS l ON l.order_id = o.id GROUP BY o.id"


def named(*names: str) -> dict[str, BaseColumn]:
    return {name: BaseColumn(number, "bigint") for number, name in enumerate(names, 1)}


class FakeBase:
    """A base that holds these tables. Its users have made an aggregate, `own_sum`, and a volatile `own_clock`."""

    def __init__(self, *held: TableId, kept: Sequence[TableId] = (ORDERS, LINES)) -> None:
        self.kept = frozenset(kept)
        self.held = {table: ("copies", table.name) for table in held}
        self.shapes = {ORDERS: named("id", "at"), LINES: named("order_id", "no", "price"), LOG: named("id", "n")}
        self.of_rows, self.volatile = {"own_sum"}, {"own_clock"}

    def places(self) -> dict[TableId, tuple[str, str]]:
        return self.held

    def columns(self, places: Sequence[TableId]) -> dict[TableId, dict[str, BaseColumn]]:
        return {table: self.shapes.get(table, named("id")) for table in places}

    def aggregates(self, functions: Sequence[str]) -> list[str]:
        assert list(functions) == sorted(functions)
        return [name for name in functions if name in self.of_rows]

    def changing(self, functions: Sequence[str]) -> list[str]:
        assert list(functions) == sorted(functions)
        return [name for name in functions if name in self.volatile]

    def with_read_columns(self, definition: ViewDefinition) -> ViewDefinition:
        return definition


def defined(base: FakeBase, text: str = TEXT, *key: str, fold: dict[str, Any] | None = None) -> ViewDefinition:
    config = ViewConfig.model_validate(
        {"base": "store", "sql": text, "key": key or ("id",), "target": {"type": "cache", "url": "redis://h"}}
        | ({} if fold is None else {"fold": fold})
    )
    return define("totals", config, cast("Base", base))


def test_a_view_has_the_places_and_columns_of_its_tables() -> None:
    definition = defined(FakeBase(ORDERS, LINES, TableId("public", "other")))
    assert definition.name == "totals"
    assert definition.places == {ORDERS: ("copies", "orders"), LINES: ("copies", "lines")}
    assert list(definition.columns[LINES]) == ["order_id", "no", "price"]
    assert definition.fold is None


def test_tables_that_its_sink_has_yet_to_prepare_are_waited_for() -> None:
    with pytest.raises(SinkError, match="view totals: its base store holds no tables yet") as nothing:
        defined(FakeBase())
    assert nothing.value.hint == "cdc sink run store"
    with pytest.raises(SinkError, match=r"has not prepared public\.lines yet") as missing:
        defined(FakeBase(ORDERS))
    assert missing.value.hint == "cdc sink run store"


def test_a_table_that_nothing_keeps_is_a_mistake_of_the_query() -> None:
    """It is not waited for: no sink will ever prepare it."""
    with pytest.raises(ConfigError, match="lines"):
        defined(FakeBase(ORDERS, kept=[ORDERS]))


def test_who_makes_a_log_or_the_minutes_is_named() -> None:
    """Before it is said that the base holds nothing: no sink makes them."""
    with pytest.raises(SinkError, match="nothing has loaded the event log clicks yet") as log:
        defined(FakeBase(kept=[LOG]), f"SELECT id, n FROM {SCHEMA_OF_LOGS}.clicks")
    assert log.value.hint == "cdc view run clicks"
    text = f"SELECT o.id FROM orders o JOIN {MINUTES} m ON m.at = o.at"
    with pytest.raises(SinkError, match=f"no job has created {MINUTES} in its base yet") as minutes:
        defined(FakeBase(ORDERS, kept=[ORDERS, MINUTES]), text)
    assert minutes.value.hint == "cdc view run totals"


def test_a_table_without_columns_no_longer_exists() -> None:
    base = FakeBase(ORDERS, LINES)
    base.shapes[LINES] = {}
    with pytest.raises(SinkError, match=r"table public\.lines no longer exists in its base store"):
        defined(base)
    base.shapes |= {LINES: named("order_id", "price"), TableId("public", "other"): {}}
    base.held[TableId("public", "other")] = ("copies", "other")
    assert defined(base).name == "totals", "of the others nothing is read"


def test_a_key_that_is_computed_from_many_rows_is_refused() -> None:
    """The parser does not know what users have made."""
    with pytest.raises(ConfigError, match=r"own_sum\(\) computes its key from many rows"):
        defined(FakeBase(ORDERS, LINES), "SELECT abs(own_sum(o.id)) AS id, o.at FROM orders o GROUP BY o.at")
    text = f"SELECT {MANY.format('o.id')} AS id, own_sum(o.at) AS at FROM orders o GROUP BY o.id"
    assert defined(FakeBase(ORDERS, LINES), text).query.key_functions == {"abs", "ceil", "floor", "round", "sign"}


def test_a_query_that_changes_by_itself_is_refused() -> None:
    text = "SELECT o.id, own_clock(o.at) AS r FROM orders o"
    with pytest.raises(ConfigError, match=r"view totals: own_clock\(\) is not deterministic"):
        defined(FakeBase(ORDERS, LINES), text)


def test_a_fold_takes_the_events_themselves() -> None:
    fold = {"function": "tests.unit.watershed.views.test_define:apply", "order": ["n"], "columns": {"a": "text"}}
    base = FakeBase(LOG, kept=[LOG])
    made = defined(base, f"SELECT id, n FROM {SCHEMA_OF_LOGS}.clicks", fold=fold).fold
    assert made is not None and (made.log, made.key, made.order) == (LOG, ("id",), ("n",))
    with pytest.raises(ConfigError, match=r"own_sum\(\) makes one row of several events"):
        defined(base, f"SELECT id, n, own_sum(n) AS c, {MANY.format('n')} AS m FROM {SCHEMA_OF_LOGS}.clicks", fold=fold)


def apply(state: Any, event: Any) -> Any:
    return state or event
