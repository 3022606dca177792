"""What keeps the pipeline from its work."""

from dataclasses import replace
from typing import Any

import pytest

from cdc.model.errors import GapError, UnreachableError
from cdc.model.job_records import RebuildRecord
from cdc.model.lost_events import LostEventsRecord
from cdc.model.sink_records import RefusedTopic
from cdc.model.table_state import TableRecord
from tests.support.pipeline_records import position, published
from tests.support.status_facts import (
    MIB,
    ORDERS,
    TOPIC,
    Clock,
    applied,
    comparison,
    condition,
    config,
    query,
    reading,
    sink_error,
    slot,
    source,
    standing,
    topics,
)
from watershed.http.routes import CAPTURE, sinks_scope
from watershed.status.facts import Reading, TopicFacts
from watershed.status.model import Problem


def problems(observed: Reading, **http: Any) -> list[Problem]:
    found = list(Clock(config(**http)).status(observed).problems)
    assert all(problem.message and problem.next for problem in found)
    return found


REFUSED = RefusedTopic(table=str(ORDERS), reason="not a change record", next="mend it", places={0: 4}, is_left_out=True)
STOPPED = TableRecord.stopped(ORDERS, GapError("it lost its key", "give it one"), 1, is_held=False)


@pytest.mark.parametrize(
    ("observed", "part", "expected"),
    [
        (reading(source_error=UnreachableError("PostgreSQL is away", "start it")), "source", "PostgreSQL is away"),
        (reading(topics_error=UnreachableError("Kafka is away", "start it")), "brokers", "Kafka is away"),
        (reading(source(slot=None)), "source", "slot watershed does not exist any more"),
        (reading(source(slot=slot(wal_status="lost", invalidation="wal_removed"))), "source", "is lost (wal_removed)"),
        (reading(source(slot=slot(wal_status="unreserved"))), "source", "may remove WAL"),
        (
            reading(source(slot=slot(safe_wal_bytes=MIB), slot_wal_bytes_max=10 * MIB)),
            "source",
            "1,048,576 bytes of 10,485,760 are left",
        ),
        (reading(source(has_publication=False)), "source", "publication watershed does not exist any more"),
        (reading(topics_found=topics(damage=GapError("the checksum does not fit", "look"))), "capture", "checksum"),
        (reading(conditions=(condition(state="gap", message="state GAP: x"),)), "capture", "state GAP: x"),
        (reading(topics_found=topics(tables={ORDERS: STOPPED})), "table", "it lost its key"),
        (reading(conditions=(condition("sink", name="search"),)), "sink", "Kafka: away"),
        (
            reading(
                topics_found=topics(
                    sinks=(applied(owed={str(ORDERS): "not a change record"}, refused={TOPIC: REFUSED}),)
                )
            ),
            "sink",
            "search does not read public.orders on: not a change record",
        ),
    ],
)
def test_what_stops_a_part_is_an_error_of_that_part(observed: Reading, part: str, expected: str) -> None:
    found = problems(observed)
    assert [(problem.part, problem.severity) for problem in found] == [(part, "error")]
    assert expected in found[0].message


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        (
            reading(topics_found=topics(snapshots={ORDERS: standing("failed", message="no memory")})),
            "has failed: no memory",
        ),
        (reading(topics_found=topics(dead_letters={ORDERS: 2}, skipped={ORDERS: 1})), "3 changes of public.orders"),
        (reading(topics_found=topics(sinks=(applied(dead_letters=4),))), "rejected 4 rows"),
        (reading(topics_found=topics(lost_events=(LostEventsRecord(epoch=2, from_lsn=1),))), "events of 1 gaps"),
    ],
)
def test_what_somebody_should_know_is_a_warning(observed: Reading, expected: str) -> None:
    found = problems(observed)
    assert [problem.severity for problem in found] == ["warning"]
    assert expected in found[0].message


def test_before_the_first_start_a_missing_slot_is_no_problem() -> None:
    fresh = topics(position=position(0, phase="intent"), progress=None)
    assert problems(reading(source(slot=None, has_publication=False), fresh)) == []
    assert problems(reading(source(slot=None, has_publication=False), topics=TopicFacts())) == []


