"""Dead letters and positions: what is published when, and what happens to both when a call fails in between."""

from collections.abc import Callable, Mapping

import pytest

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.events import pack_version
from cdc.model.rejected_rows import RejectedRow
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.batches import BatchReport
from spark_jobs.control_reader import ControlUpdate
from tests.unit.spark_jobs.records import TOPIC, schema
from tests.unit.spark_jobs.test_sync import DEAD_LETTERS_MAX, NO_NEWS, Bench, progress, wrote


def letter(version: int) -> RejectedRow:
    return RejectedRow(
        table_schema="public",
        table_name="a",
        key={"id": 1},
        version=version,
        reason="column id: too odd",
        topic=TOPIC,
        partition=0,
        offset=3,
        rejected_us=5,
    )


def test_dead_letters_are_published_before_the_position_that_covers_them() -> None:
    report = wrote(4)
    report.dead_letters = {"1/public.a/1": letter(7)}
    later = wrote(6)
    later.dead_letters = {"1/public.a/1": None}
    bench = Bench(reports=[report])
    bench.batch()
    order = [call for call in bench.calls if call.startswith(("letters", "publish"))]
    assert order == ["letters 1/public.a/1", "publish"]
    assert bench.published[-1].dead_letters == 1
    bench.reports = [later]
    bench.batch(2)
    assert {"1/public.a/1": 7} in bench.remembered, "tasks know which letters are open"
    assert bench.remembered[-1] == {}
    assert (bench.dead_letters.open, bench.published[-1].dead_letters) == ({}, 0)
    assert [record.rejected for record in bench.published] == [{}, {"public.a": 1}, {}]


def with_dead_letters(end: int, dead_letters: Mapping[str, int | None]) -> BatchReport:
    report = wrote(end)
    report.dead_letters = {key: None if version is None else letter(version) for key, version in dead_letters.items()}
    return report


def failing() -> Callable[[], None]:
    def fail() -> None:
        raise SinkError("the store is away", "wait")

    return fail


def test_a_row_that_is_rejected_and_corrected_leaves_no_letter() -> None:
    """Seen: the second batch's tasks did not know of the letter, so they did not close it, and it stayed open."""
    bench = Bench(reports=[with_dead_letters(4, {"1/public.a/1": 7}), with_dead_letters(5, {"1/public.a/1": None})])
    bench.batch(3)
    assert bench.remembered == [{}, {"1/public.a/1": 7}, {}]
    assert (bench.dead_letters.open, bench.published[-1].rejected) == ({}, {})


def test_letters_that_the_brokers_did_not_take_are_published_before_the_position() -> None:
    bench = Bench(reports=[with_dead_letters(4, {"1/public.a/1": 7, "1/public.a/2": 8})])

    def more_arrives() -> None:
        bench.sync.state.add_report(with_dead_letters(6, {"1/public.a/1": None, "1/public.a/2": 9}), {})
        raise SinkError("no answer again", "wait")

    bench.dead_letters.while_published = [failing(), more_arrives]
    with pytest.raises(SinkError, match="away"):
        bench.batch()
    with pytest.raises(SinkError, match="no answer again"):
        bench.sync.housekeeper.work()
    assert not bench.calls.count("publish")
    bench.sync.housekeeper.work()
    assert bench.dead_letters.open == {"1/public.a/2": 9}, "what was reported last"
    assert bench.published[-1].end_offsets == {TOPIC: (6,)}
    assert bench.calls.index("publish") > max(at for at, call in enumerate(bench.calls) if call.startswith("letters"))


def test_what_could_not_be_made_readable_is_so_before_its_position_is_published() -> None:
    """Whatever thread is the next: the tables, and the letters of their rows, are not forgotten by the one that
    failed."""
    bench = Bench(reports=[with_dead_letters(4, {"1/public.a/1": 7})])
    bench.update = [NO_NEWS, NO_NEWS]
    bench.position.add_published([progress(500, 4)], [])
    seen: list[int] = []

    def fail() -> None:
        seen.append(bench.sync.state.applied.lsn)
        raise SinkError("the store is away", "wait")

    bench.sink.while_readable = [fail, lambda: seen.append(bench.sync.state.applied.lsn)]
    with pytest.raises(SinkError, match="away"):
        bench.batch()
    seen.append(bench.sync.state.applied.lsn)
    bench.calls.clear()
    bench.sync.housekeeper.work()
    assert bench.calls == ["readable a", "letters 1/public.a/1", "publish"]
    assert bench.published[-1].end_offsets == {TOPIC: (4,)}
    assert (seen, bench.sync.state.applied.lsn) == ([0, 0, 0], 500), "nobody sees the position before the rows"


