"""From observations to the status."""

import pytest

from cdc.model.errors import UnreachableError
from cdc.model.job_records import QueryRecord
from cdc.model.table_state import SelectionRecord
from tests.support.pipeline_records import position, published
from tests.support.status_facts import (
    MIB,
    ORDERS,
    TOPIC,
    Clock,
    applied,
    condition,
    config,
    query,
    reading,
    slot,
    source,
    standing,
    topics,
)
from watershed.status.compute import lag_records, wal_budget
from watershed.status.facts import TopicFacts
from watershed.status.model import QueryStatus


def test_a_pipeline_in_step_has_no_lag_and_no_problem() -> None:
    status = Clock().status(reading(topics_found=topics(sinks=(applied(),))))
    assert (status.capture.lag_bytes, status.capture.lag_seconds) == (0, 0.0)
    assert (status.sinks[0].lag_bytes, status.sinks[0].lag_records, status.sinks[0].lag_seconds) == (0, 0, 0.0)
    assert (status.source.lsn, status.capture.lsn, status.sinks[0].applied_lsn) == ("0/3E8", "0/3E8", "0/3E8")
    assert status.problems == ()


def test_lags_are_bytes_records_and_seconds() -> None:
    clock = Clock()
    clock.status(reading(source(1000), topics(1000, sinks=(applied(1000),))))
    clock.status(reading(source(5000), topics(1000, sinks=(applied(1000),))))
    status = clock.status(reading(source(9000), topics(5000, ends=30, sinks=(applied(1000, 10),))))
    assert (status.capture.lag_bytes, status.capture.lag_seconds) == (4000, 0.0)
    sink = status.sinks[0]
    assert (sink.lag_bytes, sink.lag_records, sink.lag_seconds) == (8000, 20, 1.0)


def test_a_lag_from_before_the_first_look_is_at_most_as_old_as_the_last_commit() -> None:
    clock = Clock()
    old = topics(1000)
    assert old.progress is not None
    progress = old.progress.model_copy(update={"commit_ts_us": round((1e6 - 60) * 1e6)})
    status = clock.status(reading(source(9000), topics(1000, progress=progress)))
    assert status.capture.lag_seconds == 61.0


def test_a_sink_of_an_earlier_epoch_has_no_lag_in_bytes() -> None:
    status = Clock().status(reading(topics_found=topics(sinks=(applied(1000, epoch=0),))))
    assert status.sinks[0].lag_bytes is None


def test_the_newest_generation_of_each_sink_is_shown() -> None:
    records = (applied(900), applied(500, generation=2), applied(7, sink="cache"))
    status = Clock().status(reading(topics_found=topics(sinks=records)))
    assert [(sink.sink, sink.generation) for sink in status.sinks] == [("cache", 1), ("search", 2)]


def test_tables_that_a_sink_leaves_out_are_no_lag() -> None:
    progress = published(1, {TOPIC: (5, 7), "shop.public.notes": (3,), "shop.unknown": (9,)})
    assert lag_records(config(), applied(offset=2), progress) == 3 + 7 + 3
    assert lag_records(config(), applied(offset=2, excluded=("public.notes",)), progress) == 3 + 7
    assert lag_records(config(), applied(), None) == 0


def test_freshness_is_the_way_from_the_commit_to_the_reader() -> None:
    record = applied(commit_ts_us=5_000_000, applied_ts_us=5_250_000)
    assert Clock().status(reading(topics_found=topics(sinks=(record,)))).sinks[0].freshness_seconds == 0.25


def test_tables_say_whether_they_are_read_or_followed() -> None:
    assert [table.state for table in Clock().status(reading()).tables] == ["streaming", "not captured"]
    read = (
        Clock().status(reading(topics_found=topics(snapshots={ORDERS: standing()}, dead_letters={ORDERS: 3}))).tables[0]
    )
    assert (read.state, read.dead_letters) == ("snapshotting", 3)
    assert read.snapshot is not None
    assert (read.snapshot.rows, read.snapshot.rows_total, read.snapshot.seconds_left) == (50, 200, 15.0)
    done = Clock().status(reading(topics_found=topics(snapshots={ORDERS: standing("done")}))).tables[0]
    assert done.state == "streaming"


def test_what_a_process_says_of_itself_is_its_state() -> None:
    conditions = (condition(state="standby", is_failure=False), condition("sink", name="search", message="away"))
    status = Clock().status(reading(topics_found=topics(sinks=(applied(),)), conditions=conditions))
    assert status.capture.state == "standby"
    assert (status.sinks[0].state, status.sinks[0].error, status.sinks[0].next) == ("retrying", "away", "start it")
    assert Clock().status(reading()).capture.state == "streaming", "otherwise the position's"


