"""What a task's reader makes of a real broker's topics: markers, aborted transactions, ends, records that are gone."""

import secrets
import time
from collections.abc import Iterator

import pytest

from cdc.config.settings import KafkaConfig
from spark_jobs.source.reading import RECORDS_MAX, Fetched, Partition, PartitionReader
from spark_jobs.source.topic_ends import TopicEnds
from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.topics import delete_compacted_records
from tests.support.waiting import eventually

COLUMNS = {"id": (20, "bigint")}


@pytest.fixture
def feed(kafka: KafkaBroker) -> Feed:
    feed = Feed(kafka.bootstrap_servers, f"t{secrets.token_hex(5)}")
    feed.add_table("items", COLUMNS, ["id"], partitions=1)
    return feed


@pytest.fixture
def reader(kafka: KafkaBroker) -> Iterator[PartitionReader]:
    reader = PartitionReader(KafkaConfig(bootstrap_servers=kafka.bootstrap_servers), "watershed-test")
    yield reader
    reader.close()


def publish(feed: Feed, first: int, last: int) -> None:
    feed.begin()
    for number in range(first, last + 1):
        feed.upsert("items", id=number)
    feed.commit()


def read_to_end(reader: PartitionReader, partition: Partition, end: int, bytes_max: int = 1 << 20) -> list[Fetched]:
    """What is read up to the one that reaches `end`: the offset behind the last transaction marker."""
    reads: list[Fetched] = []

    def is_at_end() -> bool:
        reads.append(reader.read(0.1, bytes_max))
        return reads[-1].positions.get(partition, 0) >= end

    eventually(is_at_end, 30.0, "the partition is read to its end")
    return reads


def offsets(reads: list[Fetched]) -> list[int]:
    return [message.offset() or 0 for fetched in reads for message in fetched.records]


def test_the_end_lies_behind_the_last_transactions_marker(
    kafka: KafkaBroker, feed: Feed, reader: PartitionReader
) -> None:
    partition = Partition(feed.topic("items"), 0)
    publish(feed, 1, 3)
    feed.begin()
    feed.upsert("items", id=4)
    feed.abort()
    publish(feed, 5, 5)
    reader.seek({partition: 0})
    reads = read_to_end(reader, partition, 8)
    assert offsets(reads) == [0, 1, 2, 6], "three rows and a marker, an aborted row and its marker, one row"
    assert reads[-1].positions == {partition: 8}
    ends = TopicEnds(KafkaConfig(bootstrap_servers=kafka.bootstrap_servers))
    ends.set_topics([partition.topic, "no.such.topic"])
    found = ends.ask()
    assert found.keys() == {partition.topic} and found[partition.topic].end_offsets == (8,)
    assert len(found[partition.topic].topic_id) == 22


def test_a_reader_goes_on_where_it_was_or_where_it_is_told_to(feed: Feed, reader: PartitionReader) -> None:
    partition = Partition(feed.topic("items"), 0)
    publish(feed, 1, 3)
    reader.seek({partition: 0})
    assert offsets(read_to_end(reader, partition, 4)) == [0, 1, 2]
    publish(feed, 4, 5)
    reader.seek({partition: 4})
    assert offsets(read_to_end(reader, partition, 7)) == [4, 5]
    reader.seek({partition: 2})
    assert offsets(read_to_end(reader, partition, 7)) == [2, 4, 5]
    reader.unassign()
    assert reader.read(0.5, 1).records == [], "a reader at rest fetches nothing"
    reader.seek({partition: 2})
    assert offsets(read_to_end(reader, partition, 7)) == [2, 4, 5]


def test_what_is_read_at_once_is_bounded(feed: Feed, reader: PartitionReader) -> None:
    partition = Partition(feed.topic("items"), 0)
    publish(feed, 1, 3 * RECORDS_MAX)
    reader.seek({partition: 0})
    reads = read_to_end(reader, partition, 3 * RECORDS_MAX + 1, bytes_max=1)
    assert max(len(fetched.records) for fetched in reads) <= RECORDS_MAX
    assert offsets(reads) == list(range(3 * RECORDS_MAX))


def test_a_topic_that_was_created_again_is_lost_and_the_others_are_read_on(feed: Feed, reader: PartitionReader) -> None:
    """What was read before is not there any more; continuing somewhere would skip records."""
    shorter = Partition(feed.topic("items"), 0)
    publish(feed, 1, 3)
    reader.seek({shorter: 1000})
    lost: dict[Partition, str] = {}
    deadline = time.monotonic() + 30
    while not lost and time.monotonic() < deadline:
        lost |= reader.read(0.2, 1000).lost
    assert lost[shorter].startswith(f"topic {shorter.topic}, partition 0: records that were not read yet are gone")
    reader.seek({shorter: 0})
    assert offsets(read_to_end(reader, shorter, 4)) == [0, 1, 2]


def test_records_that_were_deleted_from_the_beginning_are_not_passed_over(
    kafka: KafkaBroker, feed: Feed, reader: PartitionReader
) -> None:
    """They were there when the batch was planned."""
    partition = Partition(feed.topic("items"), 0)
    publish(feed, 1, 3)
    delete_compacted_records(kafka.bootstrap_servers, partition.topic, {partition.number: 2})
    reader.seek({partition: 0})
    lost: dict[Partition, str] = {}
    deadline = time.monotonic() + 30
    while not lost and time.monotonic() < deadline:
        fetched = reader.read(0.2, 1000)
        assert fetched.records == []
        lost |= fetched.lost
    assert lost[partition].startswith(f"topic {partition.topic}, partition 0: records that were not read yet are gone")
    reader.seek({partition: 2})
    assert offsets(read_to_end(reader, partition, 4)) == [2]