def test_a_budget_of_which_enough_is_left_is_no_problem() -> None:
    assert problems(reading(source(slot=slot(safe_wal_bytes=5 * MIB), slot_wal_bytes_max=10 * MIB))) == []


def test_capture_stands_still_when_the_source_has_moved_for_five_seconds_and_it_has_not() -> None:
    clock = Clock()
    clock.status(reading(source(1000)))
    for _ in range(5):
        assert clock.status(reading(source(9000))).problems == ()
    found = clock.status(reading(source(9000))).problems
    assert [problem.part for problem in found] == ["capture"]
    assert "8,000 bytes behind" in found[0].message
    assert clock.status(reading(source(9000), topics(9000))).problems == ()


def test_an_idle_source_is_not_a_capture_that_stands_still() -> None:
    clock = Clock()
    for _ in range(100):
        assert clock.status(reading()).problems == ()
    assert clock.status(reading(source(9000))).problems == (), "it has a moment to follow"
    assert clock.status(reading(source(9000), topics(9000))).problems == ()


def test_a_capture_that_moves_is_not_one_that_stands_still_however_late_it_is() -> None:
    clock = Clock()
    for number in range(100):
        progress = published(1000 + number).model_copy(update={"published_ts_us": round((1e6 + number) * 1e6)})
        topics_found = topics(1000 + number, progress=progress)
        assert clock.status(reading(source(90_000 + 100 * number), topics_found)).problems == ()


def test_a_sink_stands_still_when_records_wait_and_its_position_has_not_moved() -> None:
    clock, now_us = Clock(), round(1e12)
    late = topics(ends=10, sinks=(applied(offset=3, applied_ts_us=now_us, patience_s=6.0),))
    for _ in range(6):
        assert clock.status(reading(topics_found=late)).problems == ()
    found = clock.status(reading(topics_found=late)).problems
    assert [(problem.part, problem.name) for problem in found] == [("sink", "search")]
    assert "7 published records" in found[0].message
    moved = topics(ends=10, sinks=(applied(offset=4, applied_ts_us=now_us + 7_000_000),))
    assert clock.status(reading(topics_found=moved)).problems == ()


def test_records_that_come_after_a_long_silence_are_given_their_time() -> None:
    clock, long_ago = Clock(), round((1e6 - 17) * 1e6)
    clock.status(reading(topics_found=topics(ends=3, sinks=(applied(offset=3, applied_ts_us=round(1e12)),))))
    late = topics(ends=10, sinks=(applied(offset=3, applied_ts_us=long_ago + 15_000_000),))
    assert clock.status(reading(topics_found=late)).problems == ()


def test_who_looks_for_a_moment_only_sees_a_long_silence() -> None:
    clock = Clock()
    dead = topics(ends=10, sinks=(applied(offset=3, applied_ts_us=round((1e6 - 60) * 1e6)),))
    assert clock.status(reading(topics_found=dead)).problems == ()
    assert [problem.part for problem in clock.status(reading(topics_found=dead)).problems] == ["sink"]


def test_a_sink_that_stands_still_says_its_last_error_and_the_remedy() -> None:
    clock = Clock()
    dead = topics(
        ends=10,
        sinks=(applied(offset=3, applied_ts_us=round((1e6 - 60) * 1e6)),),
        sink_errors={"search": sink_error()},
    )
    clock.status(reading(topics_found=dead))
    (found,) = clock.status(reading(topics_found=dead)).problems
    assert found.message.endswith("its last error: search: the store is away")
    assert found.next == "start the store"


def test_an_error_that_has_passed_is_none() -> None:
    topics_found = topics(sinks=(applied(applied_ts_us=round((1e6 + 1) * 1e6)),), sink_errors={"search": sink_error()})
    status = Clock().status(reading(topics_found=topics_found))
    assert (status.sinks[0].error, status.problems) == ("", ())