@pytest.mark.parametrize(
    ("limit", "safe", "own", "expected"),
    [
        (None, None, None, (None, None, None)),
        (64 * MIB, 48 * MIB, None, (64 * MIB, 48 * MIB, 48.0)),
        (None, None, 32 * MIB, (32 * MIB, 22 * MIB, 22.0)),
        (64 * MIB, 48 * MIB, 32 * MIB, (32 * MIB, 22 * MIB, 22.0)),
        (None, None, 1 * MIB, (1 * MIB, 0, 0.0)),
    ],
)
def test_the_budget_is_the_smaller_limit(
    limit: int | None, safe: int | None, own: int | None, expected: tuple[int | None, int | None, float | None]
) -> None:
    """10 MiB are retained, and 1 MiB is written every second."""
    found = slot(restart_lsn=90 * MIB, safe_wal_bytes=safe)
    budget = wal_budget(source(100 * MIB, slot_wal_bytes_max=limit), found, own, float(MIB))
    assert budget.retained_bytes == 10 * MIB
    assert (budget.limit_bytes, budget.remaining_bytes, budget.seconds_left) == expected


def test_nothing_streams_without_a_process() -> None:
    """The position record says `streaming` for as long as nobody starts capture again."""
    stopped = Clock().status(reading(source(slot=slot(is_active=False))))
    assert stopped.capture.state == "not streaming"
    assert [table.state for table in stopped.tables] == ["not streaming", "not captured"]
    gone = Clock().status(reading(source(slot=None)))
    assert gone.capture.state == "not streaming"
    away = Clock().status(reading(source_error=UnreachableError("away", "start it"), topics=topics()))
    assert away.capture.state == "unknown"
    loading = Clock().status(reading(source(slot=slot(is_active=False)), topics(position=position(1, phase="loading"))))
    assert loading.capture.state == "loading"


def test_a_store_that_has_applied_nothing_is_not_a_few_seconds_behind() -> None:
    clock = Clock()
    nothing = topics(ends=10, sinks=(applied(0, epoch=0),))
    clock.status(reading(topics_found=nothing))
    (sink,) = clock.status(reading(topics_found=nothing), after_s=2.2).sinks
    assert (sink.lag_seconds, sink.unread_seconds, sink.is_catching_up) == (None, None, True)


def test_a_sink_that_keeps_pace_is_not_catching_up() -> None:
    """At a steady rate a few records are always on their way."""
    clock = Clock()
    for second in range(1, 40):
        sink = applied(1000 + 30 * (second - 1), 30 * (second - 1), patience_s=7.0)
        topics_found = topics(1000 + 30 * second, ends=30 * second, sinks=(sink,))
        (found,) = clock.status(reading(source(1000 + 30 * second), topics_found)).sinks
        assert (found.lag_records, found.is_catching_up) == (30, False)
    late = topics(90_000, ends=90_000, sinks=(applied(2000, 1000, patience_s=7.0),))
    assert clock.status(reading(source(90_000), late), after_s=9.0).sinks[0].is_catching_up


def test_the_last_batch_of_a_query_is_that_of_the_served_generation() -> None:
    """A generation that is built beside it has a query of its own."""
    topics_found = topics(sinks=(applied(),), queries=(query(generation=2, records=9), query(), query(sink="cache")))
    (sink,) = Clock().status(reading(topics_found=topics_found)).sinks
    assert sink.query is not None
    assert (sink.query.batch, sink.query.records, sink.query.records_per_second) == (4, 500, 250)
    assert (sink.query.batch_seconds, sink.query.overhead_seconds, sink.query.failures) == (2.0, 0.5, 1)
    assert Clock().status(reading(topics_found=topics(sinks=(applied(),)))).sinks[0].query is None


def test_a_query_without_a_finished_batch_has_no_figures() -> None:
    started = QueryRecord(sink="search", generation=1, failures=2)
    (sink,) = Clock().status(reading(topics_found=topics(sinks=(applied(),), queries=(started,)))).sinks
    assert sink.query == QueryStatus(failures=2)


def test_what_is_owed_is_said_of_tables_and_stores() -> None:
    progress = published(1000).model_copy(update={"owed": {"public.orders": "a heal"}})
    status = Clock().status(
        reading(topics_found=topics(progress=progress, sinks=(applied(owed={"public.notes": "a heal"}),)))
    )
    assert [table.owed for table in status.tables] == ["a heal", ""]
    assert status.sinks[0].owed == {"public.notes": "a heal"}


def test_a_lost_slot_has_no_budget_left() -> None:
    found = slot(restart_lsn=None, wal_status="lost")
    assert wal_budget(source(slot_wal_bytes_max=MIB), found, None, 5.0).remaining_bytes == 0


def test_tables_are_those_of_the_configuration_in_force() -> None:
    """Patterns took a table that this process, which does not read the catalog, can't know."""
    selection = SelectionRecord(include=("public.*",), exclude=(), tables=(str(ORDERS), "public.fresh"))
    status = Clock().status(reading(topics_found=topics(selection=selection)))
    assert {table.table for table in status.tables} == {"public.fresh", str(ORDERS), "public.notes"}


def test_nothing_is_known_of_servers_that_do_not_answer() -> None:
    status = Clock().status(reading(source=None, topics=TopicFacts()))
    assert (status.source.lsn, status.source.slot, status.capture.lsn, status.sinks) == (None, None, None, ())
