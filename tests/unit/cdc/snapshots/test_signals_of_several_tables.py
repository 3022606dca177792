"""Signals, reports and re-reads where several tables are captured, and some of them can't be read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cdc.model.control import REPUBLISHED_MAX, RangeRecord
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.table_state import TableRecord
from cdc.ports.chunk_reader import BarrierPassed, Chunk, DescribeTable, KeyPage, TableDescribed, TransactionBarrier
from cdc.snapshots.coordination import SIGNAL_INTERVAL_S, Snapshots
from cdc.snapshots.signal_answers import Answers
from tests.support.snapshot_ports import ScriptedReader, ScriptedSignals
from tests.unit.cdc.capture.loops import SCHEMA
from tests.unit.cdc.snapshots.loops import NOW_US, TOPICS, Beside, snapshot, wanted
from tests.unit.cdc.snapshots.test_coordination import Session, progress_in, snapshots_in

CUSTOMERS, ORDERS = SCHEMA.table, TableId("public", "orders")
ORDERS_SCHEMA = replace(SCHEMA, table=ORDERS, oid=11, topic="shop.public.orders")
BOTH = (SCHEMA, ORDERS_SCHEMA)
PARTS: list[dict[str, Any]] = [{"where": "id > 5"}, {"after": ["3"]}, {"up_to": ["3"]}]


def refusal_of(session: Session, action: str, **fields: Any) -> str:
    """Asserts that the signal has no effect."""
    answer, records = session.signal(action, **fields)
    assert not answer.is_accepted
    assert snapshots_in(records) == []
    return answer.message


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_of_exactly_one_table(part: Mapping[str, Any]) -> None:
    session = Session(schemas=BOTH)
    why = "a condition or a range needs exactly one table"
    assert refusal_of(session, "snapshot", **part) == why
    assert refusal_of(session, "snapshot", tables=["public.customers", "public.orders"], **part) == why
    answer, records = session.signal("snapshot", tables=["public.orders"], **part)
    assert (answer.message, answer.tables) == ("begun", ("public.orders",))
    (record,) = snapshots_in(records)
    asked = RangeRecord(after=part.get("after"), up_to=part.get("up_to"))
    assert (record.table, record.where, record.sweeps) == (ORDERS, part.get("where"), False)
    assert record.deletes_in == asked
    assert record.ranges == (() if "where" in part else (asked,))


def test_a_snapshot_of_all_rows_is_of_the_named_tables_or_of_all() -> None:
    for tables in ((), ("public.customers", "public.orders"), ("public.orders",)):
        answer, records = Session(schemas=BOTH).signal("snapshot", tables=tables)
        assert answer.is_accepted
        assert [str(record.table) for record in snapshots_in(records)] == list(
            tables or ("public.customers", "public.orders")
        )
        assert all(record.sweeps and record.deletes_in is None for record in snapshots_in(records))


def test_a_snapshot_of_all_rows_begins_again_while_rows_are_owed_and_a_part_after_a_part() -> None:
    assert Session(wanted(owes="its initial snapshot")).signal("snapshot")[0].is_accepted
    part: dict[str, Any] = {"deletes_in": {"after": ["1"], "up_to": ["9"]}, "sweeps": False}
    session = Session(wanted(owes="its initial snapshot", **part))
    assert session.signal("snapshot", tables=["public.customers"], where="true")[0].is_accepted


def test_of_all_tables_those_that_can_be_read_are_and_the_others_are_named() -> None:
    session = Session(schemas=BOTH, unchunkable=[ORDERS])
    answer, records = session.signal("snapshot")
    assert answer.tables == ("public.customers",)
    assert answer.message.startswith("begun; can't be read in chunks: public.orders (id): no unique index")
    assert [record.table for record in snapshots_in(records)] == [CUSTOMERS]
    assert session.signal("snapshot", tables=["public.customers"])[0].message == "begun"
    named = refusal_of(session, "snapshot", tables=["public.customers", "public.orders"])
    assert named.startswith("can't be read in chunks: public.orders (id): no unique index")
    none = refusal_of(Session(schemas=BOTH, unchunkable=[CUSTOMERS, ORDERS]), "snapshot")
    assert "public.customers (id)" in none and "orders" not in none
    keyless = Session(schemas=[replace(SCHEMA, key=())], unchunkable=[CUSTOMERS])
    assert "public.customers (none)" in refusal_of(keyless, "snapshot")


def test_of_all_tables_events_are_left_out_and_refused_by_name() -> None:
    session = Session(schemas=BOTH, outboxes=[ORDERS])
    assert session.signal("snapshot")[0].tables == ("public.customers",)
    events = refusal_of(session, "snapshot", tables=["public.customers", "public.orders"])
    assert events.startswith("the rows of public.orders are events")
    fresh = Session(schemas=BOTH, outboxes=[ORDERS])
    fresh.snapshots.begin_all("start", 9)
    assert [record.table for record in snapshots_in(fresh.advance())] == [CUSTOMERS]


def test_a_name_without_a_schema_is_no_table() -> None:
    assert "nowhere" in refusal_of(Session(), "snapshot", tables=["nowhere"])
    assert "nowhere is not captured" in refusal_of(Session(), "stop_table", tables=["nowhere"])


def test_whoever_pauses_a_snapshot_that_owes_rows_hears_nothing_of_them() -> None:
    assert Session(wanted(owes="its initial snapshot")).signal("pause")[0].message == "paused"


def test_as_many_keys_as_allowed_of_one_table_are_published_again() -> None:
    keys = tuple(f'{{"id":{number}}}' for number in range(REPUBLISHED_MAX))
    session = Session(schemas=BOTH)
    assert session.signal("republish", tables=["public.orders"], keys=keys)[0].is_accepted
    assert "exactly one table" in refusal_of(session, "republish", keys=keys[:1])


def test_tables_are_stopped_and_started_by_name() -> None:
    session = Session(schemas=BOTH, stopped={TableId("public", "held"): None})
    for action, state in (("stop_table", "captured"), ("start_table", "stopped")):
        other = "public.held" if action == "stop_table" else "public.orders"
        assert refusal_of(session, action, tables=[other]) == f"table {other} is not {state}"
        assert refusal_of(session, action) == "no table is named"
    assert not session.snapshots.tables_changed
    for action, name, message in (
        ("stop_table", "public.orders", "stopped"),
        ("start_table", "public.held", "captured again"),
    ):
        answer, (written,) = session.signal(action, tables=[name])
        assert (answer.message, answer.tables) == (message, (name,))
        record = TableRecord.decode(written.value or b"", "state")
        assert (str(record.table), record.status, record.changed_us) == (name, "stopped", NOW_US)
        assert record.is_held == (action == "stop_table")


def test_who_wants_to_heal_hears_which_tables_he_may_start() -> None:
    barrier = WatershedError("its key differs", "give it its key")
    held = {TableId("public", "held"): None, TableId("public", "barred"): barrier}
    answer, _ = Session(stopped=held).signal("heal")
    assert answer.next == "cdc table start public.held: it is stopped, and all its rows are read again"
    assert Session().signal("heal")[0].next == ""
    consistent = Session(stopped=held, limits={"method": "consistent"})
    assert "there is no gap to heal" in refusal_of(consistent, "heal"), "they can be read beside the stream"


def test_all_tables_are_read_at_a_first_start() -> None:
    session = Session(schemas=BOTH)
    session.snapshots.begin_all("start", 9)
    assert [record.table for record in snapshots_in(session.advance())] == [CUSTOMERS, ORDERS]


def test_rows_that_changed_without_events_are_read_where_they_are_wanted_and_have_a_key() -> None:
    never = {"mode": "never"}
    part: dict[str, Any] = {"deletes_in": {"after": ["1"], "up_to": ["9"]}, "sweeps": False}
    for record, status in (
        (wanted(status="done"), "cancelled"),
        (wanted(**part), "cancelled"),
        (wanted(), "running"),
    ):
        session = Session(record, limits=never)
        session.advance()
        (again,) = snapshots_in(session.snapshots.reread(CUSTOMERS, "column x was dropped"))
        assert (again.status, again.requested_us) == (status, NOW_US)
    assert Session(schemas=[replace(SCHEMA, key=())]).snapshots.reread(CUSTOMERS, "column x was dropped") == []


def test_a_table_is_known_as_it_was_altered() -> None:
    session = Session(wanted())
    altered = replace(SCHEMA, version=2)
    session.snapshots.alter(altered)
    assert session.beside.engine.tables[CUSTOMERS] is altered
    assert session.beside.engine.jobs[CUSTOMERS].schema is altered


def test_a_session_may_have_no_restrictions_and_its_sweeps_want_tombstones_when_they_are_committed() -> None:
    beside, reader = Beside(tombstones={}), ScriptedReader()
    snapshots = Snapshots(beside.engine, reader, reader, ScriptedSignals(), Answers(TOPICS, {}))
    assert snapshots.owed == {}
    beside.sweeps.record(CUSTOMERS, 77, 5)
    assert beside.engine.tombstones.due == {}
    snapshots.on_committed()
    assert beside.engine.tombstones.due == {CUSTOMERS: 77}


# ---- when something is asked and reported


def test_signals_are_looked_for_at_intervals() -> None:
    session = Session()
    looks: list[float] = []
    session.signals.poll = lambda: looks.append(session.beside.now) or []  # type: ignore[method-assign,func-returns-value]
    for part in (0.0, 0.5, 0.6, 0.5, 0.6):
        session.advance(part * SIGNAL_INTERVAL_S)
    assert looks == pytest.approx([100.0 + n * SIGNAL_INTERVAL_S for n in (0, 1.1, 2.2)])


def begun(session: Session) -> None:
    """The barrier is passed and the table described."""
    session.advance()
    barrier = session.reader.asked[-1]
    assert isinstance(barrier, TransactionBarrier)
    session.reader.coming.append(BarrierPassed(barrier.nonce, snapshot(50)))
    session.advance()
    begin = session.reader.asked[-1]
    assert isinstance(begin, DescribeTable)
    session.reader.coming.append(TableDescribed(begin.nonce, snapshot(60), "shape", 10, 20, (), "order"))
    session.advance()
    session.beside.transaction(900, watermarks=[begin.nonce])


def test_chunks_are_read_up_to_the_greatest_lag() -> None:
    session = Session(wanted())
    begun(session)
    lag_s = session.beside.engine.limits.lag_s_max
    session.advance(lag_s=lag_s * 1.01)
    assert not isinstance(session.reader.asked[-1], Chunk)
    session.advance(lag_s=lag_s)
    assert isinstance(session.reader.asked[-1], Chunk)


def test_keys_of_topics_are_asked_of_their_own_reader_and_the_report_says_so() -> None:
    all_read = {"after": None, "up_to": None}
    session = Session(wanted(sweeps=False, ranges=[all_read | {"is_done": True}], deletes_in=all_read))
    begun(session)
    session.advance(10.0)
    assert isinstance(session.keys.asked[-1], KeyPage)
    assert not any(isinstance(request, KeyPage) for request in session.reader.asked)
    assert progress_in(session.advance())[-1].message == "looking for rows that vanished"


def test_a_report_says_what_each_snapshot_waits_for() -> None:
    paused = wanted(ORDERS_SCHEMA, status="paused", message="no privilege")
    session = Session(wanted(), paused, schemas=BOTH)
    reported = {one.table: (one.status, one.message) for one in progress_in(session.advance())}
    assert reported == {
        "public.customers": ("waiting", "transactions that began earlier"),
        "public.orders": ("paused", "no privilege"),
    }
    barrier = session.reader.asked[-1]
    assert isinstance(barrier, TransactionBarrier)
    session.reader.coming.append(BarrierPassed(barrier.nonce, snapshot(50)))
    assert [(one.table, one.status, one.message) for one in progress_in(session.advance())] == [
        ("public.customers", "running", "")
    ]


def test_the_rate_of_rows_is_that_since_the_snapshot_runs() -> None:
    session = Session(wanted())

    def rate(seconds: float, rows: int) -> float:
        session.beside.engine.jobs[CUSTOMERS].rows += rows
        (reported,) = progress_in(session.advance(seconds))
        return reported.rows_per_s

    assert rate(1.0, 5) == 0.0, "it is the first report"
    assert rate(3.0, 1) == 0.3
    assert rate(1.0, 9) == 2.5
    session.beside.engine.set_status(CUSTOMERS, "paused")
    assert rate(1.0, 0) == 0.0
    assert progress_in(session.advance(100.0)) == []
    session.beside.engine.set_status(CUSTOMERS, "running")
    assert rate(1.0, 0) == 0.0, "it begins again"
    assert rate(2.0, 3) == 1.5


def test_a_snapshot_that_has_ended_is_not_taken_for_one_that_runs() -> None:
    session = Session(wanted(status="cancelled"), wanted(ORDERS_SCHEMA, status="failed"), schemas=BOTH)
    assert session.advance() == []
