"""Tables of a warehouse read by a tag, by each engine as docs/how-to/read-at-one-position.md shows it."""

import json
import re
import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc.config.config_file import load_config
from cdc.config.stores import WarehouseConfig, sink_config
from sinks.warehouse.catalog import CatalogPlace, catalog_place
from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.faults.bank import SCHEMA, SUM, TABLES, TOTAL, Reads, settings, transfers
from tests.support.captured import Captured, under_capture
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs/how-to/read-at-one-position.md"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
TAGS = 4


def test_tables_with_a_tag_are_as_of_one_position_in_each_engine(
    postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path, spark: SparkSession
) -> None:
    name = f"t{secrets.token_hex(5)}"
    with (
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, tmp_path, SCHEMA, list(TABLES)) as bank,
    ):
        bank.settings = settings(tmp_path, "")
        del bank.settings["sinks"]["books"]
        bank.start().await_said("streaming")
        bank.await_caught_up()
        assert bank.cdc("warehouse", "tags") == "lake: no tag is set yet\n"
        with SinkJob(bank.config(), "lake") as job:
            job.wait_applied(bank.log_end(), "lake")
            with transfers(bank, 1, Reads(), pause_s=0.01):
                eventually(lambda: len(_complete_tags(bank)) >= TAGS, 60.0, lambda: f"tags are set\n{job.said()}")
            bank.await_caught_up()
            end = bank.progress()
            eventually(lambda: _lsn(_complete_tags(bank)[0]) >= end, 60.0, lambda: f"the end is tagged\n{job.said()}")
        tags, newest = _complete_tags(bank), bank.query(TOTAL)[0]
        section = sink_config(load_config(bank.config()).sinks, "lake")
        assert isinstance(section, WarehouseConfig)
        place = catalog_place(section, name)
    session = _session(spark, place)
    found = []
    for tag in tags:
        python, statement = (_adapted(block, place, tag["name"]) for block in _blocks())
        read: dict[str, Any] = {}
        exec(python, read)  # noqa: S102 - of our own page
        found.append((read["total"], _state(read["checking"])))
        assert session.sql(statement).collect() == [(SUM,)]
        for table in TABLES:
            snapshot = read["catalog"].load_table((name, *table.split("."))).snapshot_by_name(tag["name"])
            assert snapshot.snapshot_id == tag["snapshots"][f"{name}.{table}"]
    assert {total for total, _ in found} == {SUM}
    assert len({state for _, state in found}) >= TAGS
    assert found[0] == newest
    assert [tag["name"] for tag in tags] == sorted((tag["name"] for tag in tags), reverse=True)


def _complete_tags(bank: Captured) -> list[dict[str, Any]]:
    """Returns the tags that every table has, the newest first."""
    tags = [json.loads(line) for line in bank.cdc("warehouse", "tags", "--json").splitlines()]
    return [tag for tag in tags if not tag["missing"]]


def _lsn(tag: dict[str, Any]) -> int:
    return int(tag["name"].rpartition("-")[2], 16)


def _session(spark: SparkSession, place: CatalogPlace) -> SparkSession:
    """A session as any user of Spark opens it."""
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.watershed", SPARK_CATALOG)
    for name, value in place.spark_properties.items():
        session.conf.set(f"spark.sql.catalog.watershed.{name}", value)
    return session


def _blocks() -> tuple[str, str]:
    """Returns the page's code in Python, and its statement for Spark."""
    section = PAGE.read_text(encoding="utf-8").partition("## Warehouse")[2]
    python = "".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    (statement,) = re.findall(r"```sql\n([^`]*VERSION AS OF[^`]*);\n```", section)
    return python, statement


def _adapted(block: str, place: CatalogPlace, tag: str) -> str:
    """Puts the names of this warehouse where the page has its example's."""
    for example, ours in {
        "/data/warehouse/catalog.db": str(place.database),
        "file:///data/warehouse/tables": place.location,
        "ws-1-0000000001A2B3C8": tag,
        '"shop"': f'"{place.namespace}"',
        "watershed.shop": f"watershed.{place.namespace}",
    }.items():
        block = block.replace(example, ours)
    return block


def _state(checking: pa.Table) -> int:
    return sum(row["id"] * row["balance"] for row in checking.to_pylist())
