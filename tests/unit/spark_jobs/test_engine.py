"""The engine on a real session: what the conformance suite of the warehouse does not come across."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.errors import SinkError
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.engine import Conflict
from sinks.warehouse.evolution import Evolution
from spark_jobs.engine import SparkEngine

TABLE = ("shop", "t")


@pytest.fixture
def where(tmp_path: Path) -> CatalogPlace:
    return CatalogPlace(tmp_path / "catalog.db", (tmp_path / "tables").as_uri(), "shop")


@pytest.fixture
def engine(spark: SparkSession, where: CatalogPlace) -> SparkEngine:
    made = SparkEngine(spark, where)
    made.run("CREATE NAMESPACE watershed.shop")
    made.run("CREATE TABLE watershed.shop.t (id bigint) USING iceberg TBLPROPERTIES ('a' = 'b')")
    return made


def insert(engine: SparkEngine, number: int, **properties: str) -> None:
    engine.source("numbers", pa.table({"id": [number]}))
    engine.run("INSERT INTO watershed.shop.t SELECT id FROM numbers", properties)


def test_history_goes_back_with_each_commits_own_properties(engine: SparkEngine) -> None:
    assert list(engine.history(TABLE)) == []
    insert(engine, 1, batch="first")
    insert(engine, 2)
    newest, oldest = engine.history(TABLE)
    assert (newest.parent_id, oldest.parent_id) == (oldest.id, None)
    assert oldest.summary["batch"] == "first"
    assert "batch" not in newest.summary, "a property is for one statement"
    assert engine.query("SELECT id FROM watershed.shop.t ORDER BY id").column("id").to_pylist() == [1, 2]


def test_two_engines_share_nothing_but_the_tables(
    spark: SparkSession, where: CatalogPlace, engine: SparkEngine
) -> None:
    other = SparkEngine(spark, where)
    engine.source("numbers", pa.table({"id": [7]}))
    with pytest.raises(SinkError):
        other.query("SELECT * FROM numbers")
    insert(engine, 1)
    assert other.query("SELECT * FROM watershed.shop.t").num_rows == 1


def test_what_is_not_there_has_no_properties(engine: SparkEngine) -> None:
    properties = engine.table_properties(TABLE)
    assert properties is not None and properties["a"] == "b"
    assert engine.table_properties(("shop", "none")) is None
    assert engine.table_properties(("none", "t")) is None
    assert engine.namespace_properties(("none",)) is None
    assert engine.namespace_properties(("shop",)) is not None
    assert engine.view_properties(("shop", "none")) is None
    engine.drop(("shop", "none"))


def test_columns_and_properties_change_at_once_or_not_at_all(engine: SparkEngine) -> None:
    insert(engine, 1)
    found = engine.table_properties(TABLE)
    assert found is not None
    again = Evolution(dropped=("id",), added=(("id", "int"), ("price", "decimal(5,2)"), ("tags", "array<string>")))
    engine.evolve(TABLE, again, found, {"noted": "1"})
    assert dict(engine.table_columns(TABLE)) == {"id": "int", "price": "decimal(5,2)", "tags": "array<string>"}
    assert engine.query("SELECT id FROM watershed.shop.t").column("id").to_pylist() == [None], "another column"
    with pytest.raises(Conflict):
        engine.evolve(TABLE, Evolution(dropped=("tags",)), found, {"noted": "2"})
    noted = engine.table_properties(TABLE)
    assert noted is not None and noted["noted"] == "1"
    engine.evolve(TABLE, Evolution(widened=(("id", "bigint"), ("price", "decimal(9,2)"))), noted, {"noted": "2"})
    assert dict(engine.table_columns(TABLE)) == {"id": "bigint", "price": "decimal(9,2)", "tags": "array<string>"}


def test_a_table_whose_metadata_is_gone_can_be_dropped(engine: SparkEngine, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "tables")
    assert engine.table_properties(TABLE) is None
    engine.drop(TABLE)
    engine.run("CREATE TABLE watershed.shop.t (id bigint) USING iceberg")
    assert engine.table_properties(TABLE) is not None


def test_a_catalog_that_was_deleted_is_not_read_from_its_open_file(engine: SparkEngine, where: CatalogPlace) -> None:
    where.database.unlink()
    assert engine.namespace_properties(("shop",)) is None
    assert engine.table_properties(TABLE) is None


def test_an_error_says_the_cause_without_the_statement(engine: SparkEngine) -> None:
    with pytest.raises(SinkError) as failed:
        engine.run("INSERT INTO watershed.shop.missing VALUES (123456789)")
    assert "missing" in failed.value.message
    assert "123456789" not in str(failed.value)
    assert "\n" not in failed.value.message and failed.value.hint


def test_a_name_is_not_taken_for_a_variable(engine: SparkEngine) -> None:
    engine.run("CREATE TABLE watershed.shop.u (`${env:HOME}` bigint) USING iceberg")
    assert list(engine.table_columns(("shop", "u"))) == ["${env:HOME}"]


def test_whole_rows_are_read_one_after_the_other_by_that_statement_only(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg reads 5,000 rows at once otherwise, however large they are."""
    insert(engine, 1)
    session = engine._session
    plans = []

    def sql(statement: str) -> DataFrame:
        made = SparkSession.sql(session, statement)
        plans.append(SparkSession.sql(session, "EXPLAIN SELECT * FROM watershed.shop.t").toArrow().to_pylist()[0])
        return made

    monkeypatch.setattr(session, "sql", sql)
    for by_row in (True, False):
        engine.run("INSERT INTO watershed.shop.t SELECT id + 1 FROM watershed.shop.t", by_row=by_row)
    assert ["ColumnarToRow" in plan["plan"] for plan in plans] == [False, True]
