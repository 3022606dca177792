"""A warehouse as a view's target, on a real base: its table is the query's result, wherever the job ends, and there are
few commits."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from cdc.config.config_file import Config
from cdc.config.stores import WarehouseConfig
from cdc.kafka.daemon_thread import do_nothing
from cdc.model.events import TableId, pack_version
from sinks.errors import SinkError
from sinks.sql.sink import SqlSink
from sinks.warehouse import gathering as gathering_module
from sinks.warehouse.catalog import CatalogPlace, catalog_place
from sinks.warehouse.gathering import GatheringSink
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import WarehouseSink
from spark_jobs.view_targets import WarehouseTargets
from tests.conformance.stores import url_of
from tests.support.view_tables import CUSTOMERS, ORDERS, SHOP
from tests.support.views import Workload, killed, killed_at
from watershed.views.base import Base
from watershed.views.maintainer import ViewMaintainer, define
from watershed.views.target import TargetGenerations
from watershed.views.targets import gathering, open_target, target_contents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOTALS: Final = """
SELECT o.id, c.name, o.placed_at, o.note::text AS note, l.total::numeric(12,2) AS total, l.total::text AS exact,
       l.lines, l.lines > 1 AS has_several, l.skus, l.document::text AS document
  FROM orders o LEFT JOIN customers c ON c.id = o.customer_id
  LEFT JOIN (SELECT order_id, sum(price) AS total, count(*) AS lines, array_agg(sku ORDER BY no) AS skus,
                    jsonb_agg(jsonb_build_object('no', no, 'price', price) ORDER BY no) AS document
               FROM lines GROUP BY order_id) l
    ON l.order_id = o.id
 WHERE o.note::text IS DISTINCT FROM '{"a": 1}'
"""
TABLE: Final = TableId("views", "totals")


class Pipeline:
    """A base that a sink keeps, and jobs of the view `totals`, whose target is a warehouse."""

    def __init__(self, spark: "SparkSession", dsn: str, folder: Path) -> None:
        self.text, self.key = TOTALS, ["id"]
        self.trigger_ms, self.keys_per_batch = 0, 3
        self._spark, self._dsn, self._folder = spark, dsn, folder
        self.base_sink = SqlSink.open(self.settings().sinks["copy"], "shop")  # type: ignore[arg-type]
        self.base_sink.begin_generation(1)
        for one in SHOP:
            self.base_sink.prepare(one.schema)

    def settings(self) -> Config:
        target = {"type": "warehouse", "catalog_uri": f"jdbc:sqlite:{self._folder}/catalog.db"}
        view = {
            "base": "copy",
            "sql": self.text,
            "key": self.key,
            "target": target | {"location": f"{self._folder}/tables"},
            "keys_per_batch": self.keys_per_batch,
        }
        return Config.model_validate(
            {
                "source": {"dsn": self._dsn, "tables": [str(one.id) for one in SHOP]},
                "kafka": {"bootstrap_servers": "127.0.0.1:1"},
                "topics": {"prefix": "shop"},
                "sinks": {"copy": {"type": "sql", "url": url_of(self._dsn)}},
                "views": {"totals": view},
                "spark": {"warehouse_trigger_ms": self.trigger_ms},
            }
        )

    @contextmanager
    def job(self) -> Iterator[ViewMaintainer]:
        settings = self.settings()
        warehouses, section = WarehouseTargets(settings, self._spark), settings.views["totals"].target
        assert isinstance(section, WarehouseConfig)
        open_there = partial(open_target, settings, "totals", warehouses.open)
        generations = TargetGenerations(
            partial(warehouses.slots, "totals", section), partial(warehouses.open, "totals", section)
        )
        with Base(settings.sinks["copy"], "shop") as base:  # type: ignore[arg-type]
            definition = define("totals", settings.views["totals"], base)
            made = ViewMaintainer(definition, base, open_there, do_nothing, gathering(settings, "totals"), generations)
            with closing(made):
                made.start()
                yield made

    def run(self) -> None:
        """One job, until nothing is noted."""
        with self.job() as job:
            self.until_written(job)

    def until_written(self, job: ViewMaintainer) -> None:
        while job.step() or self.query(_BUSY) != [(0,)]:
            pass

    @property
    def place(self) -> CatalogPlace:
        target = self.settings().views["totals"].target
        assert isinstance(target, WarehouseConfig)
        return catalog_place(target, "shop_totals")

    def commits(self) -> int:
        """The number of snapshots of the view's table."""
        with self.place.opened() as catalog:
            return len(catalog.load_table(self.place.place(TABLE).rows).snapshots())

    def namespaces(self) -> set[str]:
        with sqlite3.connect(f"{self._folder}/catalog.db") as connection:
            rows = connection.execute("SELECT table_namespace FROM iceberg_tables").fetchall()
        return {namespace for (namespace,) in rows}

    def held(self) -> list[tuple[Any, ...]]:
        rows = [tuple(one.row.values()) for one in WarehouseReader(self.place).rows(TABLE)]
        return sorted(rows, key=lambda row: row[0])

    def wanted(self) -> list[tuple[Any, ...]]:
        return self.query(f"SELECT * FROM ({self.text}) v ORDER BY id")

    def staged(self) -> list[Path]:
        return list((self._folder / "tables" / ".staging").rglob("*.parquet"))

    def query(self, statement: str) -> list[Any]:
        with psycopg.connect(self._dsn, autocommit=True, options="-c timezone=UTC") as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def orders(self, version: int, ids: range, **values: Any) -> None:
        """Writes orders, whose customers have their numbers."""
        others = {"placed_at": None, "note": None, **values}
        rows = [ORDERS.upsert(pack_version(1, version), id=one, customer_id=one, **others) for one in ids]
        self.base_sink.apply(rows)

    def customers(self, version: int, ids: range, name: str) -> None:
        rows = [CUSTOMERS.upsert(pack_version(1, version), id=one, name=name, region=None) for one in ids]
        self.base_sink.apply(rows)


