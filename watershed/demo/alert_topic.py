"""The alerts of the stored queries, read from the topic that is the view's target: a record starts an alert or changes
it, a record without a value stops it.
"""

import json
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from confluent_kafka import Consumer

from cdc.config.config_file import Config
from cdc.config.views import view_topics
from cdc.kafka.client import client_settings
from cdc.kafka.topic_reader import open_reader
from sinks.contract import StoredRow
from watershed.demo.shop_views import ALERTS

SHOWN: Final = 3
RECORDS_MAX: Final = 10_000  # that are taken together


class Alerts:
    """The alerts over time."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, int]] = {}  # by the record's key: the search's name, the order
        self._lines: deque[str] = deque(maxlen=SHOWN)
        self.started = self.stopped = 0

    def take(self, key: bytes, value: bytes | None) -> None:
        """Takes a record of the topic."""
        known = self._known.pop(key, None)
        if value is None:
            if known is not None:
                self.stopped += 1
                self._lines.appendleft(f"order {known[1]} no longer meets “{known[0]}”")
            return
        row = json.loads(value)
        self._known[key] = row["search"], row["order_id"]
        if known is None:
            self.started += 1
            self._lines.appendleft(f"order {row['order_id']} meets “{row['search']}”")

    @property
    def count(self) -> int:
        return len(self._known)

    def shown(self) -> tuple[str, ...]:
        """Returns what started or stopped last."""
        return tuple(self._lines)


class AlertTopic:
    """A consumer of the topic, from its beginning. Not thread-safe."""

    def __init__(self, config: Config) -> None:
        self._consumer = _consumer(config)
        self._consumer.subscribe([_topic(config)])

    def close(self) -> None:
        self._consumer.close()

    def take(self, alerts: Alerts, wait_s: float) -> None:
        """Hands over what arrives within this time."""
        for message in self._consumer.consume(RECORDS_MAX, wait_s):
            if message.error() is None:  # other errors are temporary: the topic does not exist yet
                alerts.take(message.key() or b"", message.value())


def stored_alerts(config: Config) -> Iterator[StoredRow]:
    """Yields the view's rows: the last record of each key, up to the topic's present end."""
    name = _topic(config)
    rows: dict[bytes, StoredRow] = {}
    with open_reader(config.kafka) as reader:
        for partition in reader.partitions(name):
            for message in reader.read(name, partition):
                key, value = message.key() or b"", message.value()
                headers: dict[str, Any] = dict(message.headers() or ())
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = StoredRow(json.loads(key), json.loads(value), int(headers["version"]))
    yield from rows.values()


def _topic(config: Config) -> str:
    return view_topics(config.views, config.topics.prefix)[ALERTS.name]


def _consumer(config: Config) -> Consumer:
    return Consumer(
        client_settings(
            config.kafka,
            **{
                "group.id": "watershed-demo-alerts",  # required by the client; nothing is committed
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "topic.metadata.refresh.interval.ms": 1000,  # the topic is created by the view
            },
        )
    )
