"""Problems of the pipeline, each with the next step. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from cdc.config.config_file import Config
from cdc.model.condition import Condition
from cdc.model.control import ProgressRecord
from cdc.model.errors import NEXT_AFTER_GAP, WatershedError
from cdc.model.sink_records import STALLED_S, newest
from cdc.model.topics import Topics, unknown_slot
from watershed.client.source_facts import SourceFacts
from watershed.status.facts import Reading, TopicFacts
from watershed.status.model import Part, Problem, SinkStatus, Status, TableStatus
from watershed.status.views import view_problems

GLANCE_S: Final = 1.0  # the least time for which `cdc status` observes
GLANCE_PATIENCE: Final = 3.0  # times as long a silence, then
_DAY_S: Final = 86_400
LATE_S_MIN: Final = 600.0  # by which a scheduled comparison is late before that is a problem
# Status of a snapshot that does not continue by itself → the next step.
HALTED: Final[Mapping[str, str]] = {
    "paused": "cdc snapshot resume --table {table}",
    "failed": "remove the cause, then: cdc snapshot resume --table {table}",
    "cancelled": "cdc snapshot start --table {table} reads all rows",
}
BUDGET_SHARE_MIN: Final = 0.2  # of the WAL budget that must be free


def problems_of(config: Config, reading: Reading, status: Status) -> tuple[Problem, ...]:
    """Returns the problems. `status`: all other parts of the status."""
    return (
        *_unreachable(reading),
        *_source(config, reading, status),
        *_capture(config, reading, status),
        *_tables(status, reading.topics.progress),
        *_sinks(config, reading, status),
        *view_problems(config, reading, status),
    )


def _problem(part: Part, message: str, hint: str, name: str = "", *, is_warning: bool = False) -> Problem:
    return Problem(part=part, name=name, severity="warning" if is_warning else "error", message=message, next=hint)


def _unreachable(reading: Reading) -> Iterator[Problem]:
    errors: tuple[tuple[Part, WatershedError | None], ...] = (
        ("source", reading.source_error),
        ("brokers", reading.topics_error),
    )
    for part, error in errors:
        if error is not None:
            yield _problem(part, error.message, error.hint)


def _source(config: Config, reading: Reading, status: Status) -> Iterator[Problem]:
    source, slot, position = reading.source, config.source.slot, reading.topics.position
    is_streaming = position is not None and position.phase == "streaming"
    if source is None:
        return
    is_known = position is not None or reading.topics.damage is not None or reading.topics_error is not None
    is_capture = any(condition.part == "capture" for condition in reading.conditions)  # it reports what it finds
    if source.slot is not None and not is_known and not is_capture:
        unknown = unknown_slot(slot, config.topics.prefix, reading.topics.prefixes)
        yield _problem("source", unknown.message, unknown.hint, is_warning=True)
    if source.slot is None:
        if is_streaming:
            yield _problem("source", f"replication slot {slot} does not exist any more", NEXT_AFTER_GAP)
    elif source.slot.wal_status == "lost":
        why = f" ({source.slot.invalidation})" if source.slot.invalidation else ""
        yield _problem("source", f"replication slot {slot} is lost{why}", NEXT_AFTER_GAP)
    elif (reason := _budget_problem(source, status)) is not None:
        yield _problem(
            "source",
            f"the WAL budget of replication slot {slot} is running out: {reason}",
            "start capture or make it faster; or raise max_slot_wal_keep_size and give the server more disk: ALTER "
            "SYSTEM SET max_slot_wal_keep_size = '…'; SELECT pg_reload_conf()",
        )
    if is_streaming and not source.has_publication:
        name = config.source.publication
        yield _problem("source", f"publication {name} does not exist any more", NEXT_AFTER_GAP)


def _budget_problem(source: SourceFacts, status: Status) -> str | None:
    slot = status.source.slot
    assert slot is not None, "the source was read"
    assert source.slot is not None, "the caller has checked"
    budget = slot.budget
    if source.slot.wal_status == "unreserved":
        return "the server may remove WAL that capture still needs at its next checkpoint"
    if budget.remaining_bytes is None or not budget.limit_bytes:
        return None
    # Segments are removed whole, so that of a small limit a part can't be used.
    if budget.remaining_bytes < BUDGET_SHARE_MIN * budget.limit_bytes:
        return f"{budget.remaining_bytes:,} bytes of {budget.limit_bytes:,} are left"
    return None


def _capture(config: Config, reading: Reading, status: Status) -> Iterator[Problem]:
    for condition in reading.conditions:
        if condition.part == "capture" and condition.is_failure:
            yield _own(condition)
    if reading.topics.damage is not None:
        yield _problem("capture", reading.topics.damage.message, reading.topics.damage.hint)
    capture = status.capture
    if capture.lost_events:
        yield _problem("capture", f"events of {capture.lost_events} gaps were not published", "cdc check lists them; "
                       "cdc outbox republish publishes rows again that still exist", is_warning=True)  # fmt: skip
    if reading.source is None or capture.lag_seconds is None or capture.silent_seconds is None:
        return
    # An idle source's position is recorded at this rhythm.
    grace_s = max(STALLED_S, config.capture.idle_position_s + 2)
    owing = [table for table in status.tables if table.owed]
    if owing and capture.state == "not streaming" and capture.silent_seconds >= grace_s:
        yield _problem(
            "capture",
            f"{rows_owed(owing[0])}{f', and {len(owing) - 1:,} more tables' if owing[1:] else ''}; no process streams",
            "start `cdc run`: it continues to read them",
        )
    elif capture.lag_seconds >= grace_s and capture.silent_seconds >= grace_s:
        slot = reading.source.slot
        streams = "a process streams from the slot" if slot is not None and slot.is_active else "no process streams"
        yield _problem(
            "capture",
            f"the source advances and capture does not: its position has not moved for {capture.silent_seconds:.0f} s, "
            f"{capture.lag_bytes or 0:,} bytes behind; {streams}",
            "start `cdc run`; if it is running, its log says what it is waiting for",
        )


def rows_owed(table: TableStatus) -> str:
    return f"rows are owed: {table.table}: {table.owed}"


def _own(condition: Condition) -> Problem:
    return _problem(condition.part, condition.message, condition.next, condition.name)


def _tables(status: Status, progress: ProgressRecord | None) -> Iterator[Problem]:
    for table in status.tables:
        if table.state == "stopped":
            yield _problem("table", table.message, table.next, table.table)
        if table.owed and table.snapshot is not None and table.snapshot.status in HALTED:
            yield _problem("table", f"{rows_owed(table)}, and their snapshot is {table.snapshot.status}"
                           + (f": {table.snapshot.message}" if table.snapshot.message else ""),
                           HALTED[table.snapshot.status].format(table=table.table), table.table)  # fmt: skip
        elif table.snapshot is not None and table.snapshot.status == "failed":
            yield _problem(
                "table",
                f"the snapshot of {table.table} has failed: {table.snapshot.message}",
                f"remove the cause, then: cdc snapshot resume --table {table.table}",
                table.table,
                is_warning=True,
            )
        total = table.dead_letters + table.skipped
        if left_out := total if progress is None else progress.unpublished.get(table.table, total):
            what = f"{left_out:,} changes of {table.table} could not be published"
            yield _problem("table", f"{what}: {table.dead_letters:,} are dead letters, {table.skipped:,} were skipped",
                           "read the dead letters; once the cause is removed: "
                           f"cdc snapshot start --table {table.table}", table.table, is_warning=True)  # fmt: skip


def _sinks(config: Config, reading: Reading, status: Status) -> Iterator[Problem]:
    failed = {
        condition.name: condition
        for condition in reading.conditions
        if condition.part == "sink" and condition.is_failure
    }
    for condition in failed.values():
        yield _own(condition)
    known = {sink.sink for sink in status.sinks}
    for name, error in reading.topics.sink_errors.items():
        if name not in known and name not in failed and name in config.sinks:
            yield _problem("sink", error.message, error.next, name)
    for sink in status.sinks:
        if sink.dead_letters:
            yield _problem(
                "sink",
                f"{sink.sink}: its store rejected {sink.dead_letters:,} rows, which are dead letters",
                f"cdc dlq list {sink.sink} says why; once the cause is removed: cdc dlq replay {sink.sink}",
                sink.sink,
                is_warning=True,
            )
        for table, next_step in sorted(sink.refused.items()):
            message = f"{sink.sink} does not read {table} on: {sink.owed[table]}"
            yield _problem("sink", message, next_step, sink.sink, is_warning=sink.sink not in config.sinks)
        if sink.query is not None and sink.query.shortage and sink.sink in config.sinks:
            message = f"{sink.sink} may be late: {sink.query.shortage}"
            yield _problem("sink", message, sink.query.next, sink.sink, is_warning=True)
        yield from _comparison(config, sink, status.unix_seconds)
        yield from _former_mappings(config, reading.topics, sink.sink)
        unread_s = sink.unread_seconds or 0.0
        kept_s = config.topics.config.deletes_kept_s
        if unread_s > kept_s / 2 and sink.sink in config.sinks:
            is_past = unread_s > kept_s
            yield _problem(
                "sink",
                f"{sink.sink} has not read records that are up to {unread_s / _DAY_S:.1f} days old; the topics keep "
                f"deletes for {kept_s / _DAY_S:g} days"
                + (", so deleted rows may stay in its store" if is_past else ""),
                f"start `cdc sink run {sink.sink}`: the store is then rebuilt automatically",
                sink.sink,
                is_warning=not is_past,
            )
        if sink.sink not in failed and is_stalled(sink):
            why = f"; its last error: {sink.error}" if sink.error else ""
            yield _problem(
                "sink",
                f"{sink.sink} makes no progress: {sink.lag_records:,} published records are not applied, and "
                f"nothing has changed for {sink.silent_seconds or 0:.0f} s{why}",
                sink.next or f"start `cdc sink run {sink.sink}`; if it is running, its log says what it is waiting for",
                sink.sink,
                # The record of a sink that is used no more stays where it is.
                is_warning=sink.sink not in config.sinks,
            )


def _former_mappings(config: Config, topics: TopicFacts, sink: str) -> Iterator[Problem]:
    """Rows that were written with another mapping than the configuration's, and that no rebuild replaces."""
    section, record, request = config.sinks.get(sink), newest(topics.sinks, sink), topics.rebuilds.get(sink)
    if section is None or record is None or (request is not None and request.is_open):
        return
    names = Topics(config.topics.prefix)
    held = [one for one in config.source.stored_table_ids if names.table(one) in record.end_offsets]
    wanted = section.fingerprints(held)
    former = [str(one) for one in held if section.holds(one) and record.mappings.get(str(one)) != wanted.get(str(one))]
    if not former:
        return
    hint = (
        f"cdc reload, or start `cdc sink run {sink}` again: it builds them again, and cdc check says how much that is"
    )
    why = ""
    if request is not None and request.tables and request.status in ("failed", "cancelled"):
        why = f"; building them again was not completed ({request.message or request.status})"
        hint = f"{request.next}; then start `cdc sink run {sink}` again" if request.next else hint
    message = (
        f"{sink} has rows of {', '.join(former)} that were written with another mapping than the configuration's{why}"
    )
    yield _problem("sink", message, hint, sink, is_warning=True)


