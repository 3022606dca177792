"""A hanging Kafka transaction is aborted and a gap, in which order. On real brokers, with kills in between:
tests/faults/test_left_open.py."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from cdc.config.settings import Config
from cdc.kafka import hanging_transactions as hanging
from cdc.kafka.broker import PartitionRecord
from cdc.kafka.daemon_thread import nobody_waits
from cdc.kafka.hanging_transactions import HangingTransactions
from cdc.kafka.state_reader import State
from cdc.model.errors import BrokerError, ConnectionLost, GapError
from cdc.model.topics import Topics
from cdc.records.kafka_transactions import HANGING_KEY, HangingTransactionRecord, OpenPart

ROWS_0 = OpenPart(topic="p.public.t", partition=0, start=4, end=6)
ROWS_1 = OpenPart(topic="p.public.t", partition=1, start=9, end=10)
STATE = OpenPart(topic="p.state", partition=0, start=20, end=21)
EVENTS = OpenPart(topic="things", partition=0, start=6, end=8)


class Message:
    """confluent_kafka's, as far as it is asked."""

    def __init__(self, part: OpenPart, offset: int, key: bytes) -> None:
        self._part, self._offset, self._key = part, offset, key

    def topic(self) -> str:
        return self._part.topic

    def partition(self) -> int:
        return self._part.partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return b"value of %d" % self._offset

    def headers(self) -> list[tuple[str, bytes]]:
        return [("h", b"1")]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000 + self._offset


class World:
    """Brokers with these partitions open; what was done to them, in order."""

    def __init__(self, *parts: OpenPart) -> None:
        self.parts = list(parts)
        self.closes = True
        self.others_open: set[str] = set()  # topics where somebody else has a transaction open
        self.committed: set[tuple[str, int]] = set()  # topic and offset of records that are committed
        self.has_lost_connection = False
        self.done: list[object] = []
        self.state = State(None, (), (), 0, {}, {}, event_topics=(EVENTS.topic,))

    # ---- of the admin

    def open_parts(
        self,
        names: Iterable[str],
        settles_s: float,  # noqa: ARG002
        while_waiting: object,  # noqa: ARG002
        required: Iterable[str] = (),  # noqa: ARG002
    ) -> list[OpenPart]:
        wanted = set(names)
        return [part for part in self.parts if part.topic in wanted]

    # ---- of the broker

    def put(self, records: Iterable[PartitionRecord], while_waiting: object) -> None:  # noqa: ARG002
        for record in records:
            if record.topic == STATE.topic and record.value != b"" and record.key == HANGING_KEY.encode():
                self.done.append(("note" if record.value else "forget", record.topic, HANGING_KEY))
            else:
                self.done.append(("put", record.topic, record.partition))

    def still_open(self, names: Iterable[str], while_waiting: object) -> list[OpenPart]:
        return self.open_parts(names, 0, while_waiting)

    def commit(self, while_waiting: object) -> None:  # noqa: ARG002
        if isinstance(last := self.done[-1], tuple) and last[0] == "note":
            self.parts = [part for part in self.parts if part.topic != STATE.topic]
        self.done.append("commit")

    def abort_written(self, while_waiting: object) -> None:  # noqa: ARG002
        self.done.append("abort")
        if self.closes:
            closed = {(entry[1], entry[2]) for entry in self.done if isinstance(entry, tuple) and entry[0] == "put"}
            closed = {place for place in closed if place[0] not in self.others_open}
            self.parts = [part for part in self.parts if (part.topic, part.partition) not in closed]


