"""Rules of the state, progress and control topics, each broken once."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.checker import positions
from tests.checker.positions import Sweep, all_sweeps_of, sweeps_of
from tests.checker.records import Record, changes_of
from tests.unit.checker.made import PARTITIONS, Log, position, progress


@pytest.fixture
def log() -> Log:
    """A snapshot row at 100, a transaction of three rows that commits at 200, one of one row at 300."""
    made = Log()
    made.change("r", 1, commit_lsn=100)
    for index in range(3):
        made.change("c", 10 + index, commit_lsn=200, tx_index=index)
    made.change("c", 20, commit_lsn=300)
    return made


TRUE: list[dict[str, Any]] = [
    {"phase": "intent", "resume_lsn": 0},
    {"phase": "loading", "resume_lsn": 100, "seq": 1},
    {"resume_lsn": 100, "seq": 1},
    {"resume_lsn": 100, "seq": 2, "partial": {"commit_lsn": 200, "xid": 7, "next_index": 1}},
    {"resume_lsn": 100, "seq": 3, "partial": {"commit_lsn": 200, "xid": 7, "next_index": 2}},
    {"resume_lsn": 210, "seq": 4},
    {"resume_lsn": 310, "seq": 5},
]


def state(*fields: dict[str, Any]) -> list[Record]:
    return [position(offset, **each) for offset, each in enumerate(fields)]


def findings(log: Log, *fields: dict[str, Any]) -> list[str]:
    records = state(*fields)
    changes = changes_of(log.records)
    return [*positions.positions_never_go_back(records), *positions.positions_are_true(records, changes, ())]


def test_true_positions_have_no_complaints(log: Log) -> None:
    assert findings(log, *TRUE) == []


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"epoch": 0, "resume_lsn": 310, "seq": 5}, "epoch 0 after 1"),
        ({"phase": "loading", "resume_lsn": 310, "seq": 5}, "phase loading after streaming"),
        ({"resume_lsn": 309, "seq": 5}, "resume_lsn 309 after 310"),
        ({"resume_lsn": 310, "seq": 4}, "seq 4 after 5"),
        ({"resume_lsn": 310, "seq": 5, "checksum": 1}, "checksum"),
        ({"resume_lsn": 310, "seq": 5, "partial": {"commit_lsn": 300, "xid": 7, "next_index": 1}}, "half published is"),
    ],
    ids=["epoch", "phase", "resume_lsn", "seq", "checksum", "partial"],
)
def test_a_position_that_goes_back_is_seen(log: Log, broken: dict[str, Any], says: str) -> None:
    assert any(says in line for line in findings(log, *TRUE, broken))


def test_a_half_published_transaction_that_goes_back_is_seen(log: Log) -> None:
    assert any("next_index 1 after 2" in line for line in findings(log, *TRUE[:5], TRUE[3] | {"seq": 3}))


def test_a_half_published_transaction_that_is_forgotten_is_seen(log: Log) -> None:
    assert any("was forgotten" in line for line in findings(log, *TRUE[:5], {"resume_lsn": 150, "seq": 3}))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"resume_lsn": 301, "seq": 4}, "leaves out"),  # confirms the row at 300, which is not counted
        ({"resume_lsn": 310, "seq": 4}, "leaves out"),
        ({"resume_lsn": 210, "seq": 5}, "counts the row at (300, 0)"),  # would publish it again
        ({"resume_lsn": 300, "seq": 5}, "counts the row at (300, 0)"),
    ],
)
def test_a_position_that_does_not_fit_the_rows_is_seen(log: Log, broken: dict[str, Any], says: str) -> None:
    assert any(says in line for line in findings(log, *TRUE[:6], broken, TRUE[6]))


@pytest.mark.parametrize("next_index", [0, 1, 3])
def test_a_wrong_place_inside_a_transaction_is_seen(log: Log, next_index: int) -> None:
    partial = {"commit_lsn": 200, "xid": 7, "next_index": next_index}
    wrong = {"resume_lsn": 100, "seq": 3, "partial": partial}
    assert [*positions.positions_are_true(state(wrong, TRUE[6]), changes_of(log.records), ())] != []


def test_a_last_position_that_lags_behind_the_topics_is_seen(log: Log) -> None:
    assert "the last position says seq 4, the topics end at 5" in findings(log, *TRUE[:6])


def test_a_last_position_covers_the_last_sweep_too(log: Log) -> None:
    last, changes = state({"resume_lsn": 400, "seq": 6}), changes_of(log.records)
    old, newest, lost = (Sweep("public.t", 1 << 48 | seq, 400, 1) for seq in (2, 6, 7))
    assert [*positions.positions_are_true(last, changes, [old, newest])] == []
    assert [*positions.positions_are_true(last, changes, [old, newest, lost])] != []


def test_a_last_position_ahead_of_the_topics_is_seen(log: Log) -> None:
    assert "the last position says seq 6, the topics end at 5" in findings(log, *TRUE, {"resume_lsn": 400, "seq": 6})


def test_rows_without_any_position_are_seen(log: Log) -> None:
    assert findings(log) == ["row records without a position"]


def test_rows_of_a_later_epoch_than_the_positions_are_seen(log: Log) -> None:
    log.epoch, log.seq = 2, 0
    log.change("r", 1, commit_lsn=400)
    assert any("later epoch" in line for line in findings(log, *TRUE))


def test_the_stream_begins_where_the_last_epochs_first_position_says() -> None:
    assert positions.stream_begin(state(*TRUE)) == (1, 100)
    assert positions.stream_begin(state(*TRUE, {"epoch": 2, "phase": "intent", "resume_lsn": 0})) == (1, 100)
    assert positions.stream_begin(state(*TRUE, {"epoch": 2, "phase": "loading", "resume_lsn": 400})) == (2, 400)
    assert positions.stream_begin([]) == (0, 0)


# ---- progress


def ends(log: Log, below_lsn: int) -> tuple[int, ...]:
    """The lowest truthful end offsets."""
    numbers = [0] * PARTITIONS
    for change in changes_of(log.records):
        if change.commit_lsn < below_lsn:
            numbers[change.record.partition] = change.record.offset + 1
    return tuple(numbers)


def progress_told(log: Log, *records: Record) -> list[str]:
    return [*positions.progress_is_true(records, log.records, changes_of(log.records))]


def test_true_progress_has_no_complaints(log: Log) -> None:
    true = [progress(offset, lsn, ends(log, lsn)) for offset, lsn in enumerate((101, 201, 301))]
    assert progress_told(log, *true) == []


@pytest.mark.parametrize("lsn", [101, 201, 301])
def test_progress_with_an_end_offset_too_low_is_seen(log: Log, lsn: int) -> None:
    true = ends(log, lsn)
    for partition, end in enumerate(true):
        if end:
            low = (*true[:partition], end - 1, *true[partition + 1 :])
            assert len(progress_told(log, progress(0, lsn, low))) == 1


def test_a_cut_that_has_something_later_below_its_end_offsets_is_seen(log: Log) -> None:
    def cut(lsn: int, of: int) -> Record:
        made = progress(0, lsn, ends(log, of))
        return replace(made, value=(made.value or b"").replace(b"{", b'{"is_cut": true, ', 1))

    assert progress_told(log, *(cut(lsn, lsn) for lsn in (101, 201, 301))) == []
    assert progress_told(log, cut(201, 301)) != []
    assert progress_told(log, progress(0, 201, ends(log, 301))) == []


def test_progress_that_leaves_a_tombstone_above_is_seen() -> None:
    log = Log()
    log.delete(1, commit_lsn=200)
    assert progress_told(log, progress(0, 201, ends(log, 201))) != []


def test_progress_that_leaves_a_snapshot_row_above_is_seen(log: Log) -> None:
    assert progress_told(log, progress(0, 100, (0,) * PARTITIONS)) != []


def test_progress_that_goes_back_is_seen(log: Log) -> None:
    all_of_it = ends(log, 1000)
    assert progress_told(log, progress(0, 300, all_of_it), progress(1, 299, all_of_it)) != []


# ---- sweeps


def sweep(floor: int, epoch: int = 2) -> Record:
    value = {"table_schema": "public", "table_name": "t", "floor": floor, "as_of_lsn": 400, "epoch": epoch}
    return Record("shop.control", 0, 0, b"sweep/public.t", json.dumps(value).encode())


def test_the_last_sweep_of_a_table_counts() -> None:
    assert sweeps_of([sweep(2 << 48), sweep(3 << 48, epoch=3)]) == [Sweep("public.t", 3 << 48, 400, 3)]


@pytest.mark.parametrize(
    ("epoch", "floors", "complains"),
    [(1, [], False), (2, [2 << 48], False), (2, [], True), (2, [1 << 48], True), (1, [1 << 48], True)],
)
def test_an_epoch_has_its_sweep(epoch: int, floors: list[int], complains: bool) -> None:
    sweeps = sweeps_of([sweep(floor) for floor in floors])
    found = [*positions.sweeps_belong_to_their_epoch(sweeps, epoch, epoch, ["public.t"])]
    assert bool(found) == complains


def test_an_epoch_that_compared_a_table_needs_no_sweep_of_it() -> None:
    def snapshot(request: str, *, compares: bool) -> Record:
        value = {"table_schema": "public", "table_name": "t", "request": request, "compares": compares}
        return Record("shop.state", 0, 0, b"snapshot/public.t", json.dumps(value).encode())

    state = [snapshot("epoch 2", compares=True), snapshot("epoch 3", compares=False)]
    assert positions.compared(state, 2) == {"public.t"}
    assert positions.compared(state, 3) == set()
    assert [*positions.sweeps_belong_to_their_epoch([], 2, 2, ["public.t"], {"public.t"})] == []


def test_a_floor_that_goes_down_is_seen() -> None:
    sweeps = all_sweeps_of([sweep(floor) for floor in (2 << 48 | 5, 2 << 48 | 5, 2 << 48 | 4)])
    (complaint,) = positions.floors_never_go_down(sweeps)
    assert "floor 562949953421316 after 562949953421317" in complaint


def test_an_epoch_that_begins_with_a_promotion_goes_on_with_the_one_before() -> None:
    healed: list[dict[str, Any]] = [{"epoch": 2, "phase": "intent", "resume_lsn": 0}, {"epoch": 2, "resume_lsn": 400}]
    promoted = [{"epoch": 3, "resume_lsn": 500}, {"epoch": 3, "resume_lsn": 510}, {"epoch": 4, "resume_lsn": 600}]
    assert positions.history_begin(state(*TRUE)) == (1, 100)
    assert positions.history_begin(state(*TRUE, *healed)) == (2, 400)
    assert positions.history_begin(state(*TRUE, *healed, *promoted)) == (2, 400)
    assert positions.stream_begin(state(*TRUE, *healed, *promoted)) == (4, 600)
    assert [*positions.sweeps_belong_to_their_epoch(sweeps_of([sweep(2 << 48)]), 2, 4, ["public.t"])] == []
