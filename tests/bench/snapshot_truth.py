"""Compares a topic, read from its beginning, with the table: by key, with a digest of eight bytes for each row."""

from array import array
from dataclasses import dataclass
from hashlib import md5
from typing import Any, Final, LiteralString

import orjson
import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

COLUMNS: Final = ("customer_id", "status", "amount", "note", "is_gift", "changed_at")
MESSAGES: Final = 5_000
# Calculates the same digests as `digest`.
_TABLE: LiteralString = """
COPY (SELECT id, left(md5(concat_ws('|', customer_id, status, amount, note, is_gift::text,
             to_char(changed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))), 16) FROM items) TO STDOUT
"""


@dataclass
class Equality:
    snapshot_records: int = 0  # with op r
    snapshot_keys: int = 0  # distinct ones of them
    table_rows: int = 0
    topic_rows: int = 0
    missing: int = 0  # in the table alone
    extra: int = 0  # in the topic alone
    different: int = 0


def digest(row: dict[str, Any]) -> int:
    """Returns eight bytes for a row; never 0, which stands for no row."""
    values = (row[name] for name in COLUMNS)
    text = "|".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:8], "big") or 1


def compare(dsn: str, bootstrap_servers: str, topic: str, key_max: int) -> Equality:
    """Compares both sides, which must not be written meanwhile. Keys are 1 to `key_max`."""
    found, latest = Equality(), array("Q", bytes(8 * (key_max + 1)))
    _read_topic(bootstrap_servers, topic, latest, found)
    found.topic_rows = sum(map(bool, latest))
    with psycopg.connect(dsn) as connection, connection.cursor().copy(_TABLE) as copy:
        rest = b""
        for block in copy:
            *lines, rest = (rest + bytes(block)).split(b"\n")
            for line in lines:
                key, _, text = line.partition(b"\t")
                wanted, have = int(text, 16) or 1, latest[int(key)]
                latest[int(key)] = 0
                found.table_rows += 1
                found.missing += not have
                found.different += bool(have) and have != wanted
    found.extra = sum(map(bool, latest))
    return found


def _read_topic(bootstrap_servers: str, topic: str, latest: "array[int]", found: Equality) -> None:
    """Sets `latest` to the digest of each key's last row. All records of a key are in one partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench-truth",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "queued.max.messages.kbytes": 65536,
        }
    )
    seen = bytearray(len(latest))
    numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    partitions = [TopicPartition(topic, number, 0) for number in numbers]
    ends = {p.partition: consumer.get_watermark_offsets(p, timeout=10)[1] for p in partitions}
    consumer.assign(partitions)
    while True:
        messages = consumer.consume(MESSAGES, 1.0)
        for message in messages:
            if error := message.error():
                raise KafkaException(error)
            text, value = message.key(), message.value()
            assert text is not None, "capture gives every record a key"
            key = orjson.loads(text)["id"]
            if value is None:
                latest[key] = 0
                continue
            change = orjson.loads(value)
            if change["op"] == "r":
                found.snapshot_records += 1
                found.snapshot_keys += not seen[key]
                seen[key] = 1
            latest[key] = digest(change["after"]) if change["after"] else 0
        if not messages and all(p.offset >= ends[p.partition] for p in consumer.position(partitions)):
            consumer.close()
            return
