"""What is done about a transaction that the brokers left open, in which order. On real brokers, with kills in between:
tests/faults/test_left_open.py."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from cdc.config.config_file import Config
from cdc.kafka import hanging_transactions as hanging
from cdc.kafka.broker import StoredRecord
from cdc.kafka.daemon_thread import do_nothing
from cdc.kafka.hanging_transactions import HangingTransactions
from cdc.kafka.state_reader import StoredState
from cdc.model.control import HangingTransactionRecord, OpenPart
from cdc.model.errors import BrokerError, ConnectionLost, GapError, UnreachableError
from cdc.model.topics import Topics

ROWS_0 = OpenPart(topic="p.public.t", partition=0, start=4, end=6)
ROWS_1 = OpenPart(topic="p.public.t", partition=1, start=9, end=10)
STATE = OpenPart(topic="p.state", partition=0, start=20, end=21)
EVENTS = OpenPart(topic="things", partition=0, start=6, end=8)
PROGRESS = OpenPart(topic="p.progress", partition=0, start=2, end=4)

NOTE_KEY = HangingTransactionRecord.KEY


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
        self.theirs: set[tuple[str, int]] = set()  # topic and offset of what is committed by others
        self.has_lost_connection = False
        self.failures = 0  # to come, of questions behind the abort
        self.state_keys = [b"position"]
        self.done: list[object] = []
        self.transactional_id = "watershed-p"
        self.state = StoredState(None, (), (), 0, {}, {}, event_topics=(EVENTS.topic,))
        self.decided: dict[tuple[str, int], bool] | None = {(part.topic, part.partition): True for part in parts}

    # ---- of the admin

    def open_parts(
        self,
        names: Iterable[str],
        settles_s: float,  # noqa: ARG002
        required: Iterable[str] = (),  # noqa: ARG002
    ) -> list[OpenPart]:
        if self.failures and "abort" in self.done:
            self.failures -= 1
            raise UnreachableError("Kafka: can't list topics")
        wanted = set(names)
        return [part for part in self.parts if part.topic in wanted]

    # ---- of the broker

    def put(self, records: Iterable[StoredRecord], while_waiting: object) -> None:  # noqa: ARG002
        for record in records:
            if record.topic == STATE.topic and record.value != b"" and record.key == NOTE_KEY.encode():
                self.done.append(("note" if record.value else "forget", record.topic, NOTE_KEY))
            else:
                reported = (record.topic, record.partition, record.value, tuple(record.headers), record.timestamp_ms)
                self.done.append(("put", *reported))

    def commit(self, while_waiting: object) -> None:  # noqa: ARG002
        if isinstance(last := self.done[-1], tuple) and last[0] == "note":
            self.parts = [part for part in self.parts if part.topic != STATE.topic]
        self.done.append("commit")

    def flush_and_abort(self, while_waiting: object) -> None:  # noqa: ARG002
        self.done.append("abort")
        if self.closes:
            closed = {(entry[1], entry[2]) for entry in self.done if isinstance(entry, tuple) and entry[0] == "put"}
            closed = {place for place in closed if place[0] not in self.others_open}
            self.parts = [part for part in self.parts if (part.topic, part.partition) not in closed]


class Reader:
    """A reader with these settings."""

    def __init__(self, world: World, parts: Sequence[OpenPart], settings: dict[str, Any]) -> None:
        self._world = world
        self._parts = parts
        self._is_uncommitted = settings["isolation.level"] == "read_uncommitted"

    def read(self, topic: str, partition: int, start: int, end: int, while_waiting: object) -> list[Message]:  # noqa: ARG002
        part = next(part for part in self._parts if (part.topic, part.partition) == (topic, partition))
        keys = [b"progress" if offset % 2 else b"sink/x" for offset in range(start, end)]
        if topic == STATE.topic:
            keys = self._world.state_keys
        found = [Message(part, offset, key) for offset, key in enumerate(keys, start)]
        return [one for one in found if self._is_uncommitted or (topic, one.offset()) in self._world.theirs]


def end(world: World, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    before = list(world.parts)
    monkeypatch.setattr(hanging, "read_state", lambda _: world.state)
    monkeypatch.setattr(hanging, "outcomes", lambda *_: world.decided)
    monkeypatch.setattr(hanging, "FAILS_OVER_S_MAX", 0)
    monkeypatch.setattr(hanging, "open_reader", lambda *given: nullcontext(Reader(world, before, given[-1])))
    config = Config.model_validate(
        {
            "source": {"dsn": "host=a", "tables": ["public.t"]},
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "topics": {"prefix": "p"},
        }
    )
    HangingTransactions(config, world, world, lambda name: world.done.append(name)).end(do_nothing)  # type: ignore[arg-type]
    return world.done


def backfill(part: OpenPart) -> object:
    return ("put", part.topic, part.partition, b"", (), 0)


def again(part: OpenPart, offset: int) -> object:
    return ("put", part.topic, part.partition, b"value of %d" % offset, (("h", b"1"),), 1000 + offset)


NOTE, FORGET = ("note", "p.state", NOTE_KEY), ("forget", "p.state", NOTE_KEY)


def test_where_nothing_is_open_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert end(World(), monkeypatch) == []


def test_what_was_aborted_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_0, STATE)
    world.decided = {("p.public.t", 0): False, ("p.state", 0): False}
    assert end(world, monkeypatch) == [backfill(ROWS_0), backfill(STATE), "abort"]


def test_with_the_position_all_is_aborted_and_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    done = end(World(ROWS_0, STATE), monkeypatch)
    assert done == [
        *("left-open.recorded", backfill(ROWS_0), backfill(STATE), "abort", "left-open.aborted"),
        *(again(ROWS_0, 4), again(ROWS_0, 5), again(STATE, 20), "commit"),
    ]


def test_without_the_position_it_is_noted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done = end(World(ROWS_0, ROWS_1), monkeypatch)
    assert done == [
        *(NOTE, "commit", "left-open.recorded", backfill(ROWS_0), backfill(ROWS_1), "abort", "left-open.aborted"),
        *(again(ROWS_0, 4), again(ROWS_0, 5), again(ROWS_1, 9), FORGET, "commit"),
    ]


def test_what_others_told_of_their_progress_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done = end(World(PROGRESS, STATE), monkeypatch)
    assert again(PROGRESS, 3) in done
    assert again(PROGRESS, 2) not in done


def test_what_others_wrote_between_to_a_topic_of_events_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EVENTS, STATE)
    world.theirs = {(EVENTS.topic, 7)}
    done = end(world, monkeypatch)
    assert done[-3:] == [again(EVENTS, 6), again(STATE, 20), "commit"]
    assert again(EVENTS, 7) not in done


@pytest.mark.parametrize("is_known", [True, False])
def test_what_others_have_open_in_a_topic_of_events_is_left_to_them(
    monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    """Although we have written there too."""
    world = World(EVENTS)
    world.others_open = {EVENTS.topic}
    world.decided = {(EVENTS.topic, 0): True} if is_known else None
    done = end(world, monkeypatch)
    assert done[-2:] == [FORGET, "commit"]
    assert again(EVENTS, 6) not in done


def test_one_part_was_committed_and_another_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_0, ROWS_1)
    world.decided = {("p.public.t", 0): False, ("p.public.t", 1): True}
    done = end(world, monkeypatch)
    assert done[:2] == [backfill(ROWS_0), "abort"]
    assert again(ROWS_1, 9) in done
    assert again(ROWS_0, 4) not in done


def test_somebody_elses_transaction_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(EVENTS)
    world.decided = {}
    assert end(world, monkeypatch) == []


def test_in_a_topic_of_ours_what_the_coordinators_log_has_no_more_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compacted: after a while only the last entry of an id is there."""
    world = World(ROWS_0)
    world.decided = {}
    with pytest.raises(GapError, match="the brokers don't say"):
        end(world, monkeypatch)
    assert world.done == [NOTE, "commit", backfill(ROWS_0), "abort"]


