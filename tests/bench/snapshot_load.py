"""The workload beside a snapshot, and the consumer that measures its lag. Each is a separate process."""

import random
import re
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, TopicPartition

CHANGES: Final = 4  # of a transaction
WAIT_S: Final = 0.1
_COMMITTED: Final = re.compile(rb'"ts_us":(\d+)')  # the first one is the source's
_SNAPSHOT_ROW: Final = b'"op":"r"'


def write_changes(dsn: str, rows: int, rate: float, seed: int, stop: Event, results: "Queue[Any]") -> None:
    """Commits `rate` changes per second in small transactions, half of them of the table that is read. Puts into
    `results` the number of changes, of inserted rows, and of rows that the server had to find for updates and deletes.
    """
    chance = random.Random(seed)
    transactions = inserted = found = 0
    with psycopg.connect(dsn) as connection:
        began = time.monotonic()
        while not stop.is_set():
            time.sleep(max(0.0, began + transactions * CHANGES / rate - time.monotonic()))
            transactions += 1
            key = chance.randint(1, rows + inserted)
            connection.execute("INSERT INTO pulse VALUES (%s, 'beat')", (transactions,))
            connection.execute("UPDATE pulse SET note = 'late beat' WHERE id = %s", (transactions,))
            changed = connection.execute(
                "UPDATE items SET amount = amount + 1, status = 'changed' WHERE id = %s", (key,)
            ).rowcount
            if transactions % 3:
                inserted += 1
                connection.execute(
                    "INSERT INTO items VALUES (%s, 1, 'new', 9.99, 'written beside the snapshot', true, now())",
                    (rows + inserted,),
                )
            else:
                changed += connection.execute(
                    "DELETE FROM items WHERE id = %s", (chance.randint(1, rows + inserted),)
                ).rowcount
            connection.commit()
            found += changed
        seconds = time.monotonic() - began
    results.put(
        (
            "writer",
            {"changes": transactions * CHANGES, "inserted": inserted, "found": found, "seconds": seconds},
        )
    )


def read_stream(bootstrap_servers: str, topic: str, stop: Event, results: "Queue[Any]") -> None:
    """Reads a topic as it grows, with isolation level `read_committed`. Puts into `results` (committed, readable) of
    its changes, in seconds since 1970.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench-stream",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    arrivals: list[tuple[float, float]] = []
    while not stop.is_set() and topic not in consumer.list_topics(timeout=10).topics:
        time.sleep(WAIT_S)
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    while not stop.is_set():
        message = consumer.poll(WAIT_S)
        now = time.time()
        value = None if message is None or message.error() else message.value()
        if value is not None and _SNAPSHOT_ROW not in value and (committed := _COMMITTED.search(value)):
            arrivals.append((int(committed[1]) / 1e6, now))
    consumer.close()
    results.put(("reader", arrivals))
