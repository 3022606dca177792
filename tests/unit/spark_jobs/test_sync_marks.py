"""A store that marks cuts, such as a warehouse with tags: when a mark is set, and on what."""

from collections.abc import Mapping

import pytest

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.events import TableId
from spark_jobs.batches import BatchReport
from spark_jobs.control_reader import ControlUpdate
from spark_jobs.publishing import CutMarks
from tests.unit.spark_jobs.records import TOPIC
from tests.unit.spark_jobs.test_sync import ID, OTHER_TOPIC, TABLE, Bench, progress, wrote

INTERVAL_S = 60.0


def cut(lsn: int, end: int, **fields: object) -> ProgressRecord:
    return progress(lsn, end).model_copy(update={"is_cut": True, **fields})


class Marked(Bench):
    """Batches of one second each; a mark may be refused."""

    def __post_init__(self) -> None:
        self.marked: list[tuple[int, list[str]]] = []
        self.refuses = False
        self.at_cuts, self.marks = True, CutMarks(INTERVAL_S, self.mark)
        super().__post_init__()

    def mark(self, record: ProgressRecord, tables: Mapping[TableId, str]) -> bool:
        assert not self.environment.writing.locked() or self.calls[-1] != "batch"
        if not self.refuses:
            self.marked.append((record.lsn, sorted(table.name for table in tables)))
        return not self.refuses

    def publish(self, *records: ProgressRecord, sweeps: tuple[SweepRecord, ...] = ()) -> None:
        self.update.append(ControlUpdate(records, sweeps, ()))
        self.sync.housekeeper.work()


def test_a_mark_is_set_where_a_batch_reaches_the_cut_and_not_on_the_way() -> None:
    bench = Marked(reports=[wrote(3), wrote(5)])
    bench.publish(cut(100, 5))
    bench.batch()
    assert bench.marked == [] and bench.published[-1].cut_offsets == {TOPIC: (5,)}
    bench.batch()
    assert bench.marked == [(100, ["a"])]


def test_a_mark_is_set_although_the_next_cut_is_known_already() -> None:
    bench = Marked(reports=[wrote(5)])
    bench.publish(cut(100, 5))
    bench.publish(cut(200, 9))
    bench.batch()
    assert bench.marked == [(100, ["a"])]
    assert bench.published[-1].cut_offsets == {TOPIC: (9,)}


def test_marks_come_at_the_interval_also_where_nothing_changes() -> None:
    bench = Marked(reports=[wrote(5), wrote(6)])
    bench.publish(cut(100, 5))
    bench.batch()
    bench.publish(cut(200, 6))
    bench.batch()
    assert bench.marked == [(100, ["a"])]
    bench.now_us += int(INTERVAL_S * 1e6)
    bench.publish()
    assert bench.marked[1:] == [(200, ["a"])]
    bench.now_us += int(INTERVAL_S * 1e6)
    bench.publish()
    assert len(bench.marked) == 2, "it is the same position"
    bench.publish(cut(300, 6))
    assert bench.marked[2:] == [(300, ["a"])]


def test_a_mark_that_was_not_set_is_tried_again() -> None:
    bench = Marked(reports=[wrote(5)])
    bench.refuses = True
    bench.publish(cut(100, 5))
    bench.batch()
    bench.refuses = False
    bench.publish()
    assert bench.marked == [(100, ["a"])]


@pytest.mark.parametrize("owed", [True, False])
def test_a_table_that_owes_rows_is_not_marked(owed: bool) -> None:
    bench = Marked(reports=[wrote(5)])
    bench.publish(cut(100, 5, owed={str(TABLE): "a snapshot runs"} if owed else {}))
    bench.batch()
    assert bench.marked == ([] if owed else [(100, ["a"])])


def test_a_table_is_swept_before_it_is_marked() -> None:
    bench = Marked(reports=[wrote(5)])
    swept = SweepRecord.of(TABLE, 7, 100, 1, 0)
    bench.publish(cut(100, 5), sweeps=(swept,))
    bench.batch()
    assert [call for call in bench.calls if call.startswith("sweep")] == ["sweep a 7"]
    assert bench.marked == [(100, ["a"])]


def test_a_table_that_was_swept_beyond_the_position_is_not_marked_with_it() -> None:
    """A TRUNCATE has no record: the offsets are still those of the position before it, which would then be seen with
    the emptied table."""
    bench = Marked(reports=[wrote(5), wrote(6)])
    bench.publish(cut(100, 5))
    bench.batch()
    bench.publish(cut(200, 6))
    bench.batch()
    truncated = SweepRecord.of(TABLE, 7, 250, 1, 0)
    bench.publish(progress(250, 6), sweeps=(truncated,))
    assert "sweep a 7" in bench.calls
    bench.now_us += int(INTERVAL_S * 1e6)
    bench.publish()
    assert bench.marked == [(100, ["a"])]
    bench.publish(cut(300, 6))
    assert bench.marked[1:] == [(300, ["a"])]


def test_a_batch_names_the_incarnation_that_it_has_read() -> None:
    """And not the one that was published while it ran: its offsets would then seem to lie beyond every position."""
    bench = Marked()

    def created_again() -> BatchReport:
        bench.publish(cut(200, 1, incarnations={TOPIC: "another"}))
        assert bench.sync.state.incarnation_of(TOPIC) == ID
        return BatchReport()

    bench.reports = [created_again]
    bench.batch()
    assert bench.position.incarnations[TOPIC] == "another"


def test_a_batch_says_of_its_snapshots_whether_it_reaches_the_cut() -> None:
    bench = Marked()
    bench.publish(cut(100, 5))
    for end, is_reached in ((4, False), (5, True), (6, False)):
        found = bench.sync.state.cut_of(BatchReport({TOPIC: {0: end}}))
        assert found is not None and (found[0].lsn, found[1]) == (100, is_reached)
    assert OTHER_TOPIC not in bench.sync.state.topics
