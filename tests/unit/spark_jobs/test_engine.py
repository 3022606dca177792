"""The engine on a real session: what the conformance suite of the warehouse does not come across."""

import shutil
import time
import uuid
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession

from sinks.errors import SinkError
from sinks.warehouse import maintenance
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.engine import Conflict, DataFile, NewFiles, VectorPlace
from sinks.warehouse.evolution import Evolution
from sinks.warehouse.maintenance import Maintenance
from sinks.warehouse.vectors import puffin_file
from spark_jobs.engine import SparkEngine

TABLE = ("shop", "t")


@pytest.fixture
def where(tmp_path: Path) -> CatalogPlace:
    return CatalogPlace(tmp_path / "catalog.db", (tmp_path / "tables").as_uri(), "shop")


@pytest.fixture
def engine(spark: SparkSession, where: CatalogPlace) -> SparkEngine:
    made = SparkEngine(spark, where)
    made.run("CREATE NAMESPACE watershed.shop")
    made.run(
        "CREATE TABLE watershed.shop.t (id bigint) USING iceberg TBLPROPERTIES ('a' = 'b', 'format-version' = '3')"
    )
    return made


def insert(engine: SparkEngine, number: int, **properties: str) -> None:
    engine.run(f"INSERT INTO watershed.shop.t VALUES ({number})", properties)


def stage(folder: Path, *rows: tuple[float, int]) -> str:
    """A file of keys and versions."""
    file = folder / f"{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.table({"id": [key for key, _ in rows], "ws_version": [version for _, version in rows]}), file)
    return file.as_uri()


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
    spark: SparkSession, where: CatalogPlace, engine: SparkEngine, tmp_path: Path
) -> None:
    other = SparkEngine(spark, where)
    engine.staged_source("numbers", [stage(tmp_path, (7, 1))], "id bigint", None, is_small=True)
    assert engine.query("SELECT id FROM numbers").column("id").to_pylist() == [7]
    with pytest.raises(SinkError):
        other.query("SELECT * FROM numbers")
    insert(engine, 1)
    assert other.query("SELECT * FROM watershed.shop.t").num_rows == 1


@pytest.mark.parametrize("is_small", [True, False])
def test_of_equal_keys_in_staged_files_the_newest_counts(engine: SparkEngine, tmp_path: Path, is_small: bool) -> None:
    """Which tasks can't see: 0.0 and -0.0 may lie in two partitions."""
    files = [stage(tmp_path, (0.0, 3), (1.5, 1)), stage(tmp_path, (-0.0, 4))]
    engine.staged_source("s", files, "id double, ws_version bigint", ["id"], is_small=is_small)
    found = engine.query("SELECT id, ws_version FROM s ORDER BY ws_version").to_pylist()
    assert [(str(row["id"]), row["ws_version"]) for row in found] == [("1.5", 1), ("-0.0", 4)]


def test_rows_of_one_file_may_be_replaced_by_several_tasks(engine: SparkEngine) -> None:
    """Each makes a deletion vector; a table whose file has two is broken. Iceberg joins them at the commit."""
    engine.run("ALTER TABLE watershed.shop.t SET TBLPROPERTIES ('format-version' = '3')")
    engine.run("ALTER TABLE watershed.shop.t SET TBLPROPERTIES ('write.merge.mode' = 'merge-on-read')")
    engine.run("INSERT INTO watershed.shop.t SELECT /*+ COALESCE(1) */ id FROM range(1000)")
    for _ in range(2):
        engine.run(
            "MERGE INTO watershed.shop.t t USING (SELECT id FROM range(1000)) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
            partitions=4,
        )
    newest, before, _ = engine.history(TABLE)
    assert (before.summary["added-data-files"], before.summary["added-dvs"]) == ("4", "1")
    assert newest.summary["added-dvs"] == "4"
    counted = engine.query("SELECT count(*) AS c, count(DISTINCT id) AS d FROM watershed.shop.t").to_pylist()
    assert counted == [{"c": 1000, "d": 1000}]


