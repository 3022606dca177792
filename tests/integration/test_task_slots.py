"""Two live sinks on one task slot: what happens, and how it is named."""

import secrets
import time
from pathlib import Path

import pytest

from cdc.kafka.compacted import read_latest
from cdc.kafka.state_reader import records_of
from cdc.model.job_records import QueryRecord
from cdc.model.topics import Topics
from tests.conftest import INTERPRETED, KafkaBroker
from tests.support.feed import Feed
from tests.support.sink_job import SinkJob, write_config
from tests.support.stores import sinks_section
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

STORES = ("cache", "search")
COLUMNS = {"id": (20, "bigint"), "name": (25, "text")}
BATCH_S = 4.0


def test_sinks_that_share_a_slot_wait_for_each_other_s_batches_and_it_is_named(
    kafka: KafkaBroker, opensearch: str, redis: str, tmp_path: Path
) -> None:
    prefix = f"t{secrets.token_hex(5)}"
    sections = sinks_section(tmp_path, opensearch, redis)
    config = write_config(
        tmp_path,
        kafka.bootstrap_servers,
        prefix,
        {store: sections[store] for store in STORES},
        live_batch_s=BATCH_S,
        options={**INTERPRETED, "spark.master": "local[1]"},
    )
    feed = Feed(kafka.bootstrap_servers, prefix)
    feed.add_table("items", COLUMNS, ["id"])
    with SinkJob(config, *STORES) as job:
        job.wait_said("too few task slots")
        assert "Spark has 1 task slot, and the running queries of sinks need 2" in job.said()
        assert "local[2]" in job.said()
        waits = dict.fromkeys(STORES, 0.0)
        for number in range(6):
            feed.begin()
            feed.upsert("items", id=number, name=f"item {number}")
            feed.commit()
            begun, lsn = time.monotonic(), feed.progress()
            for store in STORES:
                job.wait_applied(lsn, store)
                waits[store] = max(waits[store], time.monotonic() - begun)
        print(f"longest waits: {waits}")
        assert max(waits.values()) > BATCH_S / 2, "a sink that has no slot waits for the other one's batch"
        topic = Topics(prefix).progress

        def short() -> set[str]:
            found = records_of(QueryRecord, topic, read_latest(job.config.kafka, topic))
            return {record.sink for record in found if record.shortage and record.shortage_next}

        eventually(lambda: short() == set(STORES), 30, "the status of each process shows it")