def _comparison(config: Config, sink: SinkStatus, now_s: float) -> Iterator[Problem]:
    """Warnings: a store that differs serves as well as before, and no restart helps against it."""
    found = sink.comparison
    if found is None or sink.sink not in config.sinks:
        return
    if found.drift_rows:
        tables = ", ".join(f"{count:,} of {table}" for table, count in sorted(found.drift.items()))
        yield _problem(
            "sink",
            f"{sink.sink} differs from the source: {found.drift_rows:,} rows at the last comparison ({tables})",
            f"cdc verify --sink {sink.sink} lists them; cdc repair --sink {sink.sink} corrects them",
            sink.sink,
            is_warning=True,
        )
    every_s = config.verify.every_s
    last = next((run for run in found.runs if run.is_scheduled), None)
    if every_s is None or last is None:
        return
    late_s = now_s - last.begun_unix_seconds - last.seconds - every_s
    if late_s > max(LATE_S_MIN, every_s):
        yield _problem(
            "sink",
            f"{sink.sink} is to be compared with the source every {config.verify.every}, but the last comparison "
            f"was {(now_s - last.begun_unix_seconds) / 3600:.1f} hours ago",
            f"start `cdc sink run {sink.sink}`; if it is running, its log says why it compares nothing",
            sink.sink,
            is_warning=True,
        )
    elif why := _not_compared(last.not_compared):
        yield _problem(
            "sink",
            f"{sink.sink} was not compared completely: {why}",
            f"cdc verify --sink {sink.sink} compares it again",
            sink.sink,
            is_warning=True,
        )


def _not_compared(reasons: Mapping[str, str]) -> str:
    """The first reason, with the number of the others."""
    if not reasons:
        return ""
    table, why = next(iter(sorted(reasons.items())))
    others = f", and {len(reasons) - 1:,} more tables" if len(reasons) > 1 else ""
    return f"{table}: {why}{others}"


def is_stalled(sink: SinkStatus) -> bool:
    """Says whether records wait and the sink has not moved for longer than it may take to start a batch. A single
    observation can't show for how long they have been waiting, and so requires a longer silence."""
    patience_s = sink.patience_seconds
    silent_s = sink.silent_seconds or 0.0
    is_seen = sink.waiting_seconds >= patience_s and silent_s >= patience_s
    return is_seen or (sink.waiting_seconds >= GLANCE_S and silent_s >= GLANCE_PATIENCE * patience_s)
