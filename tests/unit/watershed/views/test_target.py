"""The generations of a view's target: what is deleted when, over a store that is only noted."""

from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from cdc.config.config_file import Config
from sinks.errors import SinkError
from sinks.slots import Slots
from watershed.views.target import Gathering, TargetGenerations, ViewTarget
from watershed.views.targets import gathering


class NotedSlots:
    """Slots of a store that serves `g1`."""

    in_place = False

    def __init__(self, *others: str) -> None:
        self.shown = "g1"
        self.held = {"g1", *others}
        self.is_full = False
        self.closed = 0

    def others(self) -> dict[str, int | None]:
        return dict.fromkeys(sorted(self.held - {self.shown}))

    def check_room(self) -> None:
        if self.is_full:
            raise SinkError("the store is full", "make room")

    def serve(self, slot: str) -> None:
        assert slot in self.held
        self.shown = slot

    def drop(self, slot: str) -> None:
        self.held.remove(slot)

    def close(self) -> None:
        self.closed += 1


def generations(slots: NotedSlots) -> TargetGenerations:
    def open_slot(slot: str) -> ViewTarget:
        slots.held.add(slot)
        return cast("ViewTarget", slot)

    return TargetGenerations(lambda: cast("Slots", slots), open_slot)


def test_one_that_was_begun_and_given_up_is_deleted_before_the_next() -> None:
    slots = NotedSlots("g2")
    made: Any = generations(slots).begin(3)
    assert (made, slots.held, slots.shown) == ("g3", {"g1", "g3"}, "g1")


def test_the_former_one_is_deleted_when_the_new_one_serves() -> None:
    slots = NotedSlots()
    found = generations(slots)
    found.begin(2)
    found.serve(2)
    assert (slots.held, slots.shown) == ({"g2"}, "g2")
    assert slots.closed == 4, "each connection is closed"


@pytest.mark.parametrize(("noted", "held", "is_resumed"), [(2, 2, True), (None, 2, False), (2, None, False)])
def test_one_that_was_filled_is_opened_again_if_it_is_whole(
    noted: int | None, held: int | None, is_resumed: bool
) -> None:
    """`noted`: the generation that the store has for the slot; `held`: that of all its tables."""
    target, slots = MagicMock(), MagicMock()
    target.generation.return_value = held
    slots.others.return_value = {"g2": noted, "g3": 3}
    opened: list[str] = []

    def open_slot(slot: str) -> ViewTarget:
        opened.append(slot)
        return cast("ViewTarget", target)

    found = TargetGenerations(lambda: slots, open_slot).resume(2)
    assert (found is target, opened) == (is_resumed, ["g2"] * (noted is not None))
    assert target.close.call_count == (1 if opened and not is_resumed else 0)
    assert slots.close.call_count == 1
    assert not slots.drop.called
    assert TargetGenerations(lambda: slots, open_slot).resume(4) is None


def test_none_is_begun_in_a_store_without_room() -> None:
    slots = NotedSlots()
    slots.is_full = True
    with pytest.raises(SinkError, match="full"):
        generations(slots).begin(2)
    assert slots.held == {"g1"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_first_write_does_not_wait_and_the_next_one_waits_for_the_interval() -> None:
    clock = Clock()
    one = Gathering(10, 5.0, clock)
    assert one.is_due()
    one.begin(3)
    clock.now_s += 4.9
    assert not one.is_due()
    clock.now_s += 0.1
    assert one.is_due()


def test_keys_that_are_too_many_for_one_write_do_not_wait() -> None:
    clock = Clock()
    one = Gathering(10, 5.0, clock)
    one.begin(10)
    assert one.is_due()
    one.begin(9)
    assert not one.is_due()


def test_without_an_interval_keys_never_wait() -> None:
    clock = Clock()
    one = Gathering(10, now=clock)
    one.begin(1)
    assert one.is_due()


def test_a_warehouse_is_written_at_its_trigger_with_many_keys() -> None:
    view = {"base": "copy", "sql": "SELECT id FROM orders", "key": ["id"], "keys_per_batch": 7}
    settings = Config.model_validate(
        {
            "source": {"dsn": "postgresql://localhost/shop", "tables": ["public.orders"]},
            "kafka": {"bootstrap_servers": "localhost:9092"},
            "topics": {"prefix": "shop"},
            "sinks": {"copy": {"type": "sql", "url": "postgresql://localhost/copy"}},
            "views": {
                "lake": view | {"target": {"type": "warehouse", "catalog_uri": "jdbc:sqlite:/c.db", "location": "/w"}},
                "stream": view | {"target": {"type": "topic"}},
            },
        }
    )
    lake, stream = gathering(settings, "lake"), gathering(settings, "stream")
    assert (lake.keys_max, stream.keys_max) == (10_000, 7)
    lake.begin(1)
    stream.begin(1)
    assert (lake.is_due(), stream.is_due()) == (False, True)
