"""A backlog of rows that are much larger than usual, with a Java process that could not hold them."""

from pathlib import Path

import pytest

from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.sink_job import SinkJob, write_config
from tests.support.stores import ALL, sinks_section, stored_rows

pytestmark = pytest.mark.long

COLUMNS = {"id": (20, "bigint"), "text": (25, "text")}
ROWS = 2000
SMALLEST_HEAP = "480m"  # Spark refuses less


@pytest.mark.promise(5)
@pytest.mark.invariant(8)
def test_memory_does_not_grow_with_the_size_of_rows(
    kafka: KafkaBroker, opensearch: str, redis: str, unique: str, tmp_path: Path
) -> None:
    """A hundred megabytes in one batch of one partition, small rows between large ones, the same keys again and again
    with another size: an older one that came last would be seen."""
    sinks = sinks_section(tmp_path, opensearch, redis)
    config = write_config(
        tmp_path, kafka.bootstrap_servers, unique, sinks, driver_memory=SMALLEST_HEAP, bytes_per_write_max=16_000_000
    )
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("texts", COLUMNS, ["id"], partitions=1)
    feed.begin()
    expected = {}
    for number in range(ROWS):
        size = 900_000 if number == ROWS // 2 else 120_000 if number % 2 else 10
        text = f"{number} ".ljust(size, "x")
        feed.upsert("texts", op="u", id=number % 300, text=text)
        expected[number % 300] = text
    feed.commit()
    with SinkJob(config, *ALL) as job:
        records = job.wait_applied(feed.progress(), *ALL)
        for store in ALL:
            assert records[store].written + records[store].stale == ROWS
            found = {row.key["id"]: row.row["text"] for row in stored_rows(job.config, store, feed.schemas["texts"])}
            assert found == expected, store
