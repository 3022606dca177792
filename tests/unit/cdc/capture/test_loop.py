"""The loop: what it does in which order, and when. What crashes do to it is in tests/simulation."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import cdc.capture.assembler
from cdc.capture.assembler import Assembler
from cdc.capture.kafka_transaction import PositionConstants, Publisher
from cdc.capture.loop import Capture, LoopSchedule, Pipeline
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.config.settings import CaptureConfig
from cdc.formats.heartbeats import Heartbeats
from cdc.model.control import PositionRecord, SourceIdentity, TopicState
from cdc.model.errors import ConnectionLost, GapError, UnsupportedChangeError
from cdc.model.events import TableId
from cdc.model.lsn import Lsn
from cdc.model.topics import Topics
from cdc.pgoutput.messages import NULL
from cdc.ports.published_batch import OnPublished, PublishedBatch
from cdc.snapshots.coordination import Snapshots
from cdc.snapshots.signal_answers import Answers
from tests.support import wire
from tests.support.snapshot_ports import (
    ScriptedReader,
    ScriptedSignals,
    UnfollowedTables,
    engine_of,
    no_backfill,
)
from tests.unit.cdc.capture.loops import CONTEXT, SCHEMA, TOPIC, TS_US, Script, transaction

START = 1_000
SOURCE = SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed")
ROW_1 = 'public.customers:{"id":1}'
ROW_2 = 'public.customers:{"id":2}'
QUIET: dict[str, Any] = {
    "transaction_time_ms_min": 0,
    "idle_position_s": 1_000.0,
    "progress_interval_ms": 1_000_000,
}  # nothing but what the stream brings

KEYLESS = wire.update(10, [NULL, b"x"])  # no record can have this key
ANSWERS: list[Any] = [{TOPIC: (9,)}] * 50


def capture(
    script: Script,
    watch: Callable[[], None] = lambda: None,
    heartbeats: Heartbeats | None = None,
    *,
    awaits_cuts: bool = False,
    on_published: OnPublished | None = None,
    **limits: Any,
) -> Capture:
    config = CaptureConfig(**limits)
    constants = PositionConstants(1, SOURCE, "p", {TOPIC: TopicState(topic_id="id")})
    engine = engine_of([SCHEMA], CONTEXT)
    return Capture(
        clock=script.clock,
        probe=script.probe,
        pipeline=Pipeline(
            stream=script,
            broker=script,
            assembler=Assembler(
                CapturedTables([SCHEMA]),
                CONTEXT,
                StreamState(Lsn(START), None, 0, 0),
                engine,
                UnfollowedTables(),
            ),
            backfill=no_backfill(script.clock),
            snapshots=Snapshots(
                engine,
                ScriptedReader(),
                ScriptedReader(),
                ScriptedSignals(),
                Answers(Topics("shop"), {}),
            ),
            publisher=Publisher(constants, config),
        ),
        topics=Topics("shop"),
        schedule=LoopSchedule(
            limits=config, watch=watch, heartbeats=heartbeats, awaits_cuts=awaits_cuts, on_published=on_published
        ),
        should_stop=script.should_stop,
    )


def notes_without(script: Script, *kinds: str) -> list[str]:
    return [note for note in script.notes if not note.startswith(kinds)]


def positions(script: Script) -> list[PositionRecord]:
    values = [record.value for record in script.committed if record.topic == "shop.state"]
    return [PositionRecord.open(value or b"", "state") for value in values]


def test_each_kafka_transaction_is_told_with_what_it_holds() -> None:
    script = Script(inputs=[transaction(1_100, 1), [], transaction(1_200, 2, 4), [], transaction(1_300, 3)], waits=2)
    reported: list[PublishedBatch] = []
    capture(script, on_published=reported.append, **QUIET | {"transaction_time_ms_min": 1_000}).run()
    first, second = reported
    assert (first.commits, second.commits) == ((1_100, 1_100), (1_200, 1_300))
    assert (first.position_lsn, second.position_lsn) == (1_148, 1_348)
    assert (first.rows, second.rows) == (1, 3)
    assert (first.records, second.records) == (1, 3)
    assert second.bytes > 2 * first.bytes > 0
    assert second.topics == (TOPIC,)
    assert (second.commit_ts_us, second.epoch, second.is_partial) == (TS_US, 1, False)
    assert 0 < second.ended_us - second.begun_us < 1_000_000


def test_the_parts_of_a_large_transaction_are_told_with_its_commit_lsn() -> None:
    frames = transaction(1_100, 1, 2, 3, 4)
    script = Script(inputs=[transaction(1_050, 9), frames[:4], frames[4:]], waits=1)
    reported: list[PublishedBatch] = []
    capture(
        script, on_published=reported.append, **QUIET | {"transaction_rows_max": 2, "transaction_time_ms_min": 9}
    ).run()
    assert [(one.commits, one.is_partial, one.rows, one.commit_ts_us) for one in reported] == [
        ((1_050, 1_050), False, 1, TS_US),
        ((1_100, 1_100), True, 2, TS_US),
        ((1_100, 1_100), False, 2, TS_US),
    ]


def test_nothing_is_told_of_positions_heartbeats_and_what_was_not_committed() -> None:
    reported: list[PublishedBatch] = []
    beats = Heartbeats("shop", 100, schemas_enable=False)
    script = Script(inputs=[[wire.keepalive(2_000)]], waits=4)
    capture(script, heartbeats=beats, on_published=reported.append, **QUIET | {"idle_position_s": 0.001}).run()
    assert positions(script)
    lost = Script(inputs=[transaction(1_100, 1)], commit_error=ConnectionLost("fenced"))
    with pytest.raises(ConnectionLost):
        capture(lost, on_published=reported.append, **QUIET).run()
    assert reported == []


def test_small_transactions_in_a_row_share_a_kafka_transaction() -> None:
    script = Script(inputs=[transaction(1_100, 1), [], transaction(1_200, 2), [], transaction(1_300, 3)], waits=2)
    capture(script, **QUIET | {"transaction_time_ms_min": 1_000}).run()
    # The first one waits for nothing. Only the second begins while time is still to pass, and the third joins it.
    assert [position.seq for position in positions(script)] == [1, 3]


@pytest.mark.invariant(9)
def test_a_change_is_produced_with_its_position_committed_and_then_confirmed() -> None:
    script = Script(inputs=[transaction(1_100, 1, 2)], waits=1)
    capture(script, **QUIET).run()
    assert notes_without(script, "probe", "ask") == [
        f"produce {ROW_1} {ROW_2}",
        "produce state",
        "commit",
        "status 1148 1148",
        "status 1148 1148",  # the last one, after the stop
    ]
    probes = [note for note in script.notes if note in ("commit", "status 1148 1148") or note.startswith("probe kafka")]
    assert probes[:4] == ["probe kafka.before-commit", "commit", "probe kafka.after-commit", "status 1148 1148"]
    assert [p.resume_lsn for p in positions(script)] == [1_148]


@pytest.mark.invariant(9)
def test_nothing_is_confirmed_before_its_commit() -> None:
    script = Script(inputs=[transaction(1_100, 1)], commit_error=ConnectionLost("fenced"))
    with pytest.raises(ConnectionLost):
        capture(script, **QUIET).run()
    assert "status 1148 1148" not in script.notes
    assert script.notes[-1] == "abort"


def test_input_that_goes_on_is_committed_at_the_limit() -> None:
    script = Script(inputs=[transaction(1_100 + 100 * n, n) for n in range(6)], waits=1)
    capture(script, transaction_rows_max=2, **QUIET).run()
    assert [p.seq for p in positions(script)] == [1, 3, 5, 6]  # the first at once: the last record may be old


def test_a_part_of_a_large_transaction_is_committed_at_the_limit() -> None:
    frames = transaction(1_100, 1, 2, 3, 4)
    script = Script(inputs=[frames[:4], frames[4:]], waits=1)
    capture(script, transaction_rows_max=2, **QUIET).run()
    first, last = positions(script)
    assert first.partial is not None
    assert (first.resume_lsn, first.seq, first.partial.next_index) == (1_000, 2, 2)
    assert (last.resume_lsn, last.seq, last.partial) == (1_148, 4, None)
    assert "probe transaction.part-committed" in script.notes
    assert "status 1000 1000" in script.notes or "status 1148 1000" in script.notes
    assert script.notes.count("commit") == 2


@pytest.mark.invariant(9)
def test_a_keepalive_is_recorded_before_it_is_confirmed() -> None:
    script = Script(inputs=[[wire.keepalive(5_000)]], waits=10)
    capture(script, idle_position_s=1.0, progress_interval_ms=1_000_000).run()
    recorded, confirmed = script.notes.index("commit"), script.notes.index("status 5000 5000")
    assert recorded < confirmed
    assert positions(script)[0].resume_lsn == 5_000
    assert positions(script)[0].seq == 0


@pytest.mark.invariant(9)
def test_a_damaged_keepalive_is_neither_recorded_nor_confirmed() -> None:
    damaged = (1 << 60) + 5_000
    inputs = [[wire.keepalive(5_000)], [wire.keepalive(damaged)], [wire.keepalive(5_000)], [], []]
    script = Script(inputs=[*inputs], waits=10)
    made = capture(script, idle_position_s=1.0, progress_interval_ms=1_000_000)
    script.named = 5_000  # as the server that is asked knows
    made.run()
    assert positions(script)[-1].resume_lsn == 5_000
    assert not any(str(damaged) in note for note in script.notes)


def test_keepalives_are_recorded_at_their_pace() -> None:
    keepalives = [[wire.keepalive(5_000 + number)] for number in range(20)]
    spaced = [frames for keepalive in keepalives for frames in (keepalive, [])]
    script = Script(inputs=[*spaced], waits=200)
    capture(script, idle_position_s=1.0, progress_interval_ms=1_000_000).run()
    assert script.notes.count("commit") <= 8  # 20 keepalives in 4 s, and 2 s until the stop
    assert positions(script)[-1].resume_lsn == 5_019


def test_a_question_is_answered_at_once_with_what_is_recorded() -> None:
    begun = transaction(1_100, 1)[:3]  # so that the keepalive may not be recorded
    script = Script(inputs=[[*begun, wire.keepalive(5_000, reply_requested=True)], []], waits=1)
    made = capture(script, **QUIET)
    made._step()
    script.notes.clear()
    script.inputs = [[wire.keepalive(5_000, reply_requested=True)]]
    made._step()
    assert notes_without(script, "probe") == ["status 5000 1000"]


def test_status_goes_out_while_nothing_happens() -> None:
    script = Script(waits=100, end_offsets=ANSWERS)  # of 0.2 s
    capture(script, **QUIET).run()
    assert 4 <= sum(note.startswith("status") for note in script.notes) <= 6


def test_status_goes_out_while_the_brokers_are_away() -> None:
    script = Script(inputs=[transaction(1_100, 1)], commit_waits=60, waits=1)
    capture(script, **QUIET).run()
    before_commit = script.notes[: script.notes.index("commit")]
    assert before_commit.count("status 1148 1000") >= 11


def test_a_server_that_is_gone_while_the_brokers_are_away_ends_the_session() -> None:
    script = Script(inputs=[transaction(1_100, 1)], commit_waits=60, gone_at_s=1_010)
    with pytest.raises(ConnectionLost, match="closed"):
        capture(script, **QUIET).run()
    assert script.notes[-1] == "abort"


def test_the_end_of_a_transaction_that_fits_is_waited_for() -> None:
    """What was whole before it is committed with it, also where time is over and the input runs dry."""
    frames = transaction(1_200, 2, 3)
    script = Script(inputs=[transaction(1_100, 1) + frames[:3], [], [], [], frames[3:]], waits=4)
    capture(script, transaction_time_ms_max=1, **QUIET).run()
    assert [(p.seq, p.partial) for p in positions(script)] == [(3, None)]


def test_a_transaction_that_does_not_fit_is_published_in_parts_as_they_come() -> None:
    frames = transaction(1_100, *range(1, 7))
    script = Script(inputs=[frames[:4], [], frames[4:5], [], frames[5:]], waits=4)
    capture(script, transaction_rows_max=2, **QUIET).run()
    assert [(p.seq, p.partial is None) for p in positions(script)] == [(2, False), (3, False), (6, True)]


def test_a_limit_is_counted_anew_for_each_transaction() -> None:
    """So many rows before it do not split it."""
    frames = transaction(1_200, 3, 4, 5)
    script = Script(inputs=[transaction(1_100, 1, 2, 3) + frames[:4], frames[4:]], waits=1)
    capture(script, transaction_rows_max=4, **QUIET).run()
    assert [(p.seq, p.partial) for p in positions(script)] == [(6, None)]


def stopped_after_one_reading(script: Script, **limits: Any) -> None:
    made = capture(script, **limits, **QUIET)
    first = script.inputs[0]
    made._should_stop = lambda: first not in script.inputs
    made.run()


def test_a_stop_publishes_a_transaction_to_its_end() -> None:
    frames = transaction(1_100, 1, 2)
    script = Script(inputs=[frames[:3], [], frames[3:]])
    stopped_after_one_reading(script)
    (position,) = positions(script)
    assert (position.seq, position.partial) == (2, None)
    assert script.notes[-2:] == ["status 1148 1148", "probe status.sent"]


def test_a_stop_publishes_nothing_of_a_transaction_whose_end_does_not_come() -> None:
    script = Script(inputs=[transaction(1_100, 1, 2)[:3]])
    began_s = script.clock.now_s
    stopped_after_one_reading(script)
    assert script.committed == []
    assert "abort" in script.notes
    assert script.clock.now_s - began_s < 4
    assert script.notes[-2:] == ["status 1000 1000", "probe status.sent"]


def test_a_stop_inside_a_transaction_that_is_split_publishes_what_was_received() -> None:
    frames = transaction(1_100, 1, 2, 3, 4)
    script = Script(inputs=[frames[:5]])
    stopped_after_one_reading(script, transaction_rows_max=2)
    assert [(p.seq, p.partial.next_index) for p in positions(script) if p.partial] == [(3, 3)]


def test_a_stop_without_anything_new_commits_nothing() -> None:
    script = Script(waits=0)
    capture(script, **QUIET).run()
    assert script.notes == ["status 1000 1000", "probe status.sent"]


@pytest.mark.parametrize("error", [ConnectionLost("gone"), GapError("gone")])
def test_whatever_the_stream_raises_gives_the_kafka_transaction_up(error: Exception) -> None:
    script = Script(inputs=[transaction(1_100, 1)[:3], error])
    with pytest.raises(type(error)):
        capture(script, **QUIET).run()
    assert script.notes[-1] == "abort"
    assert script.committed == []


def test_what_is_whole_before_a_change_that_can_not_be_followed_is_published() -> None:
    hole = [wire.xlog_data(m, 0) for m in (wire.begin(1_200, TS_US, 8), KEYLESS)]
    script = Script(inputs=[transaction(1_100, 1) + hole])
    with pytest.raises(UnsupportedChangeError, match="NULL"):
        capture(script, **QUIET).run()
    (position,) = positions(script)
    assert (position.seq, position.resume_lsn) == (1, 1_148)
    assert "status 1200 1148" in script.notes or "status 1148 1148" in script.notes


def test_that_is_so_too_where_its_transaction_began_in_an_earlier_reading() -> None:
    begun = wire.xlog_data(wire.begin(1_200, TS_US, 8), 0)
    script = Script(inputs=[[*transaction(1_100, 1), begun], [wire.xlog_data(KEYLESS, 0)]])
    with pytest.raises(UnsupportedChangeError, match="NULL"):
        capture(script, **QUIET).run()
    assert [(p.seq, p.resume_lsn) for p in positions(script)] == [(1, 1_148)]


def test_nothing_of_a_small_transaction_with_such_a_change_is_published() -> None:
    frames = transaction(1_100, 1)
    script = Script(inputs=[frames[:3], [wire.xlog_data(KEYLESS, 0)]])
    with pytest.raises(UnsupportedChangeError):
        capture(script, **QUIET).run()
    assert script.committed == []
    assert script.notes[-1] == "abort"


# ---- the catalog


def test_the_watch_is_called_now_and_then_and_stops_the_loop() -> None:
    script = Script(waits=200, end_offsets=ANSWERS)  # of 0.2 s
    calls: list[float] = []

    def watch() -> None:
        calls.append(script.clock.now_s)
        if len(calls) == 3:
            raise GapError("publication altered")

    with pytest.raises(GapError):
        capture(script, watch, **QUIET).run()
    assert [round(later - earlier) for earlier, later in pairwise(calls)] == [3, 3]
    assert script.notes[-1] == "abort"


def test_records_say_what_the_capture_published() -> None:
    script = Script(inputs=[transaction(1_100, 1)], waits=1)
    capture(script, **QUIET).run()
    (row,) = [record for record in script.committed if record.topic == TOPIC]
    value = json.loads(row.value or b"")
    assert (row.key, value["op"], value["after"]) == (b'{"id":1}', "c", {"id": 1, "name": "x"})


# ---- heartbeats


def test_a_heartbeat_is_committed_with_the_position_and_makes_an_idle_one() -> None:
    script = Script(inputs=[transaction(1_100, 1)], waits=10, end_offsets=ANSWERS)
    capture(script, heartbeats=Heartbeats("shop", 500, schemas_enable=False), **QUIET).run()
    beat = '__debezium-heartbeat.shop:{"serverName":"shop"}'
    done = [note for note in notes_without(script, "probe", "ask", "status") if note != "produce progress"]
    assert done[:4] == [f"produce {ROW_1}", f"produce {beat}", "produce state", "commit"]
    assert done.count(f"produce {beat}") == 4
    beats = [i for i, record in enumerate(script.committed) if record.topic == "__debezium-heartbeat.shop"]
    assert [script.committed[i + 1].topic for i in beats] == ["shop.state"] * 4
    reported = [json.loads(script.committed[i].value or b"")["ts_ms"] for i in beats]
    assert all(500 <= later - earlier <= 700 for earlier, later in pairwise(reported)), reported


def test_without_heartbeats_an_idle_source_is_confirmed_all_the_same() -> None:
    script = Script(inputs=[[wire.keepalive(5_000)]], waits=10)
    capture(script, **(QUIET | {"idle_position_s": 0.5})).run()
    assert "status 5000 5000" in script.notes
    assert {record.topic for record in script.committed} == {"shop.state"}


def test_a_session_ends_between_transactions_when_too_many_relations_were_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one knows none of them. A session that ended inside of a transaction would meet them all again."""
    monkeypatch.setattr(cdc.capture.assembler, "RELATIONS_MAX", 2)
    _, relation = wire.schema_and_relation([], [], table=TableId("public", "other"))
    others = [wire.xlog_data(wire.relation_bytes(replace(relation, oid=100 + n)), 0) for n in range(3)]
    first = transaction(1_100, 1)
    script = Script(inputs=[[*first[:-1], *others], [], [first[-1]], transaction(1_200, 2)], waits=100)
    capture(script).run()
    assert script.inputs == [transaction(1_200, 2)]
    assert [position.resume_lsn for position in positions(script)][-1] == 1_148