class Reader:
    """A consumer of these settings."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.is_uncommitted = settings["isolation.level"] == "read_uncommitted"

    def close(self) -> None:
        pass


def end(world: World, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    def records(consumer: Reader, place: Any, until: int, while_waiting: object) -> list[Message]:
        part = OpenPart(topic=place.topic, partition=place.partition, start=place.offset, end=until)
        found = [Message(part, offset, b"key") for offset in range(part.start, until)]
        return [one for one in found if consumer.is_uncommitted or (part.topic, one.offset()) in world.committed]

    monkeypatch.setattr(hanging, "read_state", lambda _: world.state)
    monkeypatch.setattr(hanging, "read_records", records)
    monkeypatch.setattr(hanging, "new_client", lambda _, settings: Reader(settings))
    config = Config.model_validate(
        {
            "source": {"dsn": "host=a", "tables": ["public.t"]},
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "topics": {"prefix": "p"},
        }
    )
    HangingTransactions(config, world, world, lambda name: world.done.append(name)).require_none(nobody_waits)  # type: ignore[arg-type]
    return world.done


def abort_of(part: OpenPart) -> object:
    return ("put", part.topic, part.partition)


def noted(world: World, *parts: OpenPart) -> World:
    """An earlier start noted these, and died."""
    world.state = replace(world.state, hanging=HangingTransactionRecord(parts=parts))
    return world


NOTE, FORGET = ("note", "p.state", HANGING_KEY), ("forget", "p.state", HANGING_KEY)


def test_where_nothing_is_open_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert end(World(), monkeypatch) == []


def test_what_hangs_is_noted_then_aborted_and_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_0, ROWS_1, STATE)
    with pytest.raises(GapError, match=r"was aborted in p\.public\.t-0,1 p\.state-0, whether"):
        end(world, monkeypatch)
    aborts = [abort_of(part) for part in (ROWS_0, STATE, ROWS_1)]
    assert world.done[:2] == [NOTE, "commit"]
    assert sorted(map(str, world.done[2:5])) == sorted(map(str, aborts))
    assert world.done[5:] == ["abort", "hanging.aborted"]


def test_what_was_noted_is_a_gap_each_time_although_nothing_is_open_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = noted(World(), ROWS_0)
    with pytest.raises(GapError, match=r"was aborted in p\.public\.t-0,"):
        end(world, monkeypatch)
    assert NOTE not in world.done
    assert FORGET not in world.done


def test_what_hangs_beside_a_note_is_noted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = noted(World(ROWS_1), ROWS_0)
    with pytest.raises(GapError, match=r"was aborted in p\.public\.t-0,1,"):
        end(world, monkeypatch)
    assert world.done[:2] == [NOTE, "commit"]


def test_events_of_ours_that_hang_are_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two records there was an application's, and is committed."""
    world = World(EVENTS)
    world.committed = {(EVENTS.topic, 7)}
    with pytest.raises(GapError, match=r"was aborted in things-0,"):
        end(world, monkeypatch)
    assert world.done[-1] == "hanging.aborted"


def test_what_an_application_committed_meanwhile_is_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EVENTS)
    world.committed = {(EVENTS.topic, 6), (EVENTS.topic, 7)}
    assert end(world, monkeypatch)[-2:] == [FORGET, "commit"]


def test_what_an_application_has_open_is_looked_at_again_by_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours may be among its records."""
    world = World(EVENTS)
    world.others_open = {EVENTS.topic}
    assert end(world, monkeypatch) == [NOTE, "commit", abort_of(EVENTS), "abort", "hanging.aborted"]
    world = noted(World(), EVENTS)
    with pytest.raises(GapError, match=r"was aborted in things-0,"):
        end(world, monkeypatch)


def test_brokers_that_go_away_meanwhile_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_0, STATE)
    world.closes, world.has_lost_connection = False, True
    monkeypatch.setattr(hanging, "FAILS_OVER_S_MAX", 0)
    with pytest.raises(ConnectionLost, match="still open"):
        end(world, monkeypatch)
    assert FORGET not in world.done


def test_what_stays_open_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_1)
    world.closes = False
    with pytest.raises(BrokerError, match=r"hangs in p\.public\.t-1, by a producer id") as caught:
        end(world, monkeypatch)
    assert f"--topic {ROWS_1.topic} --partition 1 --start-offset 9" in caught.value.hint
    assert Topics("p").state == STATE.topic
