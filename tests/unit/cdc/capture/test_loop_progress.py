"""The progress records of the loop: when they are published, and what they claim."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from cdc.capture.loop import Capture
from cdc.model.control import ProgressRecord, SnapshotRecord
from cdc.model.errors import ConnectionLost, UnsupportedChangeError
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.snapshots.jobs import SnapshotJob
from tests.unit.cdc.capture.loops import SCHEMA, TOPIC, TS_US, Script, transaction
from tests.unit.cdc.capture.test_loop import ANSWERS, START, capture, positions


def progress(script: Script) -> list[ProgressRecord]:
    own = [record for record in script.committed if record.key == b"progress"]
    values = [record.value for record in own if record.topic == "shop.progress"]
    return [ProgressRecord.decode(value or b"", "progress") for value in values]


def test_end_offsets_are_asked_for_after_the_commit_that_they_cover() -> None:
    script = Script(inputs=[[], transaction(1_100, 1)], end_offsets=[{TOPIC: (1, 0)}, None, {TOPIC: (2, 5)}], waits=5)
    capture(script, idle_position_s=1_000.0, progress_interval_ms=10).run()
    reported = [(p.lsn, p.seq, p.commit_ts_us, p.end_offsets, p.is_cut) for p in progress(script)]
    assert reported == [(1_000, 0, 0, {TOPIC: (1, 0)}, False), (1_148, 1, TS_US, {TOPIC: (2, 5)}, True)]
    asked = [i for i, note in enumerate(script.notes) if note == "ask for end offsets"]
    assert script.notes.index("commit") < asked[1]
    assert positions(script)[-1].topics[TOPIC].end_offsets == (2, 5)


def test_progress_is_told_at_its_pace_and_once() -> None:
    script = Script(inputs=[transaction(1_100 + 100 * n, n) for n in range(30)], waits=30, end_offsets=ANSWERS)
    capture(script, transaction_rows_max=1, idle_position_s=1_000.0, progress_interval_ms=1_000).run()
    lsns = [p.lsn for p in progress(script)]
    assert lsns == sorted(set(lsns))
    assert lsns[-1] == 1_100 + 2_900 + 48
    assert len(lsns) <= 3


def test_end_offsets_of_a_position_are_a_cut_only_if_nothing_was_produced_before_the_answer() -> None:
    """They are high watermarks: records of a Kafka transaction that is open, and committed later, are below them."""
    script = Script(inputs=[transaction(1_100, 1), transaction(1_200, 2)], end_offsets=[{TOPIC: (3, 0)}], waits=6)
    made = capture(script, idle_position_s=1_000.0, progress_interval_ms=10)
    made._progress_lsn = Lsn(START)
    made._cut_at = script.clock.now_s + 60  # none is due: the answer is not awaited
    made.run()
    assert [(p.lsn, p.is_cut) for p in progress(script)] == [(1_148, False)]


def test_the_last_position_before_a_pause_is_a_cut_although_a_report_was_produced_before_the_answer() -> None:
    """Else a sink that reads up to cuts would lack the last transaction until the log moves on."""
    answers = [None, {TOPIC: (2,)}, {TOPIC: (2,)}, {TOPIC: (2,)}]
    script = Script(inputs=[transaction(1_100, 1)], end_offsets=answers, waits=20)
    made = capture(script, idle_position_s=1_000.0, progress_interval_ms=300, transaction_time_ms_min=0)
    made._progress_lsn = Lsn(START)
    made._cut_at = script.clock.now_s + 60  # none is due: the answer is not awaited
    wait = script.wait

    def waiting(timeout_s: float) -> None:
        if made._progress_request is not None and not progress(script):
            made._snapshots._pending = [TopicRecord("shop.progress", b"snapshot/public.customers", b"{}")]
        wait(timeout_s)

    script.wait = waiting  # type: ignore[method-assign]
    made.run()
    assert [(p.lsn, p.is_cut) for p in progress(script)] == [(1_148, False), (1_148, True)], "and once"


def test_within_a_transaction_that_is_published_in_parts_there_is_no_cut() -> None:
    frames = transaction(1_200, 2, 3, 4)
    script = Script(inputs=[transaction(1_100, 1), frames[:4], frames[4:]], end_offsets=ANSWERS, waits=4)
    limits: dict[str, Any] = {"transaction_rows_max": 2, "transaction_time_ms_min": 0, "progress_interval_ms": 10}
    made = capture(script, awaits_cuts=True, idle_position_s=1_000.0, **limits)
    wait, seen = script.wait, list[bool]()

    def waiting(timeout_s: float) -> None:
        if made._committed.partial is not None:
            seen.append(made._awaits_cut(script.clock.now_s))
        wait(timeout_s)

    script.wait = waiting  # type: ignore[method-assign]
    made.run()
    assert not any(seen)
    cuts = [p.lsn for p in progress(script) if p.is_cut]
    assert set(cuts) <= {1_000, 1_148, 1_248} and cuts[-1] == 1_248


def test_under_a_steady_load_the_loop_waits_for_a_cut_once_in_a_while() -> None:
    count = 40

    def load(*, answered: bool, awaits_cuts: bool = True) -> tuple[Script, list[int]]:
        script = Script(inputs=[transaction(1_100 + 100 * n, n) for n in range(count)], waits=2)
        script.end_offsets = [{TOPIC: (9,)}] * 200 if answered else []
        read = script.read

        def reading(messages_max: int, bytes_max: int) -> list[bytes]:
            script.clock.now_s += 0.1
            return read(messages_max, bytes_max)

        script.read = reading  # type: ignore[method-assign]
        limits: dict[str, Any] = {"transaction_rows_max": 1, "idle_position_s": 1_000.0, "progress_interval_ms": 300}
        capture(script, awaits_cuts=awaits_cuts, **limits).run()
        return script, [p.lsn for p in progress(script) if p.is_cut]

    script, cuts = load(answered=True)
    assert count * 0.1 / 1.0 - 1 <= len(cuts) <= count * 0.1 / 0.3 + 1 and cuts == sorted(set(cuts))
    script, cuts = load(answered=False)  # brokers that do not answer delay changes for a bounded time only
    assert cuts == [] and not script.inputs
    assert [p.seq for p in positions(script)][-1] == count
    delayed_s = script.clock.now_s
    script, _ = load(answered=False, awaits_cuts=False)  # no sink needs cuts: nothing is delayed
    assert [p.seq for p in positions(script)][-1] == count
    assert script.clock.now_s < delayed_s - 4.0


def test_brokers_that_do_not_tell_end_offsets_are_asked_again() -> None:
    script = Script(end_offsets=[ConnectionLost("no answer"), {TOPIC: (1, 0)}], waits=5)
    capture(script, idle_position_s=1_000.0, progress_interval_ms=10).run()
    assert [p.end_offsets for p in progress(script)] == [{TOPIC: (1, 0)}]


def owing(made: Capture) -> SnapshotJob:
    """Let the only table owe rows."""
    record = SnapshotRecord(
        request="r",
        table_schema=SCHEMA.table.schema,
        table_name=SCHEMA.table.name,
        status="paused",
        sweeps=True,
        requested_us=0,
        owes="its initial snapshot",
    )
    engine = made._snapshots._engine
    engine.add(record)
    made._snapshots.on_committed()
    return engine.jobs[SCHEMA.table]


def test_progress_is_published_again_when_a_table_owes_nothing_any_more_although_the_position_stays() -> None:
    script = Script(end_offsets=ANSWERS, waits=40)
    made = capture(script, idle_position_s=1_000.0, progress_interval_ms=10)
    job = owing(made)
    wait = script.wait

    def waiting(timeout_s: float) -> None:
        wait(timeout_s)
        if script.waits == 20:
            job.end()
            made._snapshots.on_committed()

    script.wait = waiting  # type: ignore[method-assign]
    made.run()
    assert [one for one, _ in groupby((p.lsn, p.owed) for p in progress(script))] == [
        (START, {str(SCHEMA.table): "its initial snapshot is paused"}), (START, {}),
    ]  # fmt: skip


def test_ends_are_checked_before_a_position_records_them() -> None:
    """Else a topic that lost records would only be found to have what it has now."""
    script = Script(end_offsets=[{TOPIC: (1, 0)}], waits=6)
    made = capture(script, idle_position_s=1_000.0, progress_interval_ms=10)

    def refuse(ends: Mapping[str, Sequence[int]]) -> None:
        raise UnsupportedChangeError(f"{ends}", table=SCHEMA.table)

    made._schedule = replace(made._schedule, check_ends=refuse)
    with pytest.raises(UnsupportedChangeError, match="1, 0"):
        made.run()
    assert made._publisher._topics[TOPIC].end_offsets == ()
    assert progress(script) == []


def test_progress_names_what_was_owed_when_its_end_offsets_were_asked_for() -> None:
    """Rows that were published since may be above these."""
    script = Script(end_offsets=[None, None, {TOPIC: (1, 0)}], waits=6)
    made = capture(script, idle_position_s=1_000.0, progress_interval_ms=10)
    job = owing(made)
    wait = script.wait

    def waiting(timeout_s: float) -> None:
        wait(timeout_s)
        if "ask for end offsets" in script.notes and job.status != "done":
            job.end()
            made._snapshots.on_committed()

    script.wait = waiting  # type: ignore[method-assign]
    made.run()
    assert [p.owed for p in progress(script)] == [{str(SCHEMA.table): "its initial snapshot is paused"}]
    assert made._snapshots.owed == {}
