"""Upkeep of a warehouse by its configuration."""

from pathlib import Path
from typing import TYPE_CHECKING

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from spark_jobs.warehouse_commands import maintain_warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_empty_warehouse_has_nothing_to_do(spark: "SparkSession", tmp_path: Path) -> None:
    config = Config.model_validate(
        {
            "source": {"dsn": "postgresql://nobody@127.0.0.1/none", "tables": ["public.a"]},
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "topics": {"prefix": "shop"},
            "sinks": {"warehouse": {"catalog_uri": f"jdbc:sqlite:{tmp_path}/c/catalog.db", "location": str(tmp_path)}},
        }
    )
    section = config.sinks["warehouse"]
    assert isinstance(section, WarehouseConfig)
    assert maintain_warehouse(section, "shop", spark) == []
