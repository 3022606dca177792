"""What a plain consumer of one table's topic has received, in order: an account of its own, beside the judge's."""

import time
from dataclasses import dataclass
from typing import Any, Final

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from cdc.config.settings import TopicConfig
from tests.checker.judge import table_topic
from tests.checker.records import SEQ_BITS, VERSION_HEADER, Record, change_of
from tests.support.captured import Captured
from tests.support.waiting import eventually

ROUND_S_MAX: Final = 60.0
SILENCE_S: Final = 1.0  # after which nothing is under way, if nothing is written


@dataclass(slots=True)
class Counts:
    """Of records since some moment."""

    streamed: int = 0
    again: int = 0  # streamed records of changes that were received before
    read: int = 0  # rows and deletes of chunks


class Published:
    """Rows of a table `items (id, name)` in which no two changes write the same name. Raises AssertionError where the
    version of a key does not grow."""

    def __init__(self, captured: Captured) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": captured.bootstrap_servers,
            "group.id": "published",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
        self._consumer = Consumer(settings)
        topic = table_topic(captured.name, captured.tables[0])
        count = TopicConfig(prefix="t").partitions
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(count)])
        self._versions: dict[bytes, int] = {}
        self.rows: dict[int, str] = {}
        self.written: set[tuple[int, str]] = set()  # (id, name) of each streamed insert and update
        self._deleted: set[tuple[int, int | None, int]] = set()  # (id, xid, commit LSN)
        self.counts = Counts()
        self._newest_commit = 0.0

    def close(self) -> None:
        self._consumer.close()

    def await_commit(self, since: float) -> float:
        """Waits until a change is received that committed after this moment, seconds since 1970. Returns how long after
        it."""
        deadline = max(since, time.time()) + ROUND_S_MAX
        while time.time() < deadline:
            self._receive()
            if self._newest_commit > since:
                return time.time() - since
        raise AssertionError(f"nothing was published in {ROUND_S_MAX:g} s")

    def await_rows(self, rows: dict[int, str]) -> None:
        """Waits until the last records are exactly these rows, and receives what else there is."""

        def are_equal() -> bool:
            self._receive()
            return self.rows == rows

        def describe() -> str:
            return f"{sorted(rows.items() ^ self.rows.items())[:5]} differ"

        eventually(are_equal, 60.0, describe)
        while self._receive(SILENCE_S):
            pass
        assert self.rows == rows, describe()

    def _receive(self, wait_s: float = 0.05) -> int:
        """Returns how many records there were."""
        messages = [message for message in self._consumer.consume(1_000, wait_s) if message.error() is None]
        for message in messages:
            self._take(message)
        return len(messages)

    def _take(self, message: Message) -> None:
        key, value = message.key() or b"", message.value()
        if value is None:
            self._advance(key, version_in(message), is_tombstone=True)
            return
        change = change_of(Record(message.topic() or "", message.partition() or 0, message.offset() or 0, key, value))
        self._advance(key, change.epoch << SEQ_BITS | change.seq, is_tombstone=False)
        identity = int(change.key["id"])
        if change.after is None:
            self.rows.pop(identity, None)
        else:
            self.rows[identity] = change.after["name"]
        if not change.is_streamed:
            self.counts.read += 1
            return
        self._newest_commit = max(self._newest_commit, orjson.loads(value)["source"]["ts_ms"] / 1000)
        self.counts.streamed += 1
        if change.after is None:
            self._note(self._deleted, (identity, change.xid, change.commit_lsn))
        else:
            self._note(self.written, (identity, change.after["name"]))

    def _note(self, seen: set[Any], what: tuple[Any, ...]) -> None:
        self.counts.again += what in seen
        seen.add(what)

    def _advance(self, key: bytes, version: int, *, is_tombstone: bool) -> None:
        """A tombstone has the version of the delete before it."""
        last = self._versions.get(key, -1)
        assert version > last or (is_tombstone and version == last), f"{key!r}: version {version} comes after {last}"
        self._versions[key] = version


def version_in(message: Message) -> int:
    """The version in a tombstone's header."""
    value = dict(message.headers() or ())[VERSION_HEADER]
    assert isinstance(value, bytes)
    return int(value)