def test_a_sink_that_stopped_before_its_first_position_is_a_problem() -> None:
    topics_found = topics(sink_errors={"search": sink_error(is_final=True), "retired": sink_error("retired")})
    assert [(one.name, one.next) for one in problems(reading(topics_found=topics_found))] == [
        ("search", "start the store")
    ]


def test_a_sink_that_is_not_configured_any_more_is_a_warning() -> None:
    clock = Clock()
    old = topics(ends=10, sinks=(applied(offset=3, sink="retired", applied_ts_us=round((1e6 - 60) * 1e6)),))
    clock.status(reading(topics_found=old))
    assert [problem.severity for problem in clock.status(reading(topics_found=old)).problems] == ["warning"]


@pytest.mark.parametrize("name", ["warehouse", "added_later"])
def test_the_warehouse_has_the_time_between_two_of_its_batches(name: str) -> None:
    """Also one that the configuration of this process does not have yet."""
    clock = Clock()
    slow = applied(offset=3, sink=name, applied_ts_us=round(1e12), store="warehouse", patience_s=25.0)
    late = topics(ends=10, sinks=(slow,))
    for _ in range(25):
        assert clock.status(reading(topics_found=late)).problems == ()
    clock.status(reading(topics_found=late))
    status = clock.status(reading(topics_found=late))
    assert ([problem.name for problem in status.problems], status.sinks[0].type) == ([name], "warehouse")


def test_each_process_answers_for_its_part() -> None:
    observed = reading(
        source(slot=None),
        topics(tables={ORDERS: STOPPED}),
        conditions=(condition("sink", name="search"), condition("sink", name="cache")),
    )
    status = Clock().status(observed)
    assert [one.part for one in status.errors(CAPTURE.parts, CAPTURE.names)] == ["source", "table"]
    mine = sinks_scope(frozenset({"cache"}))
    assert [one.name for one in status.errors(mine.parts, mine.names)] == ["cache"]


@pytest.mark.parametrize(
    ("status", "command"),
    [
        ("paused", "cdc snapshot resume --table public.orders"),
        ("failed", "remove the cause, then: cdc snapshot resume --table public.orders"),
        ("cancelled", "cdc snapshot start --table public.orders reads all rows"),
    ],
)
def test_rows_that_are_owed_and_not_read_make_capture_unready(status: str, command: str) -> None:
    found = Clock().status(reading(topics_found=owing(snapshots={ORDERS: standing(status, message="")})))
    (reason,) = found.errors(CAPTURE.parts, CAPTURE.names)
    assert reason.message.startswith("rows are owed: public.orders: its first snapshot is running")
    assert reason.next == command
    assert problems(reading(topics_found=owing(snapshots={ORDERS: standing("running")}))) == []


def test_rows_that_are_owed_while_nothing_runs_are_an_error_though_the_source_is_idle() -> None:
    clock, idle = Clock(), reading(source(slot=slot(is_active=False)), owing(snapshots={ORDERS: standing("running")}))
    assert clock.status(idle).problems == ()
    (found,) = clock.status(idle, after_s=60.0).problems
    assert (found.part, found.severity) == ("capture", "error")
    assert "public.orders: its first snapshot is running; no process streams" in found.message
    assert found.next.startswith("start `cdc run`")


def owing(**fields: Any) -> TopicFacts:
    topics_found = topics(**fields)
    assert topics_found.progress is not None
    owed = {"public.orders": "its first snapshot is running"}
    return replace(topics_found, progress=topics_found.progress.model_copy(update={"owed": owed}))


def test_a_slot_of_which_the_prefix_has_no_state_is_probably_another_prefix_s() -> None:
    (found,) = problems(reading(topics_found=TopicFacts(prefixes=("shop_1", "shop_2"))))
    assert (found.part, found.severity) == ("source", "warning")
    assert found.next.startswith("topics.prefix is probably mistyped; topics of these prefixes exist: shop_1, shop_2.")
    (found,) = problems(reading(topics_found=TopicFacts()))
    assert found.next.startswith("check topics.prefix and kafka.bootstrap_servers")
    assert (
        problems(reading(topics_found=TopicFacts(), topics_error=UnreachableError("away", "start it")))[0].part
        == "brokers"
    )


