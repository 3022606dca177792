"""What tables owe: which snapshots begin to owe rows, what takes it over, and what alone clears it."""

from typing import Any

import pytest

from cdc.model.control import IncompleteRowsRecord, SnapshotRecord
from cdc.model.errors import UnsupportedChangeError
from cdc.snapshots.coordination import NOT_READ, Restrictions, Snapshots
from cdc.snapshots.signal_answers import Answers
from tests.support.snapshot_ports import ScriptedReader, ScriptedSignals
from tests.unit.cdc.capture.loops import SCHEMA, TABLE
from tests.unit.cdc.snapshots.loops import TOPICS, Beside, wanted
from tests.unit.cdc.snapshots.test_coordination import Session, snapshots_in

NAME = str(TABLE)
INITIAL = "its initial snapshot"
RANGE: dict[str, Any] = {"tables": (NAME,), "after": ("1",), "up_to": ("9",)}
PART: dict[str, Any] = {"deletes_in": {"after": ["1"], "up_to": ["9"]}, "sweeps": False}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": "running"}, f"{INITIAL} is running"),
        ({"status": "paused"}, f"{INITIAL} is paused"),
        ({"status": "cancelled"}, f"{INITIAL} was cancelled"),
        ({"status": "failed", "message": "no privilege"}, f"{INITIAL} has failed: no privilege"),
        ({"status": "done", **PART}, f"{INITIAL} was not completed"),
    ],
)
def test_a_session_finds_what_is_owed_in_the_records_of_snapshots(fields: dict[str, Any], why: str) -> None:
    assert Session(wanted(owes=INITIAL, **fields)).snapshots.owed == {NAME: why}


def test_a_table_that_lacks_nothing_owes_nothing_while_it_is_read_once_more() -> None:
    session = Session(wanted(status="done"))
    for fields in ({"tables": (NAME,)}, RANGE, {"tables": (NAME,), "where": "true"}):
        assert session.signal("snapshot", **fields)[0].is_accepted
        session.snapshots.on_committed()
        assert session.snapshots.owed == {}


def test_tables_that_are_not_captured_owe_their_changes() -> None:
    stopped = Restrictions(uncaptured={TABLE: "it is stopped: it has no key"})
    reader = ScriptedReader()
    session = Snapshots(Beside().engine, reader, reader, ScriptedSignals(), Answers(TOPICS, {}), stopped)
    assert session.owed == {NAME: "it is stopped: it has no key"}


# ---- requests meet a snapshot that owes rows


@pytest.mark.parametrize("status", ["running", "paused"])
@pytest.mark.parametrize("part", [RANGE, {"tables": (NAME,), "where": "id > 5"}])
def test_a_part_is_refused_while_all_rows_are_to_be_read(status: str, part: dict[str, Any]) -> None:
    session = Session(wanted(owes=INITIAL, status=status))
    answer, records = session.signal("snapshot", **part)
    assert not answer.is_accepted
    assert answer.message == f"a part of {NAME} can't be read now: {INITIAL} is {status}, which reads all rows"
    assert "cdc snapshot cancel" in answer.next
    assert not snapshots_in(records)
    assert session.beside.engine.jobs[TABLE].status == status


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_part_that_is_read_after_an_end_keeps_what_is_owed_also_when_it_is_done(status: str) -> None:
    session = Session(wanted(owes=INITIAL, status=status))
    answer, records = session.signal("snapshot", **RANGE)
    assert answer.is_accepted
    (record,) = snapshots_in(records)
    assert (record.is_whole, record.owes) == (False, INITIAL)
    session.beside.engine.jobs[TABLE].end()
    session.snapshots.on_committed()
    assert session.snapshots.owed == {NAME: f"{INITIAL} was not completed"}


def test_a_snapshot_of_all_rows_takes_over_what_is_owed_and_clears_it_when_it_is_done() -> None:
    session = Session(wanted(owes=INITIAL, status="cancelled"))
    _, records = session.signal("snapshot")
    (record,) = snapshots_in(records)
    assert record.owes == INITIAL
    session.snapshots.on_committed()
    assert session.snapshots.owed == {NAME: f"{INITIAL} is running"}
    session.beside.engine.jobs[TABLE].end()
    assert session.snapshots.owed, "not before it is committed"
    session.snapshots.on_committed()
    assert session.snapshots.owed == {}
    assert session.beside.engine.jobs[TABLE].record().owes == ""


