"""`format("watershed")` on real capture, Kafka and Spark: each DataFrame is compared with the source."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, LiteralString

import pytest

from spark_jobs.source import register
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.topics import delete_topic
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.whole

THINGS: Final = "public.things"
OTHER: Final = "public.other"
LOG: Final = "public.log"
TABLES: LiteralString = """
CREATE TABLE things (id int PRIMARY KEY, name text, price numeric(10,2), exact numeric, at timestamptz,
  local timestamp(6), day date, doc json, raw bytea, nums int[], words text[], flag boolean, big bigint,
  ratio double precision, inside inet);
CREATE TABLE other (id int PRIMARY KEY, thing int, name text);
CREATE TABLE log (line text);
"""
FULL_ROW: LiteralString = """(1, 'one', 12.50, 1e30, '2026-01-02 03:04:05.678901+01', '2026-01-02 03:04:05.000001',
  '2026-01-02', '{"a": [1, null]}', '\\x00ff', '{1,NULL,3}', '{a,"b,c",NULL}', true,
  9007199254740993, 0.1, '10.0.0.1')"""
FULL: Final[dict[str, Any]] = {
    "id": 1,
    "name": "one",
    "price": Decimal("12.50"),
    "exact": "1" + "0" * 30,
    "at": datetime(2026, 1, 2, 2, 4, 5, 678901),
    "local": datetime(2026, 1, 2, 3, 4, 5, 1),
    "day": date(2026, 1, 2),
    "doc": '{"a": [1, null]}',
    "raw": bytearray(b"\x00\xff"),
    "nums": [1, None, 3],
    "words": ["a", "b,c", None],
    "flag": True,
    "big": 9007199254740993,
    "ratio": 0.1,
    "inside": "10.0.0.1",
}


@pytest.fixture(scope="module")
def session(spark: "SparkSession") -> "SparkSession":
    found = spark.newSession()
    register(found)
    return found


@pytest.fixture
def shop(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [THINGS, OTHER]) as made:
        yield made


def place(shop: Captured, table: str = THINGS, **options: str) -> dict[str, str]:
    return {"bootstrap.servers": shop.bootstrap_servers, "prefix": shop.name, "table": table, **options}


def rows(frame: "DataFrame", *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*(columns or ("*",))).collect())


class Stream:
    """A query that keeps its rows in a list of batches, with a checkpoint."""

    def __init__(self, session: "SparkSession", options: dict[str, str], folder: Path) -> None:
        self._session, self._options, self._folder = session, options, folder
        self.batches: dict[int, list[Any]] = {}
        self.floors: list[int] = []  # of sweeps
        self.on_batch: Callable[[int], None] = lambda _: None

    def _keep(self, frame: "DataFrame", number: int) -> None:
        self.on_batch(number)
        self.batches[number] = frame.collect()

    def start(self, options: dict[str, str] | None = None, *, now: bool = True) -> Any:
        frame = self._session.readStream.format("watershed").options(**{**self._options, **(options or {})}).load()
        writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self._folder))
        return (writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")).start()

    def run(self) -> list[Any]:
        """Reads what is there. Returns the rows of this run."""
        before = set(self.batches)
        self.start().awaitTermination()
        found = [row for number in sorted(self.batches.keys() - before) for row in self.batches[number]]
        self.floors += [row["_version"] for row in found if row["_op"] == "t"]
        return [row for row in found if row["_op"] != "t"]


@pytest.mark.combination("encodings", "json", "readable", 'format("watershed")')
def test_present_rows_are_those_of_the_table_in_their_types(shop: Captured, session: "SparkSession") -> None:
    shop.query(f"INSERT INTO things VALUES {FULL_ROW}; INSERT INTO things (id, name) VALUES (2, NULL), (3, 'three')")
    shop.start()
    shop.await_caught_up()
    shop.query("INSERT INTO things (id, name) SELECT g, 'n' || g FROM generate_series(10, 59) g")
    shop.query("UPDATE things SET name = 'THREE', price = -0.01 WHERE id = 3")
    shop.query("DELETE FROM things WHERE id >= 30; UPDATE things SET id = 100 WHERE id = 10")
    shop.await_caught_up()
    frame = session.read.format("watershed").options(**place(shop)).load()
    found = {row["id"]: row.asDict() for row in frame.collect()}
    assert sorted(found) == [1, 2, 3, *range(11, 30), 100]
    own = ("_op", "_version", "_commit_lsn", "_commit_ts", "_key", "_unchanged")
    assert {name: value for name, value in found[1].items() if name not in own} == FULL
    assert all(value is None for name, value in found[2].items() if name not in (*own, "id"))
    assert (found[3]["name"], found[3]["price"], found[3]["_op"]) == ("THREE", Decimal("-0.01"), "u")
    assert (found[100]["name"], found[100]["_key"], found[100]["_op"]) == ("n10", '{"id":100}', "c")
    assert found[100]["_version"] > found[3]["_version"] > found[1]["_version"] > 1 << 48
    assert found[100]["_commit_lsn"] > found[3]["_commit_lsn"]
    assert abs((found[100]["_commit_ts"].replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()) < 600
    types = dict(frame.dtypes)
    assert (types["price"], types["exact"], types["at"], types["local"]) == (
        *("decimal(10,2)", "string", "timestamp", "timestamp_ntz"),
    )
    assert (types["raw"], types["nums"], types["words"]) == ("binary", "array<int>", "array<string>")


def test_truncate_options_and_the_configuration_file(shop: Captured, session: "SparkSession") -> None:
    shop.start()
    shop.await_caught_up()
    shop.query("INSERT INTO things (id, name) SELECT g, 'n' || g FROM generate_series(1, 20) g")
    shop.query("TRUNCATE things; INSERT INTO things (id, name, at) VALUES (7, 'again', 'infinity')")
    shop.await_caught_up()
    read = session.read.format("watershed")
    named = read.options(config=str(shop.config()), table=THINGS, columns="name,id").load()
    assert named.columns[:3] == ["name", "id", "_op"]
    assert rows(named, "id", "name") == [(7, "again")]
    text = session.read.format("watershed").options(**place(shop, textColumns="at")).load()
    assert rows(text, "id", "at") == [(7, "infinity")]
    with pytest.raises(Exception, match="column at of table public") as one:
        session.read.format("watershed").options(**place(shop)).load().collect()
    assert "has a value that timestamp can't hold" in str(one.value)
    assert "option textColumns=at" in str(one.value)


def test_changes_between_two_positions(shop: Captured, session: "SparkSession") -> None:
    shop.start()
    shop.await_caught_up()
    shop.query("INSERT INTO things (id, name) VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    first = shop.log_end()
    shop.query("UPDATE things SET name = 'A' WHERE id = 1")
    shop.query("DELETE FROM things WHERE id = 2; UPDATE things SET id = 30 WHERE id = 3")
    second = shop.log_end()
    shop.query("UPDATE things SET name = 'later'")
    shop.await_caught_up()

    def changes(**options: str) -> list[tuple[Any, ...]]:
        frame = session.read.format("watershed").options(**place(shop, **options)).load().where("_op <> 't'")
        return rows(frame.orderBy("_version"), "_version", "_op", "id", "name")

    between = changes(startingPosition=f"{first >> 32:X}/{first & 0xFFFFFFFF:X}", endingPosition=str(second))
    assert [row[1:] for row in between] == [
        *(("u", 1, "A"), ("d", 2, None), ("d", 3, None), ("c", 30, "c")),
    ]
    assert [row[1:] for row in changes(startingPosition=str(second))] == [("u", 1, "later"), ("u", 30, "later")]
    assert [row[1] for row in changes(startingPosition="earliest", endingPosition="latest")] == [
        *("c", "c", "c", "u", "d", "d", "c", "u", "u"),
    ]
    assert changes(startingPosition="latest") == []
    with pytest.raises(Exception, match=r"capture has reached [0-9A-F/]+, which is before endingPosition FFFF/0"):
        changes(endingPosition="FFFF/0")


def test_a_stream_repeats_and_loses_nothing_over_restarts_and_a_failed_batch(
    shop: Captured, session: "SparkSession", tmp_path: Path
) -> None:
    shop.query("INSERT INTO things (id, name) SELECT g, 'n' || g FROM generate_series(1, 40) g")
    shop.start()
    shop.await_caught_up()
    stream = Stream(session, place(shop), tmp_path / "checkpoint")
    assert sorted(row["id"] for row in stream.run()) == list(range(1, 41))
    shop.query("DELETE FROM things WHERE id = 1; UPDATE things SET id = 200 WHERE id = 2")
    shop.query("UPDATE things SET name = NULL WHERE id = 3")
    shop.await_caught_up()
    assert sorted((row["_op"], row["id"], row["name"]) for row in stream.run() if row["id"] != 3) == [
        *(("c", 200, "n2"), ("d", 1, None), ("d", 2, None)),
    ]
    assert stream.run() == []

    # Bounded batches, the third of which fails once.
    shop.query("UPDATE things SET name = 'again'")
    shop.await_caught_up()
    before = set(stream.batches)

    def fail(number: int) -> None:
        if number == max(before) + 3:
            raise RuntimeError("killed between two batches")

    stream.on_batch = fail
    stream.floors = []
    query = stream.start({"maxRecordsPerBatch": "5"}, now=False)
    with pytest.raises(Exception, match="killed between two batches"):
        query.awaitTermination()
    read = [row for number, batch in stream.batches.items() if number not in before for row in batch]
    assert 0 < len(read) <= 10
    stream.on_batch = lambda _: None
    query = stream.start({"maxRecordsPerBatch": "5"}, now=False)
    query.processAllAvailable()
    query.stop()
    batches = {number: batch for number, batch in stream.batches.items() if number not in before}
    assert all(len(batch) <= 5 for batch in batches.values())
    found = sorted(row["id"] for batch in batches.values() for row in batch if row["_op"] != "t")
    assert found == [*range(3, 41), 200]

    # TRUNCATE: one row says that all earlier ones are gone.
    stream.run()
    read = [row for batch in stream.batches.values() for row in batch if row["_op"] != "t"]
    stream.floors = []
    shop.query("TRUNCATE things; INSERT INTO things (id) VALUES (3)")
    shop.await_caught_up()
    (again,) = stream.run()
    (floor,) = stream.floors
    assert max(row["_version"] for row in read) < floor <= again["_version"]
    assert stream.run() == []
    assert len(stream.floors) == 1


def test_a_changed_schema_stops_the_query_until_it_is_restarted(
    shop: Captured, session: "SparkSession", tmp_path: Path
) -> None:
    shop.query("INSERT INTO things (id, name) VALUES (1, 'a')")
    shop.start()
    shop.await_caught_up()
    stream = Stream(session, place(shop, columns="id,name"), tmp_path / "checkpoint")
    assert [row["id"] for row in stream.run()] == [1]
    shop.query("ALTER TABLE things ADD COLUMN colour text")
    shop.query("INSERT INTO things (id, name, colour) VALUES (2, 'b', 'red')")
    shop.await_caught_up()
    assert [row["id"] for row in stream.run()] == [2]

    whole = Stream(session, place(shop), tmp_path / "whole")
    query = whole.start(now=False)
    query.processAllAvailable()
    assert sorted((row["id"], row["colour"]) for row in whole.batches[0] if row["id"]) == [(1, None), (2, "red")]
    shop.query("ALTER TABLE things ADD COLUMN size int; INSERT INTO things (id, size) VALUES (3, 7)")
    with pytest.raises(Exception, match="SchemaChangedError") as stopped:
        query.awaitTermination(60)
    assert "restart the query" in str(stopped.value)
    assert [(row["id"], row["size"]) for row in whole.run()] == [(3, 7)]


def test_a_topic_that_was_created_again_is_never_read_on(
    shop: Captured, session: "SparkSession", tmp_path: Path
) -> None:
    shop.query("INSERT INTO other VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')")
    capture = shop.start()
    shop.await_caught_up()
    stream = Stream(session, place(shop, OTHER), tmp_path / "checkpoint")
    assert len(stream.run()) == 3
    assert capture.terminate() == 0
    delete_topic(shop.bootstrap_servers, f"{shop.name}.{OTHER}")
    with pytest.raises(Exception, match=f"topic {shop.name}.{OTHER} of table {OTHER} does not exist"):
        stream.run()
    shop.start().await_said("table stopped")
    shop.cdc("table", "start", OTHER)
    eventually(lambda: f"{shop.name}.{OTHER}" in shop.topics(), 60.0)
    shop.await_caught_up()
    with pytest.raises(Exception, match="was created again, or has lost records, since the checkpoint") as refused:
        stream.run()
    assert "start the query with a new checkpoint" in str(refused.value)
    other = Stream(session, place(shop, THINGS), tmp_path / "checkpoint")
    with pytest.raises(Exception, match=f"the checkpoint is of topic {shop.name}.{OTHER}"):
        other.run()
    assert len(Stream(session, place(shop, OTHER), tmp_path / "new").run()) == 3


def test_wrong_options_name_the_next_step(shop: Captured, session: "SparkSession") -> None:
    shop.start()
    shop.await_caught_up()

    def refused(**options: str) -> str:
        given = {name: value for name, value in {**place(shop), **options}.items() if value}
        with pytest.raises(Exception) as error:
            session.read.format("watershed").options(**given).load().collect()
        message = str(error.value)
        assert "next: " in message
        return message

    assert f"there is no table public.nothing at prefix {shop.name}" in refused(table="public.nothing")
    assert f"its tables are {OTHER}, {THINGS}" in refused(table="public.nothing")
    assert "there is no pipeline at prefix nowhere" in refused(prefix="nowhere")
    assert "table public.things has no column nane" in refused(columns="id,nane")
    assert "unknown option tabel" in refused(tabel="x")
    assert "option table is missing" in refused(table="")
    assert "value of option startingPosition is not an LSN" in refused(startingPosition="yesterday")
    assert "option maxRecordsPerBatch is for streams" in refused(maxRecordsPerBatch="5")
    topics = json.dumps(sorted(shop.topics()))
    delete_topic(shop.bootstrap_servers, f"{shop.name}.{OTHER}")
    assert f"topic {shop.name}.{OTHER} of table {OTHER} does not exist" in refused(table=OTHER), topics


# ---- the jobs of docs/how-to/spark-jobs.md

PAGE: Final = Path(__file__).parents[2] / "docs/how-to/spark-jobs.md"
JOB_TABLES: LiteralString = """
CREATE TABLE orders (id int PRIMARY KEY, placed_at timestamptz NOT NULL, amount numeric(10,2));
CREATE TABLE searches (id int PRIMARY KEY, words text, at timestamptz NOT NULL);
CREATE TABLE clicks (id int PRIMARY KEY, search_id int, at timestamptz NOT NULL);
CREATE TABLE customers (id int PRIMARY KEY, name text, limit_eur numeric(12,2));
"""


@pytest.fixture
def market(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    tables = [f"public.{name}" for name in ("orders", "searches", "clicks", "customers")]
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, JOB_TABLES, tables) as made:
        made.start()
        made.await_caught_up()
        yield made


def job(heading: str) -> str:
    """The Python of that section."""
    section = PAGE.read_text(encoding="utf-8").partition(f"### {heading}\n")[2]
    found = re.search(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def run_job(market: Captured, session: "SparkSession", heading: str, folder: Path) -> None:
    """Runs the job to its end."""

    def stream(table: str) -> "DataFrame":
        return session.readStream.format("watershed").options(**place(market, table)).load()

    exec(job(heading), {"spark": session, "stream": stream, "folder": str(folder)})  # noqa: S102 - of our own page


def test_the_job_of_revenue_equals_sql(market: Captured, session: "SparkSession", tmp_path: Path) -> None:
    market.query(
        "INSERT INTO orders SELECT g, timestamptz '2026-01-01 00:00Z' + g * interval '7 minutes', g * 1.01"
        " FROM generate_series(1, 60) g"
    )
    for day in (3, 5, 7):  # later orders, which move the watermark
        market.await_caught_up()
        run_job(market, session, "Revenue by the hour", tmp_path)
        market.query("UPDATE orders SET amount = 0 WHERE id = 1")  # counted once, as it was placed
        market.query("INSERT INTO orders VALUES (%s, make_timestamptz(2026, 1, %s, 0, 0, 0), 5)", 1000 + day, day)
    market.await_caught_up()
    run_job(market, session, "Revenue by the hour", tmp_path)
    found = session.read.parquet(str(tmp_path / "revenue")).where("start < '2026-01-02'")
    expected = market.query(
        "SELECT date_trunc('hour', placed_at) AT TIME ZONE 'UTC', sum(CASE id WHEN 1 THEN 1.01 ELSE amount END),"
        " count(*) FROM orders WHERE placed_at < '2026-01-02 00:00Z' GROUP BY 1 ORDER BY 1"
    )
    assert rows(found) == expected
    assert len(expected) == 8


def test_the_job_of_clicks_equals_sql(market: Captured, session: "SparkSession", tmp_path: Path) -> None:
    market.query(
        "INSERT INTO searches SELECT g, 'words ' || g, timestamptz '2026-01-01 00:00Z' + g * interval '1 minute'"
        " FROM generate_series(1, 30) g"
    )
    market.await_caught_up()
    run_job(market, session, "Which searches led to a click", tmp_path)
    market.query(
        "INSERT INTO clicks SELECT g, g, timestamptz '2026-01-01 00:00Z' + g * interval '1 minute 40 seconds'"
        " FROM generate_series(1, 30) g"
    )
    market.await_caught_up()
    run_job(market, session, "Which searches led to a click", tmp_path)
    expected = market.query(
        "SELECT s.id, words, s.at AT TIME ZONE 'UTC', c.id, c.search_id, c.at AT TIME ZONE 'UTC' FROM searches s"
        " JOIN clicks c ON c.search_id = s.id AND c.at BETWEEN s.at AND s.at + interval '10 minutes' ORDER BY 1"
    )
    assert rows(session.read.parquet(str(tmp_path / "clicked"))) == expected
    assert 0 < len(expected) < 30


def test_the_job_of_a_copy_equals_sql(market: Captured, session: "SparkSession", tmp_path: Path) -> None:
    market.query("INSERT INTO customers SELECT g, 'n' || g, g * 1.5 FROM generate_series(1, 40) g")
    market.await_caught_up()
    run_job(market, session, "A copy of a table", tmp_path)
    market.query("UPDATE customers SET name = NULL WHERE id <= 5; DELETE FROM customers WHERE id IN (6, 7)")
    market.query("UPDATE customers SET id = 100 WHERE id = 8; INSERT INTO customers VALUES (6, 'again', 0)")
    market.await_caught_up()
    run_job(market, session, "A copy of a table", tmp_path)
    run_job(market, session, "A copy of a table", tmp_path)  # nothing is new
    newest = max((path for path in (tmp_path / "copy").iterdir()), key=lambda path: int(path.name))
    assert newest.name == "1"
    copy = session.read.parquet(str(newest)).where("_op NOT IN ('d', 't')").orderBy("id")
    assert [tuple(row) for row in copy.select("id", "name", "limit_eur").collect()] == market.query(
        "SELECT * FROM customers ORDER BY id"
    )
