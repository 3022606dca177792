"""Too few task slots for the queries that run are named, with what to do."""

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from spark_jobs.jvm import task_slots
from spark_jobs.task_slots import CHECK_S, GRACE_S, Shortage, SlotWatch, needed_slots, shortage


@pytest.mark.parametrize(
    ("queries", "needed"),
    [((), 0), (("cache",), 1), (("cache", "search"), 2), (("cache", "cache"), 2), (("lake", "lake"), 1),
     (("cache", "lake", "lake"), 2)],
)  # fmt: skip
def test_live_queries_need_a_slot_each_and_bounded_ones_take_turns(queries: tuple[str, ...], needed: int) -> None:
    assert needed_slots(queries, {"lake"}) == needed


def test_what_is_missing_is_named_with_the_setting_of_the_master() -> None:
    assert shortage(3, 3, "local[3]") is None
    local = shortage(1, 3, "local[1]")
    assert local is not None
    assert "1 task slot, and the running queries of sinks need 3" in local.message
    assert "local[3] or more" in local.next
    cluster = shortage(0, 2, "spark://host:7077")
    assert cluster is not None
    assert "no task slot" in cluster.message
    assert "--conf spark.cores.max=2" in cluster.next


class World:
    def __init__(self, master: str) -> None:
        self.slots: int | None = 1
        self.needed = 1
        self.reports: list[Shortage | None] = []
        self._watch = SlotWatch(lambda: self.slots, lambda: self.needed, master, self.reports.append)
        self._now_s = 100.0

    def check(self, after_s: float = CHECK_S) -> int:
        """Returns the number of reports."""
        self._now_s += after_s
        self._watch.check(self._now_s)
        return len(self.reports)


def test_a_query_that_starts_later_is_noticed_and_said_once() -> None:
    """A sink that is built again has two queries."""
    world = World("local[1]")
    assert world.check() == 0
    world.needed = 2
    assert (world.check(), world.check(), world.check()) == (1, 1, 1)
    world.needed = 3
    assert world.check() == 2, "another number is another report"
    world.needed = 1
    assert (world.check(), world.check()) == (3, 3)
    assert world.reports[-1] is None


def test_executors_of_a_cluster_have_time_to_come() -> None:
    world = World("spark://host:7077")
    world.slots = 0
    assert (world.check(), world.check(GRACE_S - 1)) == (0, 0)
    world.slots = 1
    assert world.check() == 0
    world.slots = 0
    assert (world.check(), world.check(GRACE_S / 2), world.check(GRACE_S / 2)) == (0, 0, 1)


def test_looks_are_rare_and_unknown_slots_are_no_shortage() -> None:
    world = World("local[1]")
    world.needed = 2
    world.slots = None
    assert world.check() == 0
    world.slots = 1
    assert (world.check(CHECK_S / 2), world.check(CHECK_S / 2)) == (0, 1)


def test_a_spark_that_does_not_say_has_unknown_slots() -> None:
    def refuse() -> Any:
        raise Py4JError("Method maxNumConcurrentTasks does not exist")

    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=refuse)))
    assert task_slots(session) is None