def test_whoever_cancels_a_snapshot_that_owes_rows_hears_what_is_missing() -> None:
    session = Session(wanted(owes=INITIAL))
    answer, records = session.signal("cancel")
    assert f"missing from {NAME} until a snapshot of all rows is done" in answer.message
    assert snapshots_in(records)[0].owes == INITIAL
    assert Session(wanted()).signal("cancel")[0].message == "cancelled"


def test_pause_and_resume_keep_what_is_owed() -> None:
    session = Session(wanted(owes=INITIAL))
    for action, now in (("pause", "is paused"), ("resume", "is running")):
        session.signal(action)
        session.snapshots.on_committed()
        assert session.snapshots.owed == {NAME: f"{INITIAL} {now}"}


# ---- rows that changed without events


def test_a_table_whose_rows_changed_without_events_owes_them() -> None:
    session = Session(wanted(status="done"))
    (record,) = snapshots_in(session.snapshots.reread(TABLE, "column x was dropped"))
    session.snapshots.on_committed()
    assert session.snapshots.owed == {NAME: f"{record.owes} is running"}
    assert "column x was dropped" in record.owes


def test_a_table_whose_rows_changed_during_a_range_is_read_whole() -> None:
    session = Session(wanted(status="done"))
    session.signal("snapshot", **RANGE)
    (record,) = snapshots_in(session.snapshots.reread(TABLE, "column x was dropped"))
    assert (record.is_whole, record.status) == (True, "running")


def test_rows_that_are_never_read_again_stay_owed() -> None:
    session = Session(limits={"mode": "never"})
    (record,) = snapshots_in(session.snapshots.reread(TABLE, "column x was dropped"))
    assert (record.status, record.message) == ("cancelled", NOT_READ)
    session.snapshots.on_committed()
    assert session.snapshots.owed == {NAME: f"{record.owes} was cancelled: {NOT_READ}"}
    session.signal("snapshot")
    session.beside.engine.jobs[TABLE].end()
    session.snapshots.on_committed()
    assert session.snapshots.owed == {}


def test_rows_that_an_operator_has_read_are_read_again_although_capture_never_reads() -> None:
    session = Session(wanted(), limits={"mode": "never"})
    (record,) = snapshots_in(session.snapshots.reread(TABLE, "column x was dropped"))
    assert record.status == "running"


def test_a_table_that_can_not_be_read_beside_the_stream_is_stopped() -> None:
    with pytest.raises(UnsupportedChangeError, match="can't be read again"):
        Session(unchunkable=[TABLE]).snapshots.reread(TABLE, "column x was dropped")


# ---- incomplete rows


def holes(keys: tuple[str, ...], asked: tuple[str, ...] = ()) -> IncompleteRowsRecord:
    return IncompleteRowsRecord(
        table_schema=TABLE.schema, table_name=TABLE.name, keys=tuple((key,) for key in keys), asked=asked
    )


def test_rows_without_their_large_values_are_owed_and_rows_that_are_asked_for_are_not() -> None:
    assert Beside(holes=[holes(("1",))]).engine.owed().keys() == {TABLE}
    assert Beside(holes=[holes(("1",), ('{"id":1}',))]).engine.owed() == {}
    assert Beside(holes=[holes(("1", "2"), ('{"id":1}',))]).engine.owed().keys() == {TABLE}


def test_a_row_that_was_asked_for_is_owed_once_it_is_published_without_a_value() -> None:
    beside = Beside(schemas=[SCHEMA])
    beside.engine.republish(TABLE, {("1",): b'{"id":1}', ("2",): b'{"id":2}'})
    assert beside.engine.owed() == {}
    (record,) = beside.unfilled(900, 1)
    assert beside.engine.owed().keys() == {TABLE}
    assert record.asked == ('{"id":2}',), "the row was there: if it is deleted later, that is an event"
    assert Beside(holes=[record]).engine.owed().keys() == {TABLE}, "after a restart too"


def test_a_record_says_whether_it_is_of_all_rows() -> None:
    assert SnapshotRecord.model_validate(wanted().model_dump()).is_whole
    assert not wanted(**PART).is_whole
