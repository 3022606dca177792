"""The identity of a prefix's history and of each topic, as progress records name them: what keeps it, and what ends it.

A reader that noted an offset of a topic takes it for nothing when the topic's incarnation is another one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from cdc.config.settings import KafkaConfig
from cdc.kafka.topic_admin import TopicAdmin
from tests.conftest import KafkaBroker, PostgresServer
from tests.integration.conftest import ITEMS, OTHER
from tests.support.captured import Captured, CaptureProcess, under_capture
from tests.support.topics import create_topic, delete_compacted_records, delete_records, delete_topic, set_topics
from tests.support.waiting import eventually

pytestmark = pytest.mark.whole

TABLES: LiteralString = (
    "CREATE TABLE items (id int PRIMARY KEY, name text); CREATE TABLE other (id int PRIMARY KEY, name text);"
    "CREATE TABLE log (line text);"
)


@pytest.fixture
def both(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    """Two tables with a row each."""
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [ITEMS, OTHER]) as made:
        made.query("INSERT INTO items VALUES (1, 'one'); INSERT INTO other VALUES (1, 'one')")
        yield made


def progress(captured: Captured) -> dict[str, Any]:
    """The last progress record."""
    values = [r.value for r in captured.records("progress") if r.key == b"progress"]
    return dict(json.loads(values[-1] or b"{}"))


def streams(captured: Captured) -> CaptureProcess:
    """Capture that has caught up, and has told the progress of each configured table."""

    def reported() -> list[dict[str, Any]]:
        return [json.loads(r.value or b"{}") for r in captured.records("progress") if r.key == b"progress"]

    before = len(reported())
    capture = captured.start()
    tables = captured.settings.get("source", {}).get("tables", captured.tables)
    topics = {f"{captured.name}.{table}" for table in tables}

    def is_reported() -> bool:
        assert capture.exit_code is None, capture.said()
        return len(reported()) > before and reported()[-1]["incarnations"].keys() == topics

    eventually(is_reported, 60.0, capture.said)
    captured.await_caught_up()
    return capture


def topic_ids(captured: Captured) -> dict[str, str]:
    """Of the tables' topics, as the brokers say."""
    admin = TopicAdmin(KafkaConfig(bootstrap_servers=captured.bootstrap_servers))
    names = [f"{captured.name}.{table}" for table in captured.tables]
    return {name: topic.topic_id for name, topic in admin.describe(names).items()}


def only(captured: Captured, *tables: str) -> None:
    captured.settings = {"source": {"tables": list(tables)}}


def await_healed(captured: Captured) -> dict[str, Any]:
    """The progress after a heal, when all rows were read again."""
    epoch = progress(captured)["epoch"]
    captured.ask("heal")
    eventually(lambda: progress(captured)["epoch"] > epoch, 90.0, "a new epoch begins")
    captured.await_caught_up()
    return progress(captured)


def test_history_and_incarnations_stay_over_restarts_changes_of_tables_and_a_healed_gap(both: Captured) -> None:
    only(both, ITEMS)
    capture = streams(both)
    first, ids = progress(both), topic_ids(both)
    assert first["history"]
    assert first["incarnations"] == {f"{both.name}.{ITEMS}": ids[f"{both.name}.{ITEMS}"]}
    assert first["incarnations"].keys() == first["end_offsets"].keys()
    capture.kill()
    only(both, ITEMS, OTHER)
    capture = streams(both)
    joined, ids = progress(both), topic_ids(both)
    assert (joined["history"], joined["incarnations"]) == (first["history"], ids)
    assert capture.terminate() == 0
    both.drop_slot()
    both.start().await_refusal()
    healed = await_healed(both)
    assert (healed["epoch"], healed["history"], healed["incarnations"]) == (2, first["history"], ids)


def test_a_table_that_is_removed_and_added_again_begins_another_incarnation(both: Captured) -> None:
    """The documented routine: its topic may be deleted meanwhile, or may have lost records that nobody watched."""
    topic = f"{both.name}.{OTHER}"
    assert streams(both).terminate() == 0
    before = progress(both)
    only(both, ITEMS)
    assert streams(both).terminate() == 0
    assert topic not in progress(both)["incarnations"]
    only(both, ITEMS, OTHER)
    assert streams(both).terminate() == 0
    kept = progress(both)["incarnations"][topic]
    assert kept.startswith(f"{topic_ids(both)[topic]}#")
    only(both, ITEMS)
    assert streams(both).terminate() == 0
    delete_topic(both.bootstrap_servers, topic)
    only(both, ITEMS, OTHER)
    streams(both)
    made = progress(both)
    assert made["incarnations"][topic].startswith(topic_ids(both)[topic])
    assert len({before["incarnations"][topic], kept, made["incarnations"][topic]}) == 3
    assert made["history"] == before["history"]
    assert made["incarnations"][f"{both.name}.{ITEMS}"] == before["incarnations"][f"{both.name}.{ITEMS}"]


