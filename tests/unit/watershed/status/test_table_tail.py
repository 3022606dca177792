"""Following a table, with topics that are lists."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.model.control import SweepRecord
from cdc.model.errors import UnreachableError
from cdc.model.events import TableId, pack_version
from watershed.status.table_records import PublishedRecord
from watershed.status.table_tail import TableTail, sweep_line

TABLE, TOPIC, CONTROL = TableId("public", "orders"), "shop.public.orders", "shop.control"


class Message:
    def __init__(self, topic: str, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
        self._parts = topic, partition, offset, key, value

    def topic(self) -> str:
        return self._parts[0]

    def partition(self) -> int:
        return self._parts[1]

    def offset(self) -> int:
        return self._parts[2]

    def key(self) -> bytes:
        return self._parts[3]

    def value(self) -> bytes | None:
        return self._parts[4]

    def headers(self) -> None:
        return None


class Topics:
    """Implements table_tail.Reader."""

    def __init__(self, partitions: int = 2) -> None:
        self.count = partitions
        self.content: dict[tuple[str, int], list[Message]] = {}
        self.places: dict[tuple[str, int], int] = {}

    def write(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        held = self.content.setdefault((topic, partition), [])
        held.append(Message(topic, partition, len(held), key, value))

    def partitions(self, topic: str) -> list[int]:
        assert topic == TOPIC
        return list(range(self.count))

    def end(self, topic: str, partition: int = 0) -> int:
        return len(self.content.get((topic, partition), []))

    def follow(self, topic: str, partition: int = 0, start: int | None = None) -> None:
        self.places[topic, partition] = start or 0

    def read_to(self, topic: str, end: int, partition: int = 0) -> Iterator[Any]:
        while self.places[topic, partition] < end:
            yield self.content[topic, partition][self.places[topic, partition]]
            self.places[topic, partition] += 1

    def require_leader(self, topic: str, partition: int = 0) -> None:
        raise UnreachableError(f"the leader of topic {topic}, partition {partition} does not answer", "start it")

    def arrivals(self, wait_s: float, records_max: int = 5_000) -> list[Any]:
        del wait_s, records_max
        found: list[Message] = []
        for place, at in self.places.items():
            found += self.content.get(place, [])[at:]
            self.places[place] = self.end(*place)
        return found


def write(topics: Topics, number: int, seq: int) -> None:
    source = {"epoch": 1, "seq": seq, "ts_us": seq}
    value = json.dumps({"op": "u", "source": source, "after": {"id": number, "n": seq}, "before": None}).encode()
    topics.write(TOPIC, number % topics.count, json.dumps({"id": number}).encode(), value)


def tail(topics: Topics, only: int | None = None) -> TableTail:
    def is_wanted(record: PublishedRecord) -> bool:
        return only is None or record.key == {"id": only}

    return TableTail(topics, TABLE, (TOPIC, CONTROL), is_wanted, lambda content: content)


def seqs(records: list[PublishedRecord]) -> list[int]:
    return [record.row["n"] for record in records if record.row is not None]


def test_only_what_arrives_is_followed() -> None:
    topics = Topics()
    write(topics, 1, 1)
    followed = tail(topics)
    assert followed.begin(0) == []
    write(topics, 1, 2)
    write(topics, 2, 3)
    assert sorted(seqs(followed.poll(0))) == [2, 3]
    assert followed.poll(0) == []


def test_the_last_records_of_all_partitions_come_first_in_the_order_of_time() -> None:
    topics = Topics()
    for seq in range(1, 1_000):
        write(topics, seq % 5, seq)
    followed = tail(topics)
    assert seqs(followed.begin(3)) == [997, 998, 999]
    write(topics, 1, 1_000)
    assert seqs(followed.poll(0)) == [1_000], "nothing is printed twice"


def test_one_key_can_be_followed_alone() -> None:
    topics = Topics()
    for seq in range(1, 20):
        write(topics, seq % 5, seq)
    followed = tail(topics, only=3)
    assert seqs(followed.begin(2)) == [13, 18]
    write(topics, 3, 20)
    write(topics, 4, 21)
    assert seqs(followed.poll(0)) == [20]


def test_a_truncate_is_seen_as_the_sweep_that_it_is_and_those_of_other_tables_are_not() -> None:
    topics = Topics()
    followed = tail(topics, only=3)
    followed.begin(1)
    for table in (TABLE, TableId("public", "others")):
        sweep = SweepRecord.of(table, pack_version(2, 9), 500, 2, 0)
        topics.write(CONTROL, 0, sweep.record_key.encode(), sweep.encode())
    topics.write(CONTROL, 0, b"schema/public.orders/1", b"{}")
    (found,) = followed.poll(0)
    assert (found.op, found.version, found.commit_lsn) == ("sweep", pack_version(2, 9), 500)
    assert "rows with versions below 2.9 are gone" in sweep_line(found)


def test_brokers_that_do_not_answer_are_noticed_on_request() -> None:
    followed = tail(Topics())
    followed.begin(0)
    assert followed.poll(0) == []
    with pytest.raises(UnreachableError, match=f"the leader of topic {TOPIC}"):
        followed.require_answer()