def test_a_report_that_arrives_while_rows_are_made_readable_is_left_to_the_next_time() -> None:
    """Its rows may not be readable yet: neither the position nor the end of a dead letter may be published."""
    bench = Bench(reports=[with_dead_letters(4, {"1/public.a/1": 7})])
    bench.sink.while_readable = [lambda: bench.sync.state.add_report(with_dead_letters(9, {"1/public.a/1": None}), {})]
    bench.batch()
    assert bench.published[-1].end_offsets == {TOPIC: (4,)}
    assert bench.dead_letters.open == {"1/public.a/1": 7}
    bench.calls.clear()
    bench.sync.housekeeper.work()
    assert bench.calls == ["readable a", "letters 1/public.a/1", "publish"]
    assert (bench.dead_letters.open, bench.published[-1].end_offsets) == ({}, {TOPIC: (9,)})


def test_what_an_operator_discards_is_followed() -> None:
    bench = Bench()
    bench.dead_letters.open = {"1/public.a/1": 7}
    bench.dead_letters.others = {"1/public.a/1"}
    bench.sync.housekeeper.work()
    assert bench.published[-1].rejected == {}


def test_as_many_letters_as_the_limit_stop_no_sink() -> None:
    bench = Bench(reports=[with_dead_letters(4, {f"1/public.a/{number}": 7 for number in range(DEAD_LETTERS_MAX)})])
    bench.batch()
    assert bench.published[-1].dead_letters == DEAD_LETTERS_MAX


def test_letters_that_are_closed_stop_no_sink() -> None:
    """A sink that stopped with too many continues after the limit was raised or rows were corrected."""
    bench = Bench(reports=[with_dead_letters(4, {"1/public.a/1": None})])
    bench.dead_letters.open = {f"1/public.a/{number}": 7 for number in range(DEAD_LETTERS_MAX + 2)}
    bench.sync.housekeeper.publisher.dead_letters.count = DEAD_LETTERS_MAX + 2  # when it started
    bench.batch()
    assert bench.published[-1].rejected == {"public.a": DEAD_LETTERS_MAX + 1}


def test_letters_of_a_table_that_is_not_captured_any_more_are_closed() -> None:
    """It was removed from the configuration, or excluded from the sink. A table that is only stopped is owed; and a row
    that was rejected after the progress record tells of a table that was added since."""
    old, new = pack_version(1, 50), pack_version(1, 51)
    left = ProgressRecord(
        epoch=1, seq=50, lsn=500, commit_ts_us=5, published_ts_us=0, end_offsets={TOPIC: (0,)}, owed={"public.c": "why"}
    )
    tables = tuple(SchemaHistory((schema(name),)) for name in "bc")
    bench = Bench(update=[ControlUpdate((), (), tables), ControlUpdate((left,), (), ())], dead_letters_max=9)
    kept = {"1/public.a/1": old, "1/public.b/2": new, "1/public.c/1": old}
    bench.dead_letters.open = {"1/public.b/1": old, **kept}
    bench.sync.housekeeper.work()
    assert len(bench.dead_letters.open) == 4
    bench.sync.housekeeper.work()
    assert bench.dead_letters.open == kept


def test_more_dead_letters_than_the_limit_stop_the_sink() -> None:
    report = wrote(4)
    report.dead_letters = {f"1/public.a/{number}": letter(7) for number in range(DEAD_LETTERS_MAX + 1)}
    bench = Bench(reports=[report])
    with pytest.raises(RefusedError, match="search: the store rejected 3 rows, more than dead_letters_max"):
        bench.batch()
    assert len(bench.dead_letters.open) == 3 and not bench.calls.count("publish"), "what was rejected can be looked at"


