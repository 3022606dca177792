"""The demo's views fit the tables that their base holds, and their configuration is valid."""

from pathlib import Path

import pytest
from sqlglot import exp, parse_one

from cdc.config.config_file import load_config
from cdc.config.stores import SqlConfig
from cdc.model.events import TableId
from tests.unit.watershed.demo.test_place import ENDPOINTS
from watershed.demo.place import write_config
from watershed.demo.shop_views import BASE, SHOP_VIEWS, ShopView, base_url
from watershed.views.tracing import trace


def test_the_configuration_has_the_base_and_the_views_and_without_views_neither(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, ENDPOINTS, has_views=True))
    base = config.sinks[BASE]
    assert isinstance(base, SqlConfig)
    assert base.url.get_secret_value() == base_url(ENDPOINTS.dsn) == "postgresql://watershed@127.0.0.1:1/shop_views"
    assert list(config.views) == [view.name for view in SHOP_VIEWS]
    assert config.source.stored_table_ids[-1] == TableId("public", "saved_searches")
    plain = load_config(write_config(tmp_path, ENDPOINTS))
    assert BASE not in plain.sinks
    assert not plain.views
    assert len(plain.source.stored_table_ids) == 4


@pytest.mark.parametrize("view", SHOP_VIEWS, ids=lambda view: view.name)
def test_a_views_query_reads_what_the_base_holds_and_returns_its_columns(view: ShopView, tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, ENDPOINTS, has_views=True))
    held = {
        TableId(*name.split(".")): mapping.include or ()
        for name, mapping in config.sinks[BASE].mapping.items()
        if mapping.include
    } | {TableId("public", "saved_searches"): ("id", "name", "status", "total_from")}
    query = trace(view.name, view.sql, view.key, held)
    assert parse_one(view.sql, dialect="postgres", into=exp.Select).named_selects == list(view.columns)
    for one in query.traces:
        assert one.keys, f"a change of {one.table} finds the rows that it concerns"