def test_what_is_not_known_is_closed_and_a_gap_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_0, STATE)
    world.decided = None
    with pytest.raises(GapError, match=r"in p\.public\.t-0 p\.state-0 is lost: the brokers don't say"):
        end(world, monkeypatch)
    assert world.done == [NOTE, "commit", backfill(ROWS_0), backfill(STATE), "abort"]
    world.state = StoredState(None, (), (), 0, {}, {}, hanging=HangingTransactionRecord(parts=(ROWS_0,)))
    with pytest.raises(GapError, match=r"in p\.public\.t-0 is lost: capture died"):
        end(world, monkeypatch)


def test_of_state_nobody_else_writes_to_it_an_open_part_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the brokers have forgotten what they decided."""
    world = World(STATE)
    world.decided = {}
    with pytest.raises(GapError, match=r"in p\.state-0 is lost: the brokers don't say"):
        end(world, monkeypatch)


@pytest.mark.parametrize("part", [EVENTS, ROWS_1], ids=["somebody else's", "aborted"])
def test_what_was_noted_is_lost_whatever_else_is_open(monkeypatch: pytest.MonkeyPatch, part: OpenPart) -> None:
    world = World(part)
    world.decided = {("p.public.t", 1): False}
    world.state = replace(world.state, hanging=HangingTransactionRecord(parts=(ROWS_0,)))
    with pytest.raises(GapError, match=r"in p\.public\.t-0 is lost: capture died"):
        end(world, monkeypatch)


def test_who_died_before_the_abort_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_0, ROWS_1)
    world.state = StoredState(None, (), (), 0, {}, {}, hanging=HangingTransactionRecord(parts=(ROWS_0, ROWS_1)))
    assert end(world, monkeypatch)[-2:] == [FORGET, "commit"]


def test_of_what_was_noted_a_part_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_1)
    world.state = StoredState(None, (), (), 0, {}, {}, hanging=HangingTransactionRecord(parts=(ROWS_0, ROWS_1)))
    with pytest.raises(GapError, match="capture died while it wrote its records again"):
        end(world, monkeypatch)
    assert world.done == [backfill(ROWS_1), "abort"]


def test_of_what_was_noted_a_part_is_gone_and_the_other_was_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers died again while they ended it."""
    world = World(ROWS_1)
    world.decided = {("p.public.t", 1): False}
    world.state = StoredState(None, (), (), 0, {}, {}, hanging=HangingTransactionRecord(parts=(ROWS_0, ROWS_1)))
    with pytest.raises(GapError, match=r"in p\.public\.t-0,1 is lost: capture died while it wrote its records again"):
        end(world, monkeypatch)
    assert world.done == [backfill(ROWS_1), "abort"]


