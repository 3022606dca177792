"""`cdc sink run search cache warehouse` on real servers: one job that goes through a day, test by test."""

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
from opensearchpy import OpenSearch

from cdc.config.stores import WarehouseConfig
from cdc.kafka.compacted import read_latest
from cdc.kafka.state_reader import records_of
from cdc.model.events import TableSchema
from cdc.model.job_records import QueryRecord
from cdc.model.sink_records import SinkRecord
from cdc.model.topics import Topics
from sinks.warehouse.catalog import catalog_place
from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.sink_job import SinkJob, write_config
from tests.support.stores import ALL, sinks_section, stored_rows
from tests.support.waiting import eventually

CUSTOMERS = {"id": (20, "bigint"), "name": (25, "text"), "rating": (701, "double precision")}
PEOPLE = {"id": (20, "bigint"), "born": (1082, "date")}
LINES = {"order_id": (20, "bigint"), "line_no": (23, "integer"), "quantity": (23, "integer")}


@dataclass
class Day:
    """The job, its topics, and the rows that every store must show."""

    feed: Feed
    job: SinkJob
    folder: Path
    schemas: dict[str, TableSchema]
    rows: dict[str, dict[tuple[Any, ...], tuple[Mapping[str, Any], int]]] = field(default_factory=dict)

    def upsert(self, table: str, **row: Any) -> None:
        self.feed.upsert(table, **row)
        key = tuple(row[name] for name in self.schemas[table].key)
        self.rows.setdefault(table, {})[key] = (row, self.feed.version)

    def delete(self, table: str, **key: Any) -> None:
        self.feed.delete(table, **key)
        self.rows[table].pop(tuple(key.values()), None)

    def applied(self) -> dict[str, SinkRecord]:
        """Wait until every store has applied what was committed; then compare every row."""
        records = self.job.wait_applied(self.feed.progress(), *ALL)
        self.compare()
        return records

    def compare(self, *stores: str) -> None:
        for store in stores or ALL:
            for table, rows in self.rows.items():
                found = stored_rows(self.job.config, store, self.schemas[table])
                shown = {tuple(row.key.values()): (row.row, row.version) for row in found}
                assert len(found) == len(shown), f"{store} shows a key of {table} twice"
                assert shown == rows, f"{table} in {store}"