def test_a_sweep_closes_letters_of_rows_that_it_removes() -> None:
    sweep = SweepRecord(table_schema="public", table_name="a", floor=9, as_of_lsn=400, epoch=1)
    other = SchemaHistory((schema("b"),))
    ends = {TOPIC: (0,), "shop.public.b": (0,)}
    both = [progress(lsn, 0).model_copy(update={"end_offsets": ends}) for lsn in (300, 500)]
    bench = Bench(
        update=[ControlUpdate((), (), (other,)), ControlUpdate(tuple(both), (sweep,), ())], dead_letters_max=9
    )
    bench.sync.housekeeper.work()
    bench.dead_letters.open = {"1/public.a/1": 8, "1/public.a/2": 10, "1/public.b/1": 8}
    bench.sync.state.add_report(with_dead_letters(1, {"1/public.a/3": 7, "1/public.a/4": 9}), {})  # not published yet
    late = with_dead_letters(2, {"1/public.a/5": 8, "1/public.a/6": 10})  # while the rows are swept
    bench.sink.while_readable = [lambda: None, lambda: bench.sync.state.add_report(late, {})]
    for _ in range(2):
        bench.sync.housekeeper.work()
        kept = {"1/public.a/2": 10, "1/public.a/4": 9, "1/public.b/1": 8}
        assert {key: version for key, version in bench.dead_letters.open.items() if key != "1/public.a/6"} == kept
    assert bench.dead_letters.open["1/public.a/6"] == 10


def test_letters_of_tasks_that_publish_their_own_are_closed_between_batches() -> None:
    """A row may be rejected again just when the sweep of its former version closes the letter: two writers of one key
    at once would lose the newer letter."""
    sweep = SweepRecord(table_schema="public", table_name="a", floor=9, as_of_lsn=400, epoch=1)
    bench = Bench(is_live=True)

    def watched() -> BatchReport:
        bench.dead_letters.open = {"1/public.a/1": 8}
        bench.update = [ControlUpdate((progress(500, 0),), (sweep,), ())]
        bench.sync.housekeeper.work()
        assert bench.published[-1].sweeps == {"public.a": 9}
        assert bench.dead_letters.open == {"1/public.a/1": 8}, "not while tasks run"
        assert not bench.report(BatchReport()), "the tasks are to end"
        bench.dead_letters.open = {"1/public.a/1": 12}  # rejected again meanwhile
        return wrote(3)

    bench.reports = [watched]
    bench.batch()
    bench.sync.housekeeper.work()
    assert bench.dead_letters.open == {"1/public.a/1": 12}


def test_a_position_is_published_with_the_letters_that_tasks_published_before() -> None:
    """The brokers may deliver a task's dead letters later than its offsets, which the driver takes from the group."""
    bench = Bench(is_live=True)

    def watched() -> BatchReport:
        bench.dead_letters.late = {"1/public.a/1": 8}
        assert bench.report(wrote(3))
        bench.sync.housekeeper.work()
        bench.dead_letters.late = {"1/public.a/2": 9}
        return wrote(4)

    bench.reports = [watched]
    bench.batch()
    assert [(record.end_offsets[TOPIC], record.rejected) for record in bench.published[1:]] == [
        ((3,), {"public.a": 1}),
        ((4,), {"public.a": 2}),
    ]


def test_a_sweep_closes_letters_that_arrive_late() -> None:
    """A task has published the letter before its offset, at which the sweep is due."""
    sweep = SweepRecord(table_schema="public", table_name="a", floor=9, as_of_lsn=400, epoch=1)
    bench = Bench(is_live=True)

    def watched() -> BatchReport:
        bench.dead_letters.late = {"1/public.a/1": 8}
        bench.update = [ControlUpdate((progress(500, 3),), (sweep,), ())]
        assert bench.report(wrote(3))
        bench.sync.housekeeper.work()
        assert bench.published[-1].sweeps == {"public.a": 9}
        return wrote(3)

    bench.reports = [watched]
    bench.batch(2)
    assert bench.dead_letters.open == {}


def test_a_letter_that_is_published_after_its_sweep_is_closed() -> None:
    """A task that Spark has given up went on, or records are read again."""
    bench = Bench(is_live=True)
    bench.position.sweeps["public.a"] = 9
    bench.dead_letters.open = {"1/public.a/1": 8, "1/public.a/2": 9}
    bench.sync.housekeeper.work()
    assert bench.dead_letters.open == {"1/public.a/2": 9}


def test_letters_below_a_finished_sweep_are_closed_at_the_start() -> None:
    """The job was killed between the sweep and the end of its letters."""
    bench = Bench()
    bench.dead_letters.open = {"1/public.a/1": 8, "1/public.a/2": 9}
    bench.position.sweeps["public.a"] = 9
    bench.sync.housekeeper.begin([SchemaHistory((schema(),))])
    assert bench.dead_letters.open == {"1/public.a/2": 9}