def test_a_note_that_was_left_open_itself_is_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_0, STATE)
    world.state_keys = [NOTE_KEY.encode()]
    assert end(world, monkeypatch) == [
        *(NOTE, "commit", "left-open.recorded", backfill(ROWS_0), "abort", "left-open.aborted"),
        *(again(ROWS_0, 4), again(ROWS_0, 5), FORGET, "commit"),
    ]


def test_nothing_is_written_anew_behind_what_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be there twice when that is ended, and be written again by each start until then."""
    world = World(ROWS_0, STATE)
    world.closes = False
    with pytest.raises(BrokerError, match="hangs in"):
        end(world, monkeypatch)
    assert world.done[-1] == "abort"
    assert "commit" not in world.done


def test_brokers_that_go_away_meanwhile_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_0, STATE)
    world.closes, world.has_lost_connection = False, True
    with pytest.raises(ConnectionLost, match="still open"):
        end(world, monkeypatch)
    assert world.done[-1] == "abort"


def test_brokers_that_can_not_be_reached_behind_the_abort_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session would find nothing open, and a gap."""
    world = World(ROWS_0)
    world.failures = 2
    monkeypatch.setattr(hanging, "WAIT_S", 0.0)
    assert end(world, monkeypatch)[-2:] == [FORGET, "commit"]
    assert world.failures == 0


def test_what_stays_open_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(ROWS_1)
    world.closes = False
    with pytest.raises(BrokerError, match=r"in p\.public\.t-1; its producer id") as caught:
        end(world, monkeypatch)
    assert f"--topic {ROWS_1.topic} --partition 1 --start-offset 9" in caught.value.hint
    assert Topics("p").state == STATE.topic
