"""The demo deletes what an earlier demo left, and nothing else."""

from pathlib import Path

import pytest
from sqlglot import exp, parse_one

from cdc.config.config_file import load_config
from cdc.config.stores import SqlConfig, WarehouseConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from watershed.demo.followed import FOLLOWED_TOTAL
from watershed.demo.place import BASE, demo_folder, write_config
from watershed.devstack.endpoints import Endpoints
from watershed.views.tracing import trace

ENDPOINTS = Endpoints(
    {
        "postgres": "postgresql://watershed@127.0.0.1:1/watershed",
        "kafka": "127.0.0.1:2",
        "opensearch": "http://127.0.0.1:3",
        "redis": "redis://127.0.0.1:4",
    }
)


def test_a_new_folder_is_made_with_a_place_for_logs(tmp_path: Path) -> None:
    with demo_folder(tmp_path / "a" / "demo") as folder:
        assert folder == tmp_path / "a" / "demo"
        assert (folder / "logs").is_dir()


def test_what_an_earlier_demo_left_is_deleted(tmp_path: Path) -> None:
    with demo_folder(tmp_path / "demo") as folder:
        (folder / "checkpoints" / "deep").mkdir(parents=True)
        (folder / "watershed.yml").write_text("old")
        (folder / "logs" / "capture.log").write_text("old")
    with demo_folder(tmp_path / "demo") as folder:
        assert not (folder / "checkpoints").exists() and not (folder / "watershed.yml").exists()
        assert list((folder / "logs").iterdir()) == []


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("precious")
    with pytest.raises(ConfigError, match="the demo did not create"), demo_folder(tmp_path):
        pass
    assert precious.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [precious]


def test_a_link_is_removed_and_what_it_names_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    with demo_folder(tmp_path / "demo") as folder:
        (folder / "link").symlink_to(elsewhere)
    with demo_folder(tmp_path / "demo") as folder:
        assert not (folder / "link").exists()
    assert (elsewhere / "precious").exists()


def test_the_configuration_file_can_be_read_back(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, ENDPOINTS))
    assert config.source.dsn.get_secret_value() == ENDPOINTS.dsn
    assert (config.topics.prefix, config.topics.partitions) == ("shop", 2)
    assert config.source.table_ids[0] == TableId("public", "customers")
    assert len(config.source.stored_table_ids) == 4
    assert config.source.outbox == ("cdc.outbox",)
    assert config.outbox.messages is not None and config.outbox.messages.placements[0].alias == "eventType"
    assert list(config.sinks) == ["search", "cache", "warehouse"]
    warehouse = config.sinks["warehouse"]
    assert isinstance(warehouse, WarehouseConfig)
    assert warehouse.iceberg_catalog.address == f"jdbc:sqlite:{tmp_path}/warehouse/catalog.db"
    assert BASE not in config.sinks and not config.views


def test_with_views_the_configuration_has_their_base_and_what_they_read(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, ENDPOINTS, has_views=True))
    base = config.sinks[BASE]
    assert isinstance(base, SqlConfig)
    assert base.url.get_secret_value() == "postgresql://watershed@127.0.0.1:1/shop_views"
    assert config.source.stored_table_ids[-1] == TableId("public", "saved_searches")
    held = {TableId(*name.split(".")): mapping.include or () for name, mapping in base.mapping.items()} | {
        TableId("public", "saved_searches"): ("id", "name", "status", "total_from")
    }
    assert list(config.views) == ["order_documents", "revenue_by_hour", "alerts"]
    for name, view in config.views.items():
        assert set(view.key) <= set(parse_one(view.sql, dialect="postgres", into=exp.Select).named_selects)
        for one in trace(name, view.sql, view.key, held).traces:
            assert one.keys, f"a change of {one.table} finds the rows that it concerns"


def test_the_order_that_the_screen_follows_meets_every_saved_search() -> None:
    assert FOLLOWED_TOTAL >= 499