@pytest.fixture(scope="module")
def day(kafka: KafkaBroker, opensearch: str, redis: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("job")
    prefix = f"t{secrets.token_hex(5)}"
    sections = sinks_section(folder, opensearch, redis)
    sections["warehouse"]["on_rejected"] = "stop"
    config = write_config(folder, kafka.bootstrap_servers, prefix, sections)
    feed = Feed(kafka.bootstrap_servers, prefix)
    with SinkJob(config, *ALL) as job:
        yield Day(feed, job, folder, feed.schemas)


def begin(day: Day) -> None:
    """The first table, and rows of its load."""
    day.feed.add_table("customers", CUSTOMERS, ["id"])
    day.feed.begin()
    for number in range(200):
        day.upsert("customers", id=number, name=f"name {number}", rating=number / 4)
    day.delete("customers", id=7)
    day.feed.commit()


@pytest.mark.combination("encodings", "json", "readable", "search")
@pytest.mark.combination("encodings", "json", "readable", "cache")
@pytest.mark.combination("encodings", "json", "readable", "warehouse")
@pytest.mark.combination("kafka", "Apache Kafka", "none", clients="sinks")
@pytest.mark.combination("search", "OpenSearch 3", "none")
def test_waits_for_capture_and_begins_with_what_is_there(day: Day) -> None:
    """The job starts before there is a table. Rows of the load, an aborted transaction, a delete."""
    for store in ALL:
        day.job.wait_said(f"sink={store}")
    assert day.job.said().count("waiting for capture") == 3
    begin(day)
    day.feed.begin()
    day.feed.upsert("customers", id=5, name="rolled back", rating=None)
    day.feed.abort()
    records = day.applied()
    for record in records.values():
        assert (record.generation, record.epoch, record.written) == (1, 1, 200)
        assert record.stale == 2, "the delete's row, and its tombstone"
        assert record.end_offsets == day.feed.end_offsets()


def test_changes_arrive_and_deletes_stay(day: Day) -> None:
    for round_number in range(3):
        day.feed.begin()
        for number in range(10):
            day.upsert("customers", id=number, name=f"round {round_number}", rating=None)
        day.delete("customers", id=3)
        day.feed.commit()
    day.feed.begin()
    day.feed.tombstone("customers", day.feed.next_version(), id=4)
    del day.rows["customers"][4,]
    day.feed.commit()
    day.applied()


def test_a_table_that_appears_while_running_is_followed(day: Day) -> None:
    day.feed.add_table("lines", LINES, ["order_id", "line_no"], partitions=3)
    day.feed.begin()
    for number in range(50):
        day.upsert("lines", order_id=number // 5, line_no=number % 5, quantity=number)
    day.upsert("customers", id=1, name="in the same transaction", rating=0.5)
    day.feed.commit()
    day.applied()


def test_a_table_that_is_altered_while_running_is_followed(day: Day) -> None:
    """A row that is still of the first version beside one of the second; then every row anew, as capture does."""
    day.feed.begin()
    day.feed.upsert("lines", order_id=0, line_no=0, quantity=7)
    day.feed.alter_table("lines", LINES | {"quantity": (25, "text"), "remark": (25, "text")})
    for number in range(50):
        day.upsert("lines", order_id=number // 5, line_no=number % 5, quantity=f"{number} m", remark=None)
    day.upsert("customers", id=1, name="in the same transaction", rating=0.75)
    day.feed.commit()
    day.applied()


def test_what_spark_says_about_each_query_is_published(day: Day) -> None:
    """The altered table has ended the batch of each live sink."""
    topic = Topics(day.feed.prefix).progress

    def figures() -> dict[str, QueryRecord]:
        found = records_of(QueryRecord, topic, read_latest(day.job.config.kafka, topic))
        return {record.sink: record for record in found if record.ended_us}

    eventually(lambda: figures().keys() == set(ALL), 30, "each query has ended a batch")
    for record in figures().values():
        assert (record.generation, record.failures) == (1, 0)
        assert record.batch_ms >= record.task_ms > 0
        assert record.rows > 0, "a live batch has empty pieces too"
    assert figures()["warehouse"].records > 0
    assert figures()["warehouse"].bytes > figures()["warehouse"].records


def test_each_commit_of_the_warehouse_says_where_its_rows_came_from(day: Day) -> None:
    """Read back with an Iceberg client of others."""
    section = day.job.config.sinks["warehouse"]
    assert isinstance(section, WarehouseConfig)
    place = catalog_place(section, day.feed.prefix)
    schema = day.schemas["customers"]
    day.applied()
    with place.opened() as catalog:
        commits = [commit.summary for commit in catalog.load_table(place.place(schema.table).rows).snapshots()]
    merged = [summary for summary in commits if summary is not None and summary["watershed.query_batch"] is not None]
    assert len(merged) >= 3, "some batches"
    assert {summary["watershed.topic"] for summary in merged} == {schema.topic}
    assert {str(summary["watershed.job"]).rpartition("/")[0] for summary in merged} == {"warehouse/1"}
    numbers = [int(str(summary["watershed.query_batch"])) for summary in merged]
    assert numbers == sorted(numbers), "batches of one checkpoint"
    reached: dict[str, int] = {}
    for summary in merged:
        for partition, (begin, end) in json.loads(str(summary["watershed.offsets"])).items():
            assert reached.get(partition, 0) <= begin < end, "nothing was killed: no batch was repeated"
            reached[partition] = end
    ends = day.feed.end_offsets()[schema.topic]
    assert all(end <= ends[int(partition)] for partition, end in reached.items())
    assert sum(reached.values()) > 0


def test_the_position_advances_when_only_markers_come(day: Day) -> None:
    """An aborted transaction moves the end of the topic and brings no record."""
    before = day.feed.end_offsets()
    day.feed.begin()
    day.feed.upsert("customers", id=6, name="rolled back", rating=None)
    day.feed.abort()
    assert day.feed.end_offsets() != before
    day.feed.lsn += 1
    day.applied()


def test_the_position_advances_on_an_idle_system(day: Day) -> None:
    day.feed.lsn += 1
    records = day.applied()
    assert {record.applied_lsn for record in records.values()} == {day.feed.lsn}


def test_applied_position_does_not_pass_what_is_not_there_yet(day: Day) -> None:
    """A progress record whose offsets lie ahead counts only when they are reached."""
    ahead = {topic: [end + 2 for end in ends] for topic, ends in day.feed.end_offsets().items()}
    claimed = day.feed.lsn + 50
    day.feed.progress(claimed, ahead)
    day.feed.lsn += 1
    records = day.job.wait_applied(day.feed.progress(), *ALL)
    assert all(record.applied_lsn == day.feed.lsn for record in records.values())


@pytest.mark.promise(2)
def test_a_sweep_removes_what_the_new_epoch_did_not_bring(day: Day) -> None:
    """As after an initial load that was interrupted: the new attempt's epoch is the floor."""
    if not day.schemas:  # the day's only test, when a promise is proved
        begin(day)
        day.applied()
    day.feed.epoch, day.feed.seq = 2, 0
    survivors = [10, 11, 12]
    day.feed.begin()
    for number in survivors:
        day.upsert("customers", id=number, name="loaded again", rating=1.5)
    as_of = day.feed.commit()
    day.feed.sweep("customers", floor=2 << 48, as_of_lsn=as_of)
    day.rows["customers"] = {key: row for key, row in day.rows["customers"].items() if key[0] in survivors}
    for record in day.applied().values():
        assert record.sweeps["public.customers"] == 2 << 48
        assert record.epoch == 2


def test_a_stores_data_deleted_while_running_comes_back(day: Day, opensearch: str, redis: str) -> None:
    config = day.job.config
    prefix = config.topics.prefix
    server = redis_client.Redis.from_url(redis)
    server.delete(*[key for key in server.scan_iter(count=1000) if prefix.encode() in key])
    server.close()
    client = OpenSearch(opensearch)
    client.indices.delete(index=f"{prefix}.public.customers.documents")
    client.close()
    shutil.rmtree(day.folder / "warehouse")
    day.feed.begin()
    day.upsert("customers", id=10, name="after the loss", rating=None)
    day.feed.commit()
    day.feed.lsn += 1

    def rebuilt() -> bool:
        return all((record := day.job.record(store)) and record.generation == 2 for store in ALL)

    eventually(rebuilt, 90, lambda: f"a second generation in each store: {[day.job.record(store) for store in ALL]}")
    for record in day.applied().values():
        assert record.sweeps["public.customers"] == 2 << 48, "a rebuild ends with the latest sweep too"


def test_a_row_that_one_store_cannot_hold_stops_its_sink_only(day: Day) -> None:
    """It is said where the row is, but not what it holds; the others go on; the exit code tells the operator."""
    day.feed.add_table("people", PEOPLE, ["id"], partitions=1)
    day.feed.begin()
    day.upsert("people", id=1, born="2001-02-03")
    before = day.feed.commit()
    day.job.wait_applied(day.feed.progress(), *ALL)
    day.feed.begin()
    day.upsert("people", id=4711, born="infinity")
    day.feed.commit()
    day.feed.begin()
    day.upsert("people", id=2, born="2002-03-04")
    after = day.feed.commit()
    day.feed.progress()
    day.job.wait_applied(after, "cache", "search")
    day.job.wait_said("sink stopped")
    (message,) = [line for line in day.job.said().splitlines() if "sink stopped" in line]
    topic = day.schemas["people"].topic
    for part in ("sink=warehouse", "public.people", "column born (date)", f"{topic}, partition 0"):
        assert part in message
    assert "infinity" not in message and "4711" not in message
    day.compare("cache", "search")
    record = day.job.record("warehouse")
    assert record is not None and before <= record.applied_lsn < after, "nothing after the row is called applied"

    # A second process for the same sink stands by, and takes over when the first one ends.
    with SinkJob(day.job.config_path, "cache") as second:
        second.wait_said("standing by")
        code, took_s = day.job.terminate()
        assert code == 1, day.job.said()
        assert took_s < 10
        assert "Traceback" not in day.job.said()
        second.wait_said("taking over")
        day.feed.begin()
        day.upsert("people", id=3, born="2002-03-05")
        taken = day.feed.commit()
        day.feed.progress()
        second.wait_applied(taken, "cache")
        day.compare("cache")
        code, _ = second.terminate()
        assert code == 0


def test_a_sink_that_stopped_goes_on_when_the_row_is_corrected(
    day: Day, kafka: KafkaBroker, opensearch: str, redis: str
) -> None:
    """The batch that was refused is planned anew, with the row as it is now; without a table that is excluded since,
    of which it had read before."""
    day.feed.begin()
    day.upsert("people", id=4711, born="2003-04-05")
    day.feed.upsert("lines", order_id=0, line_no=0, quantity="not in the warehouse", remark=None)
    day.feed.commit()
    sections = sinks_section(day.folder, opensearch, redis)
    sections["warehouse"]["exclude_tables"] = ["public.lines"]
    config = write_config(day.folder, kafka.bootstrap_servers, day.job.config.topics.prefix, sections)
    with SinkJob(config, "warehouse") as job:
        record = job.wait_applied(day.feed.progress(), "warehouse")["warehouse"]
        assert (record.generation, record.excluded) == (2, ("public.lines",))
        found = {
            tuple(row.key.values()): (str(row.row["born"]), row.version)
            for row in stored_rows(job.config, "warehouse", day.schemas["people"])
        }
        assert found == {key: (row["born"], version) for key, (row, version) in day.rows["people"].items()}
        job.terminate()
        assert "Traceback" not in job.said()