def test_small_files_become_one_beside_readers(engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SMALL_FILE_COUNT_MAX", 2)
    for number in range(3):
        insert(engine, number)
    Maintenance(engine, time.time).run_if_due(TABLE, nullcontext())
    newest = next(engine.history(TABLE))
    assert (newest.summary["total-data-files"], newest.summary["total-records"]) == ("1", "3")
    assert engine.query("SELECT id FROM watershed.shop.t ORDER BY id").column("id").to_pylist() == [0, 1, 2]


class Gone:
    """A Java process that was killed."""

    def wait(self, timeout: float) -> int:
        del timeout
        return -9


def test_a_java_process_that_was_killed_is_named_as_the_cause(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(engine._session, "sql", refused)
    monkeypatch.setattr(engine._session.sparkContext._gateway, "proc", Gone())
    with pytest.raises(SinkError) as failed:
        engine.run("SELECT 1")
    assert failed.value.message == "Spark's Java process ended by itself (killed by signal 9)"
    assert "spark.driver_memory" in failed.value.hint


def test_what_is_not_there_has_no_properties(engine: SparkEngine) -> None:
    properties = engine.table_properties(TABLE)
    assert properties is not None and properties["a"] == "b"
    assert engine.table_properties(("shop", "none")) is None
    assert engine.table_properties(("none", "t")) is None
    assert engine.namespace_properties(("none",)) is None
    assert engine.namespace_properties(("shop",)) is not None
    assert engine.state(("shop", "none")) is None
    engine.drop(("shop", "none"))


def test_properties_are_read_again_when_they_changed_and_only_then(
    spark: SparkSession, where: CatalogPlace, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job looks at every table every few seconds."""
    assert engine.table_properties(TABLE)
    SparkEngine(spark, where).run("ALTER TABLE watershed.shop.t SET TBLPROPERTIES ('a' = 'c')")
    properties = engine.table_properties(TABLE)
    assert properties is not None and properties["a"] == "c"
    monkeypatch.setattr(engine, "_catalog", None)
    assert engine.table_properties(TABLE) == properties


def test_staged_files_may_have_odd_names(engine: SparkEngine, tmp_path: Path) -> None:
    folder = tmp_path / "a%20[b]{c}"
    folder.mkdir()
    stage(folder, (7, 1))
    (file,) = folder.iterdir()
    engine.staged_source("numbers", [f"file://{file}"], "id bigint", None, is_small=True)
    assert engine.query("SELECT id FROM numbers").column("id").to_pylist() == [7]


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
    saved = engine.table_properties(TABLE)
    assert saved is not None and saved["noted"] == "1"
    engine.evolve(TABLE, Evolution(widened=(("id", "bigint"), ("price", "decimal(9,2)"))), saved, {"noted": "2"})
    assert dict(engine.table_columns(TABLE)) == {"id": "bigint", "price": "decimal(9,2)", "tags": "array<string>"}


def written(folder: Path, *numbers: int) -> tuple[str, int]:
    """Path and size of a data file of the table with one column, its first."""
    column = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    file = folder / f"{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.table([pa.array(numbers)], schema=pa.schema([column])), file)
    return file.as_uri(), file.stat().st_size


def test_files_are_committed_or_another_writer_was_faster(engine: SparkEngine, tmp_path: Path) -> None:
    opened, late = engine.open_table(TABLE, {}), engine.open_table(TABLE, {})
    assert opened is not None and late is not None and opened.snapshot is None
    before = engine.table_properties(TABLE)
    (newest,) = engine.commit(opened, NewFiles(written(tmp_path, 1, 5, 7), {}), {"batch": "first"}, is_guarded=True)
    assert (newest.summary["batch"], newest.summary["added-records"]) == ("first", "3")
    assert (opened.state(), engine.table_properties(TABLE)) == (engine.state(TABLE), before)
    with pytest.raises(Conflict):
        engine.commit(late, NewFiles(written(tmp_path, 8), {}), {}, is_guarded=True)
    again = engine.open_table(TABLE, {"id": (6, 7)})
    assert again is not None and [file.row_count for file in again.files] == [3]
    content, places = puffin_file({again.files[0].path: BitMap64([1])})
    (tmp_path / "1.puffin").write_bytes(content)
    (offset, length), path = places[again.files[0].path], (tmp_path / "1.puffin").as_uri()
    vector = VectorPlace(path, len(content), offset, length, 1)
    engine.commit(again, NewFiles(None, {again.files[0].path: vector}), {}, is_guarded=True)
    assert engine.query("SELECT id FROM watershed.shop.t ORDER BY id").column("id").to_pylist() == [1, 7]
    read = engine.open_table(TABLE, {"id": (8, None)})
    assert read is not None and read.files == [], "its bounds say so"
    read = engine.open_table(TABLE, {"id": (None, 1)})
    assert read is not None and read.files == [DataFile(again.files[0].path, 3, vector)]


@pytest.mark.parametrize(
    "change",
    ["ADD PARTITION FIELD bucket(4, id)", "WRITE ORDERED BY id", "SET TBLPROPERTIES ('write.format.default' = 'orc')"],
)
def test_a_table_of_another_form_is_not_opened_for_files(engine: SparkEngine, change: str) -> None:
    assert engine.open_table(TABLE, {}) is not None
    engine.run(f"ALTER TABLE watershed.shop.t {change}")
    assert engine.open_table(TABLE, {}) is None


def test_a_table_whose_metadata_is_gone_can_be_dropped(engine: SparkEngine, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "tables")
    assert engine.table_properties(TABLE) is None
    engine.drop(TABLE)
    engine.run("CREATE TABLE watershed.shop.t (id bigint) USING iceberg")
    assert engine.table_properties(TABLE) is not None


def test_a_catalog_that_was_deleted_is_not_read_from_its_open_file(engine: SparkEngine, where: CatalogPlace) -> None:
    assert where.database is not None
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


def test_tags_name_snapshots_of_any_table_and_keep_them(engine: SparkEngine, where: CatalogPlace) -> None:
    engine.tag(TABLE, "first", None, [])  # there is no snapshot yet
    assert engine.query("SELECT * FROM watershed.shop.t VERSION AS OF 'first'").num_rows == 0
    insert(engine, 1)
    one = next(engine.history(TABLE))
    insert(engine, 2)
    engine.tag(TABLE, "second", one.id, [])
    with pytest.raises(Conflict):
        engine.tag(TABLE, "third", None, [])  # somebody has written meanwhile
    with where.opened() as catalog:
        table = catalog.load_table(TABLE)
        named = table.snapshot_by_name("second")
        assert named is not None
        assert table.scan(snapshot_id=named.snapshot_id).to_arrow().column("id").to_pylist() == [1]
    assert engine.query("SELECT id FROM watershed.shop.t VERSION AS OF 'second'").column("id").to_pylist() == [1]
    later = Maintenance(engine, lambda: time.time() + 30 * 86_400)
    assert later._expire(TABLE) == 0, "two are tagged, and one is the newest"
    assert len(list(engine.history(TABLE))) == 3
    newest = next(engine.history(TABLE)).id
    engine.tag(TABLE, "second", newest, ["first"])
    assert engine.tags(TABLE) == {"second": newest}
    assert later._expire(TABLE) == 2