_BUSY: Final = (
    "SELECT (SELECT count(*) FROM watershed_views_shop.changes) + (SELECT count(*) FROM watershed_views_shop.keys)"
)


@pytest.fixture
def pipeline(spark: "SparkSession", fresh_database: str, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(spark, fresh_database, tmp_path)
    with closing(made.base_sink):
        yield made


# The moments around a write: rows are staged; they are merged; rows are swept; the base knows that they are written.
MOMENTS: Final = ((GatheringSink, "_stage"), (WarehouseSink, "take"), (WarehouseSink, "sweep"), (Base, "written"))


@contextmanager
def killed_job(chance: random.Random) -> Iterator[None]:
    """Ends the job without its close, at one of the moments, before or after it."""
    with pytest.MonkeyPatch.context() as patch, killed(chance, MOMENTS, calls_max=2):
        patch.setattr(GatheringSink, "close", lambda _: None)
        yield


def test_the_table_is_the_querys_result_wherever_the_job_ends(pipeline: Pipeline) -> None:
    workload, chance = Workload(pipeline.base_sink, SHOP, 5), random.Random(5)
    for _ in range(4):
        with killed_job(chance), pipeline.job() as job:
            for _ in range(3):
                workload.step()
            workload.truncate()
            workload.step()
            pipeline.until_written(job)
    workload.fill()
    pipeline.run()
    assert pipeline.held() == pipeline.wanted() != []
    assert pipeline.staged() == []


def test_many_keys_are_one_commit(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline.keys_per_batch = 100
    pipeline.orders(1, range(1200))
    with pipeline.job() as job:
        assert pipeline.commits() == 1
        pipeline.customers(2, range(900), "n")
        pipeline.until_written(job)
        assert pipeline.commits() == 2
        monkeypatch.setattr(gathering_module, "FILE_BYTES_MAX", 1)  # a file for each batch
        pipeline.customers(3, range(500), "m")
        pipeline.base_sink.apply([ORDERS.delete(pack_version(1, 3), id=one) for one in range(200)])
        pipeline.until_written(job)
        assert pipeline.commits() == 3
    assert pipeline.held() == pipeline.wanted()
    assert len(pipeline.held()) == 1000


def test_a_write_waits_for_the_trigger(pipeline: Pipeline) -> None:
    pipeline.trigger_ms = 3_600_000
    pipeline.orders(1, range(3))
    with pipeline.job() as job:
        for version in range(2, 6):
            pipeline.customers(version, range(3), f"n{version}")
            while job.step():
                pass
        assert pipeline.commits() == 2  # it is filled, and written once
        assert [row[1] for row in pipeline.held()] == ["n2"] * 3
        assert pipeline.query(_BUSY) == [(3,)]
    pipeline.trigger_ms = 0
    pipeline.run()
    assert pipeline.held() == pipeline.wanted()
    assert pipeline.commits() == 3


def test_a_changed_definition_is_filled_and_swept(pipeline: Pipeline) -> None:
    pipeline.orders(1, range(3))
    pipeline.run()
    pipeline.text += " AND o.id <> 2"
    pipeline.run()
    assert [row[0] for row in pipeline.held()] == [0, 1]
    former = pipeline.held()
    pipeline.text = TOTALS.replace("SELECT o.id,", "SELECT o.id, o.customer_id,", 1)
    with killed_at(TargetGenerations, "serve", is_before=True):
        pipeline.run()
    assert pipeline.held() == former, "readers see the former table until the new one takes its place"
    pipeline.run()
    assert pipeline.namespaces() == {"shop_totals.views", "shop_totals.views__deleted"}
    assert pipeline.held() == pipeline.wanted() != []
    pipeline.key = ["id", "customer_id"]
    pipeline.run()
    assert pipeline.held() == pipeline.wanted() != []
    # The base is lost, and knows no version of the schema any more.
    pipeline.query("DROP SCHEMA watershed_views_shop CASCADE")
    pipeline.base_sink.apply([ORDERS.delete(pack_version(1, 2), id=1)])
    pipeline.run()
    assert pipeline.held() == pipeline.wanted()
    assert [row[0] for row in pipeline.held()] == [0, 2]


def test_a_row_that_its_columns_can_not_hold_is_rejected_by_its_key(pipeline: Pipeline) -> None:
    pipeline.orders(1, range(2), placed_at="2026-01-01T00:00:00Z")
    with pipeline.job() as job:
        pipeline.orders(2, range(1), placed_at="infinity")
        pipeline.until_written(job)
        assert [row[0] for row in pipeline.held()] == [1]
        ((key, reason),) = pipeline.query("SELECT key, reason FROM watershed_views_shop.rejected")
        assert (key, "placed_at" in reason) == (["0"], True)
        pipeline.orders(3, range(1), placed_at="2026-01-02T00:00:00Z")
        pipeline.until_written(job)
    assert pipeline.held() == pipeline.wanted()
    assert pipeline.query("SELECT key FROM watershed_views_shop.rejected") == []


def test_a_table_that_was_removed_is_created_and_filled(pipeline: Pipeline) -> None:
    pipeline.orders(1, range(2))
    pipeline.run()
    settings = pipeline.settings()
    names = ["shop_totals.views.totals", "shop_totals.views__deleted.totals"]
    assert sorted(target_contents(settings, "totals", removes=False)) == names
    target_contents(settings, "totals", removes=True)
    assert target_contents(settings, "totals", removes=False) == []
    pipeline.run()
    assert pipeline.held() == pipeline.wanted() != []


def test_a_process_without_spark_says_which_command_has_it(pipeline: Pipeline) -> None:
    with pytest.raises(SinkError, match="the target of view totals is written by Spark"):
        open_target(pipeline.settings(), "totals")
