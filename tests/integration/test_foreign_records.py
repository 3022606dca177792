"""A record that something other than capture wrote into one table's topic stops that table alone, in every kind of
store, over a restart of the job, until the record is deleted."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cdc.model.sink_records import SinkRecord
from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.sink_job import SinkJob, write_config
from tests.support.stores import ALL, sinks_section, stored_rows
from tests.support.topics import delete_compacted_records
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

COLUMNS: Final = {"id": (20, "bigint"), "name": (25, "text")}
GOOD, BAD = "good", "bad"


@pytest.fixture
def feed(kafka: KafkaBroker) -> Iterator[Feed]:
    made = Feed(kafka.bootstrap_servers, f"t{secrets.token_hex(5)}")
    for table in (GOOD, BAD):
        made.add_table(table, COLUMNS, ["id"], partitions=1)
    yield made


def names(job: SinkJob, feed: Feed, store: str, table: str) -> dict[int, str]:
    return {row.key["id"]: row.row["name"] for row in stored_rows(job.config, store, feed.schemas[table])}


def shown(job: SinkJob, feed: Feed, table: str) -> dict[str, dict[int, str]]:
    return {store: names(job, feed, store, table) for store in ALL}


def everywhere(rows: dict[int, str]) -> dict[str, dict[int, str]]:
    return dict.fromkeys(ALL, rows)


def records(job: SinkJob) -> dict[str, SinkRecord]:
    return {store: record for store in ALL if (record := job.record(store)) is not None}


@pytest.mark.promise(4)
@pytest.mark.parametrize("foreign", [b"not json", b"\x00\x00\x00\x00\x09other"], ids=["json", "a registry's"])
def test_a_foreign_record_stops_its_table_alone(
    feed: Feed, kafka: KafkaBroker, opensearch: str, redis: str, tmp_path: Path, foreign: bytes
) -> None:
    config = write_config(
        tmp_path, kafka.bootstrap_servers, feed.prefix, sinks_section(tmp_path, opensearch, redis), live_batch_s=5
    )
    old, topic = {1: "old", 2: "old"}, feed.topic(BAD)
    with SinkJob(config, *ALL) as job:
        feed.transaction(*((table, {"id": number, "name": "old"}) for table in (GOOD, BAD) for number in old))
        job.wait_applied(feed.progress(), *ALL)

        feed.begin()
        feed.upsert(BAD, id=3, name="before the record")
        feed.raw(BAD, b'{"id":9}', foreign)
        floor = feed.next_version()
        feed.upsert(BAD, id=2, name="new")
        feed.upsert(GOOD, id=1, name="new")
        lsn = feed.commit()
        feed.sweep(BAD, floor, lsn)
        found = job.wait_applied(feed.progress(), *ALL)
        assert shown(job, feed, GOOD) == everywhere({1: "new", 2: "old"})
        assert shown(job, feed, BAD) == everywhere(old | {3: "before the record"}), "and nothing is swept"
        for record in found.values():
            assert record.owed.keys() == {"public.bad"}, record
            assert f"record at {topic}, partition 0, offset " in record.owed["public.bad"]
        job.kill()

    with SinkJob(config, *ALL) as job:
        feed.transaction((GOOD, {"id": 3, "name": "after a restart"}), (BAD, {"id": 4, "name": "last"}))
        found = job.wait_applied(feed.progress(), *ALL)
        assert shown(job, feed, GOOD) == everywhere({1: "new", 2: "old", 3: "after a restart"})
        eventually(lambda: all(record.refused[topic].is_left_out for record in records(job).values()), 60.0, job.said)
        assert shown(job, feed, BAD) == everywhere(old | {3: "before the record"})

        (offset,) = {record.refused[topic].places[0] for record in records(job).values()}
        delete_compacted_records(kafka.bootstrap_servers, topic, {0: offset + 1})
        eventually(lambda: not any(record.owed for record in records(job).values()), 60.0, job.said)
        assert shown(job, feed, BAD) == everywhere({2: "new", 4: "last"})
        assert not any(record.refused for record in records(job).values())
        feed.transaction((BAD, {"id": 5, "name": "again"}))
        job.wait_applied(feed.progress(), *ALL)
        assert shown(job, feed, BAD) == everywhere({2: "new", 4: "last", 5: "again"})
        assert job.said().count("table is not read on") <= 2 * len(ALL)
