"""Signals and their answers, requests to the reader, and reports."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from cdc.model.control import (
    NEXT_AFTER_OTHERS,
    IncompleteRowsRecord,
    RangeRecord,
    ReloadRecord,
    SignalAnswer,
    SignalRecord,
    SignalsRecord,
    SnapshotProgress,
    SnapshotRecord,
)
from cdc.model.errors import GapError, WatershedError
from cdc.model.events import TableId, TableSchema
from cdc.model.topic_record import TopicRecord
from cdc.ports.chunk_reader import BarrierPassed, Chunk, DescribeTable, TableDescribed, TransactionBarrier
from cdc.ports.stream import Signal
from cdc.snapshots.coordination import Restrictions, Snapshots
from cdc.snapshots.signal_answers import KEPT_S, SIGNAL_S_MAX, Answers
from tests.support.snapshot_ports import ScriptedReader, ScriptedSignals
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import NOW_US, TOPICS, Beside, snapshot, wanted


class Session:
    def __init__(
        self,
        *records: SnapshotRecord,
        answers: Mapping[str, int] | None = None,
        unchunkable: Collection[TableId] = (),
        stopped: Mapping[TableId, WatershedError | None] | None = None,
        limits: Mapping[str, Any] | None = None,
        outboxes: Collection[TableId] = (),
        schemas: Collection[TableSchema] = (SCHEMA,),
        reload: Callable[[], str] | None = None,
    ) -> None:
        self.beside = Beside(*records, schemas=schemas, **limits or {})
        self.reader, self.keys, self.signals = ScriptedReader(), ScriptedReader(), ScriptedSignals()
        self.snapshots = Snapshots(
            self.beside.engine,
            self.reader,
            self.keys,
            self.signals,
            Answers(TOPICS, answers or {}),
            Restrictions(unchunkable, stopped or {}, outboxes, server=("7", "shop")),
            reload,
        )
        self._offset = 40

    def advance(self, seconds: float = 1.0, lag_s: float = 0.0) -> list[TopicRecord]:
        self.beside.now += seconds
        self.snapshots.take_answers(self.beside.now)
        return self.snapshots.advance(self.beside.now, NOW_US, lag_s)

    def signal(self, action: str, **fields: Any) -> tuple[SignalAnswer, list[TopicRecord]]:
        """Its answer, and the other records."""
        record = SignalRecord.model_validate({"action": action, "requested_us": NOW_US} | fields)
        name = f"s{self._offset - 39}"
        self.signals.coming.append(Signal(name, self._offset, record, ""))
        self._offset += 1
        records = self.advance()
        (answer,) = [r for r in records if r.key == b"signal/" + name.encode()]
        (offset,) = [r for r in records if r.key == b"signals"]
        assert answer.topic == TOPICS.control
        assert offset.topic == TOPICS.state
        assert SignalsRecord.decode(offset.value or b"", "state").offset == self._offset
        return SignalAnswer.decode(answer.value or b"", "control"), [r for r in records if r not in (answer, offset)]


def snapshots_in(records: list[TopicRecord]) -> list[SnapshotRecord]:
    return [SnapshotRecord.decode(r.value or b"", "state") for r in records if r.topic == TOPICS.state]


def progress_in(records: list[TopicRecord]) -> list[SnapshotProgress]:
    return [SnapshotProgress.decode(r.value or b"", "progress") for r in records if r.topic == TOPICS.progress]


# ---- the reader


def test_answers_lead_to_the_next_requests() -> None:
    session = Session(wanted())
    session.advance()
    (barrier,) = session.reader.asked
    assert isinstance(barrier, TransactionBarrier)
    session.reader.coming.append(BarrierPassed(barrier.nonce, snapshot(50)))
    session.advance()
    begin = session.reader.asked[-1]
    assert isinstance(begin, DescribeTable)
    session.reader.coming.append(TableDescribed(begin.nonce, snapshot(60), "shape", 10, 20, (), "order"))
    session.advance()
    session.beside.transaction(900, watermarks=[begin.nonce])
    session.advance(lag_s=60.0)
    assert len(session.reader.asked) == 2  # the stream is behind
    session.advance()
    assert isinstance(session.reader.asked[-1], Chunk)


# ---- signals


def test_a_snapshot_of_all_tables_or_of_some_is_begun() -> None:
    for tables in ((), ("public.customers",)):
        session = Session()
        answer, records = session.signal("snapshot", tables=tables)
        assert (answer.is_accepted, answer.tables) == (True, ("public.customers",))
        (record,) = snapshots_in(records)
        assert (record.request, record.table, record.status, record.sweeps) == ("s1", SCHEMA.table, "running", True)
        assert session.beside.engine.is_active


def test_a_condition_or_a_range_is_of_one_table_and_sweeps_nothing() -> None:
    session = Session()
    answer, records = session.signal("snapshot", tables=["public.customers"], where="id > 5", after=["3"])
    assert answer.is_accepted
    (record,) = snapshots_in(records)
    assert (record.where, record.sweeps) == ("id > 5", False)
    assert record.ranges == (RangeRecord(after=("3",), up_to=None),)


def test_a_range_whose_ends_are_no_keys_is_refused() -> None:
    answer, records = Session().signal("snapshot", tables=["public.customers"], up_to=["3", "4"])
    assert not answer.is_accepted
    assert answer.message == "the key of public.customers has 1 column (id), but the range names 2"
    assert snapshots_in(records) == []


def test_rows_of_an_outbox_table_are_events_that_no_snapshot_reads() -> None:
    session = Session(unchunkable={SCHEMA.table}, outboxes={SCHEMA.table})
    session.snapshots.begin_all("start", NOW_US)
    for tables in ((), ("public.customers",)):
        answer, records = session.signal("snapshot", tables=tables)
        assert not answer.is_accepted
        assert answer.message.startswith("the rows of public.customers are events, which `cdc outbox republish`")
        assert snapshots_in(records) == []


def test_where_every_table_stopped_a_snapshot_of_all_is_refused() -> None:
    answer, records = Session(schemas=()).signal("snapshot")
    assert (answer.is_accepted, answer.message) == (False, "no table is captured: `cdc table list` says why")
    assert snapshots_in(records) == []


@pytest.mark.parametrize("tables", [(), ("public.customers",)])
def test_a_table_that_can_not_be_read_in_chunks_is_refused_by_name(tables: tuple[str, ...]) -> None:
    session = Session(unchunkable={SCHEMA.table})
    answer, records = session.signal("snapshot", tables=tables)
    assert not answer.is_accepted
    assert answer.message.startswith(
        "can't be read in chunks: public.customers (id): no unique index has exactly these"
    )
    assert snapshots_in(records) == []
    session.snapshots.begin_all("start", NOW_US)
    assert snapshots_in(session.advance()) == []


def test_a_table_that_is_not_captured_is_refused() -> None:
    answer, records = Session().signal("snapshot", tables=["public.nowhere"])
    assert (answer.is_accepted, answer.message) == (False, "table public.nowhere is not captured")
    assert snapshots_in(records) == []


def test_pause_resume_cancel_change_what_runs_and_are_refused_where_nothing_does() -> None:
    session = Session(wanted())
    for action, status in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        answer, records = session.signal(action)
        assert (answer.is_accepted, answer.tables) == (True, ("public.customers",))
        assert [record.status for record in snapshots_in(records)] == [status]
    answer, records = session.signal("pause")
    assert (answer.is_accepted, answer.message) == (False, "there is no snapshot to pause")
    assert snapshots_in(records) == []


def test_what_is_no_signal_is_refused_and_passed_over() -> None:
    session = Session()
    session.signals.coming.append(Signal("s1", 7, None, "no JSON"))
    answer, offset = session.advance()[:2]
    reported = SignalAnswer(is_accepted=False, message="no JSON", answered_us=NOW_US)
    assert SignalAnswer.decode(answer.value or b"", "control") == reported
    assert SignalsRecord.decode(offset.value or b"", "state").offset == 8


def test_there_is_nothing_to_heal_while_streaming() -> None:
    answer, _ = Session().signal("heal")
    assert not answer.is_accepted
    assert "no gap" in answer.message


def test_a_table_that_can_not_join_is_not_said_to() -> None:
    """It was accepted, and the table stopped again half a second later."""
    held, barred = TableId("public", "held"), TableId("public", "barred")
    why = WatershedError(
        "table public.barred can't join again: its key is (a), but its records have (b)", "give it its key"
    )
    session = Session(stopped={held: None, barred: why})
    for tables in (["public.barred"], ["public.held", "public.barred"]):
        answer, records = session.signal("start_table", tables=tables)
        assert not answer.is_accepted
        assert "its key is (a), but its records have (b)" in answer.message
        assert answer.next == "give it its key"
        assert records == []
    assert not session.snapshots.tables_changed
    assert session.signal("start_table", tables=["public.held"])[0].is_accepted
    assert session.snapshots.tables_changed


def test_healing_is_for_a_stopped_table_too_that_needs_a_new_slot() -> None:
    other = [TableId("public", "other")]
    consistent = Session(unchunkable=other, stopped=dict.fromkeys(other), limits={"method": "consistent"})
    with pytest.raises(GapError, match=r"public\.other can be added with a new slot only"):
        consistent.signal("heal")
    chunked, _ = Session(unchunkable=other, stopped=dict.fromkeys(other)).signal("heal")
    assert not chunked.is_accepted, "it would not help"


def test_a_signal_that_was_answered_elsewhere_is_passed_over() -> None:
    session = Session(answers={"s1": NOW_US})
    record = SignalRecord(action="snapshot", requested_us=NOW_US)
    session.signals.coming.append(Signal("s1", 3, record, ""))
    (offset,) = session.advance()
    assert SignalsRecord.decode(offset.value or b"", "state").offset == 4
    assert not session.beside.engine.is_active


def test_a_signal_of_long_ago_is_refused() -> None:
    answer, records = Session().signal("snapshot", requested_us=NOW_US - SIGNAL_S_MAX * 1_000_000 - 1)
    assert (answer.is_accepted, answer.next) == (False, "send it again")
    assert records == []


def test_old_answers_are_taken_back() -> None:
    session = Session(answers={"old": NOW_US - KEPT_S * 1_000_000 - 1, "new": NOW_US})
    assert session.advance() == [TopicRecord(TOPICS.control, b"signal/old", None)]


def test_what_is_told_of_tables_that_are_captured_no_more_is_taken_back() -> None:
    session = Session()
    session.snapshots.forget([TableId("public", "gone")])
    key = b"snapshot/public.gone"
    assert session.advance() == [TopicRecord(TOPICS.state, key, None), TopicRecord(TOPICS.progress, key, None)]


def test_all_tables_are_read_again_but_for_those_that_are_being_read() -> None:
    session = Session(wanted(request="first"))
    session.snapshots.begin_all("start", 9)
    assert snapshots_in(session.advance()) == []
    session = Session(wanted(request="first", status="done"))
    session.snapshots.begin_all("start", 9)
    (record,) = snapshots_in(session.advance())
    assert (record.request, record.status, record.requested_us) == ("start", "running", 9)
    assert snapshots_in(session.advance()) == []


# ---- reports


def test_progress_is_told_every_second_and_its_end_once() -> None:
    session = Session(wanted(rows=5, rows_estimated=100))
    (reported,) = progress_in(session.advance())
    assert (reported.table, reported.status, reported.rows, reported.rows_estimated) == (
        "public.customers",
        "waiting",
        5,
        100,
    )
    assert reported.message
    assert progress_in(session.advance(0.5)) == []
    session.beside.engine.jobs[TableId("public", "customers")].rows += 20
    (reported,) = progress_in(session.advance(1.5))
    assert (reported.rows, reported.rows_per_s) == (25, 10.0)
    session.beside.engine.set_status(SCHEMA.table, "cancelled")
    assert [reported.status for reported in progress_in(session.advance())] == ["cancelled"]
    assert progress_in(session.advance()) == []


def test_nothing_is_told_of_a_snapshot_that_had_ended_before() -> None:
    session = Session(wanted(status="done"))
    assert session.advance() == []


# ---- rows that are published again


def test_keys_are_published_again_beside_a_snapshot_and_one_request_at_a_time() -> None:
    session = Session(wanted())
    answer, records = session.signal("republish", tables=("public.customers",), keys=('{"id":1}', '{"id":2}'))
    assert (answer.is_accepted, answer.tables) == (True, ("public.customers",))
    (noted,) = [IncompleteRowsRecord.decode(r.value or b"", "state") for r in records if r.topic == TOPICS.state]
    assert (noted.keys, noted.asked) == ((("1",), ("2",)), ('{"id":1}', '{"id":2}'))
    assert session.beside.engine.jobs[SCHEMA.table].status == "running", "it replaces no snapshot"
    answer, _ = session.signal("republish", tables=("public.customers",), keys=('{"id":3}',))
    assert (answer.is_accepted, answer.next) == (False, NEXT_AFTER_OTHERS)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"keys": ('{"id":1}',), "tables": ("public.none",)}, "is not captured"),
        ({"keys": (), "tables": ("public.customers",)}, "1 to 1000 keys of exactly one table"),
        ({"keys": ('{"id":1}',) * 1_001, "tables": ("public.customers",)}, "1 to 1000 keys of exactly one table"),
        ({"keys": ('{"no":1}', '{"id":1}'), "tables": ("public.customers",)}, "1 of the keys are not record keys"),
        ({"keys": ("{",), "tables": ("public.customers",)}, "1 of the keys are not record keys"),
    ],
)
def test_keys_that_can_not_be_published_again_are_refused(fields: dict[str, Any], why: str) -> None:
    session = Session()
    answer, records = session.signal("republish", **fields)
    assert (answer.is_accepted, answer.next, records) == (False, "", [])
    assert why in answer.message
    assert not session.beside.engine.is_active


def test_keys_of_a_table_without_an_index_to_read_them_by_are_refused() -> None:
    session = Session(unchunkable=[SCHEMA.table])
    answer, _ = session.signal("republish", tables=("public.customers",), keys=('{"id":1}',))
    assert not answer.is_accepted and "no unique index" in answer.message


def test_a_configuration_that_was_read_again_is_made_known_to_sinks() -> None:
    answer, (record,) = Session(reload=lambda: "public.a joins").signal("reload")
    assert (answer.is_accepted, answer.message) == (True, "public.a joins")
    assert record == ReloadRecord(requested_us=NOW_US).to(TOPICS.control)


def test_a_mistake_in_the_file_is_the_answer() -> None:
    def refuse() -> str:
        raise WatershedError("there is no table public.b", "correct source.tables")

    answer, records = Session(reload=refuse).signal("reload")
    assert (answer.is_accepted, answer.message, answer.next, records) == (
        *(False, "there is no table public.b", "correct source.tables"),
        [],
    )
    assert not Session().signal("reload")[0].is_accepted, "a process without a file"


def test_a_move_is_refused_while_the_former_server_streams_and_is_done_where_the_new_one_does() -> None:
    answer, records = Session().signal("move", server=("8", "shop"))
    assert (answer.is_accepted, answer.message) == (False, "capture still streams from the former server")
    assert "let source.dsn name the new server" in answer.next
    answer, records = Session().signal("move", server=("7", "shop"))
    assert (answer.is_accepted, records) == (True, [])