def test_a_state_topic_that_was_lost_alone_keeps_the_history_and_ends_each_incarnation(both: Captured) -> None:
    """What the topics had reached is not known any more."""
    assert streams(both).terminate() == 0
    before = progress(both)
    delete_topic(both.bootstrap_servers, f"{both.name}.state")
    both.drop_slot()
    both.start().await_refusal()
    after = await_healed(both)
    assert (after["epoch"], after["history"]) == (2, before["history"])
    assert after["incarnations"] == {topic: f"{identity}#2" for topic, identity in before["incarnations"].items()}


def test_a_state_that_is_older_than_the_slot_begins_another_history(both: Captured) -> None:
    """As after brokers were restored from an older copy: epochs that were used since may be used again."""
    assert streams(both).terminate() == 0
    before = progress(both)
    both.query("INSERT INTO items VALUES (2, 'two')")
    both.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", both.name)
    both.start().await_refusal()
    after = await_healed(both)
    assert after["history"] not in ("", before["history"])
    assert after["incarnations"] == {topic: f"{identity}#2" for topic, identity in before["incarnations"].items()}


def test_a_prefix_that_was_torn_down_begins_another_history(both: Captured) -> None:
    assert streams(both).terminate() == 0
    before = progress(both)
    both.drop_slot()
    for topic in both.topics():
        delete_topic(both.bootstrap_servers, topic)
    streams(both)
    after = progress(both)
    assert (after["epoch"], before["epoch"]) == (1, 1)
    assert after["history"] not in ("", before["history"])
    assert after["incarnations"] == topic_ids(both) != before["incarnations"]


def test_a_log_whose_oldest_records_are_deleted_by_retention_goes_on(both: Captured) -> None:
    """Rows without a key are in a topic that is not compacted. What the brokers delete there was not lost."""
    both.query("ALTER TABLE log REPLICA IDENTITY FULL")
    both.tables, both.keys = [ITEMS, "public.log"], {"public.log": []}
    both.settings = {"snapshot": {"method": "consistent"}}
    capture = streams(both)
    both.query("INSERT INTO log VALUES ('a'), ('b')")
    both.await_caught_up()
    before = progress(both)
    assert capture.terminate() == 0
    delete_records(both.bootstrap_servers, f"{both.name}.public.log", {0: 1})
    capture = streams(both)
    both.query("INSERT INTO log VALUES ('c')")
    both.await_caught_up()
    assert "GAP" not in capture.said()
    assert both.states()["public.log"]["status"] == "captured"
    assert progress(both)["incarnations"] == before["incarnations"]


def test_compaction_leaves_the_beginning_of_a_topic_where_it_is(kafka: KafkaBroker, unique: str) -> None:
    """So a beginning that moved shows that somebody deleted records."""
    topic = f"{unique}.t"
    create_topic(kafka.bootstrap_servers, topic)
    set_topics(
        kafka.bootstrap_servers,
        [topic],
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        min_compaction_lag_ms="0",
        max_compaction_lag_ms="100",
        delete_retention_ms="0",
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    admin = TopicAdmin(KafkaConfig(bootstrap_servers=kafka.bootstrap_servers))

    def write(key: str) -> None:
        producer.produce(topic, b"x", key)
        producer.flush(10)

    def is_compacted() -> bool:
        write("b")
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": unique})
        consumer.assign([TopicPartition(topic, 0, 0)])
        first = consumer.poll(10)
        consumer.close()
        return first is not None and (first.offset() or 0) > 0

    write("a")
    write("a")
    eventually(is_compacted, 120.0, "the first record is gone")
    assert admin.states(admin.describe([topic]).values())[topic].start_offsets == (0,)
    delete_compacted_records(kafka.bootstrap_servers, topic, {0: 1})
    assert admin.states(admin.describe([topic]).values())[topic].start_offsets == (1,)