@pytest.mark.parametrize(("days", "severity"), [(3.4, None), (3.6, "warning"), (7.1, "error")])
def test_records_that_a_sink_has_not_read_for_half_the_retention_are_an_alarm(
    days: float, severity: str | None
) -> None:
    """Of the commit that it applied last, where the beginning of its lag was not observed."""
    committed_us = round((1e6 - days * 86_400) * 1e6)
    late = applied(500, 5, commit_ts_us=committed_us, applied_ts_us=round(1e6 * 1e6))
    found = problems(reading(topics_found=topics(1000, ends=10, sinks=(late,))))
    assert [one.severity for one in found if "has not read records" in one.message] == ([severity] if severity else [])
    in_step = late.model_copy(update={"end_offsets": {"shop.public.orders": (10,)}})
    assert problems(reading(topics_found=topics(1000, ends=10, sinks=(in_step,)))) == []


def compared(**fields: Any) -> list[str]:
    """The problems of a pipeline that is right, one second after search was compared like this, with `every` 6 h."""
    topics_found = topics(sinks=(applied(),), comparisons={"search": comparison(**fields)})
    found = Clock(config({"every": "6h"})).status(reading(topics_found=topics_found)).problems
    assert all(problem.severity == "warning" and problem.name == "search" for problem in found)
    return [problem.message for problem in found]


def test_drift_is_a_warning_and_does_not_make_a_process_unready() -> None:
    assert compared() == []
    (found,) = compared(drift={"public.orders": 4, "public.notes": 1_000})
    assert "1,004 rows" in found and "1,000 of public.notes, 4 of public.orders" in found


def test_a_comparison_that_is_late_or_was_not_whole_is_a_warning() -> None:
    assert compared(at_s=1e6 - 11 * 3600) == []
    (late,) = compared(at_s=1e6 - 13 * 3600)
    assert "every 6h" in late and "13.0 hours ago" in late
    assert compared(at_s=1e6 - 13 * 3600, is_scheduled=False) == [], "the first one may still come"
    (partial,) = compared(not_compared={"public.orders": "capture has stopped the table", "public.notes": "x"})
    assert "public.notes: x, and 1 more tables" in partial


def test_too_few_task_slots_are_a_warning_of_the_sinks_that_wait() -> None:
    short = query(shortage="Spark has 1 task slot", shortage_next="write local[2]")
    (found,) = problems(reading(topics_found=topics(sinks=(applied(),), queries=(short, query(generation=2)))))
    assert (found.part, found.name, found.severity) == ("sink", "search", "warning")
    assert found.message == "search may be late: Spark has 1 task slot"
    assert found.next == "write local[2]"


def test_rows_of_another_mapping_that_nothing_builds_again_are_a_warning() -> None:
    former = applied(end_offsets={"shop.public.orders": (10,)}, mappings={"public.orders": "former"})
    begun = {"sink": "search", "request": "r", "action": "rebuild", "asked_us": 1, "tables": ["public.orders"]}

    def found(**request: Any) -> list[Problem]:
        rebuilds = {"search": RebuildRecord.model_validate(begun | request)} if request else {}
        return problems(reading(topics_found=topics(1000, ends=10, sinks=(former,), rebuilds=rebuilds)))

    (one,) = found()
    assert (one.severity, one.name) == ("warning", "search")
    assert one.message == (
        "search has rows of public.orders that were written with another mapping than the configuration's"
    )
    assert found(status="running") == [], "they are being built"
    (failed,) = found(status="failed", message="a view depends on it", next="drop it")
    assert failed.message.endswith("; building them again was not completed (a view depends on it)")
    assert failed.next == "drop it; then start `cdc sink run search` again"
    (cancelled,) = found(status="cancelled")
    assert cancelled.message.endswith("(cancelled)") and cancelled.next.startswith("cdc reload, or start")
