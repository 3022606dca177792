"""The status as text: tables for the parts of the pipeline, sentences for its problems."""

from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from watershed.status.listing import Listing
from watershed.status.model import RunStatus, Status, TableStatus
from watershed.status.problems import rows_owed

RUNS_SHOWN: Final = 3  # comparisons of each sink
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def screen(status: Status) -> Group:
    parts: list[RenderableType] = [_pipeline(status), ""]
    if status.tables:
        parts += [_tables(status), "", *_owed_lines(status)]
    parts += [sinks_table(status) if status.sinks else "no sink has published a position yet", ""]
    if any(sink.comparison is not None for sink in status.sinks):
        parts += [comparisons_table(status), ""]
    if status.views:
        parts += [views_table(status), ""]
    for sink in status.sinks:
        if sink.error:
            parts.append(f"{escape(sink.sink)}, last error: {escape(sink.error)}\n  next: {escape(sink.next)}")
    return Group(*parts, *problem_lines(status))


def problem_lines(status: Status) -> list[str]:
    """Returns a line for each problem, and one with its next step."""
    if not status.problems:
        return ["[green]no problems[/]"]
    lines = []
    for problem in status.problems:
        colour = "red" if problem.severity == "error" else "yellow"
        about = f"{problem.part} {problem.name}".strip()
        lines.append(f"[{colour}]{problem.severity}[/] {escape(about)}: {escape(problem.message)}")
        if problem.next:
            lines.append(f"  next: {escape(problem.next)}")
    return lines


def _pipeline(status: Status) -> Table:
    table = Table(box=None, show_header=False)
    source, capture = status.source, status.capture
    if source.is_reachable:
        table.add_row("source", f"{source.database}, PostgreSQL {source.version}, timeline {source.timeline}, at "
                      f"{source.lsn}")  # fmt: skip
    else:
        table.add_row("source", "does not answer")
    if source.slot is not None:
        table.add_row("slot", _slot(status))
        table.add_row("WAL budget", _budget(status))
    table.add_row("brokers", "answer" if status.brokers.is_reachable else "do not answer")
    if capture.lsn is None:
        table.add_row("capture", capture.state)
    else:
        reached = f"{capture.state}, epoch {capture.epoch}, {capture.seq or 0:,} records, at {capture.lsn}"
        table.add_row("capture", f"{reached}, {size(capture.lag_bytes)} and {seconds(capture.lag_seconds)} behind")
    return table


def _slot(status: Status) -> str:
    slot = status.source.slot
    assert slot is not None, "the caller has looked"
    if not slot.exists:
        return f"{slot.name} does not exist"
    use = "active" if slot.is_active else "not active"
    return f"{slot.name}, {use}, WAL {slot.wal_status}, confirmed {slot.confirmed_lsn}"


def _budget(status: Status) -> str:
    slot = status.source.slot
    assert slot is not None, "the caller has looked"
    budget = slot.budget
    parts = [f"{size(budget.retained_bytes)} retained"]
    if budget.limit_bytes is None:
        parts.append("no limit: the disk can fill (max_slot_wal_keep_size, http.wal_bytes_max)")
    else:
        parts.append(f"{size(budget.remaining_bytes)} left of {size(budget.limit_bytes)}")
    if budget.rate_bytes_per_second is not None:
        parts.append(f"{size(round(budget.rate_bytes_per_second))}/s written")
    if budget.seconds_left is not None:
        parts.append(f"used up in {span(budget.seconds_left)} if nothing is confirmed")
    return ", ".join(parts)


def _tables(status: Status) -> Listing:
    shown = Listing("table", "state", "left out", texts=["snapshot"])
    for table in status.tables:
        left_out = table.dead_letters + table.skipped
        shown.add_row(table.table, table.state, f"{left_out:,}" if left_out else "", snapshot_text(table))
    return shown


def _owed_lines(status: Status) -> list[str]:
    """Returns a line for each table of which rows are committed that the topic, or a store, may lack."""
    lines = [rows_owed(table) for table in status.tables if table.owed]
    published = {table.table for table in status.tables if table.owed}
    for sink in status.sinks:
        lines += [f"rows are owed: {sink.sink}: {table}: {why}" for table, why in sorted(sink.owed.items())
                  if table not in published]  # fmt: skip
    return [*map(escape, lines), ""] if lines else []


def snapshot_text(table: TableStatus) -> str:
    """Returns the progress of the table's last snapshot; empty without one."""
    found = table.snapshot
    if found is None:
        return ""
    parts = [f"{found.status}, {found.rows:,} rows"]
    if found.status in ("running", "waiting", "paused"):
        if found.rows_total:
            parts.append(f"{found.rows * 100 // found.rows_total} % of about {found.rows_total:,}")
        if found.rows_per_second:
            parts.append(f"{found.rows_per_second:,.0f}/s")
        if found.seconds_left is not None:
            parts.append(f"{span(found.seconds_left)} left")
    return ", ".join([*parts, *filter(None, [found.message])])


def sinks_table(status: Status) -> Listing:
    """Returns a table with a line for each sink."""
    measures = ("lag", "records", "lag in time", "freshness", "written", "stale", "dead letters")
    shown = Listing("sink", "generation", "applied", *measures)
    for sink in status.sinks:
        shown.add_row(
            sink.sink,
            sink.generation,
            sink.applied_lsn if sink.lag_seconds is not None else "nothing yet",
            size(sink.lag_bytes),
            f"{sink.lag_records:,}",
            seconds(sink.lag_seconds),
            seconds(sink.freshness_seconds),
            f"{sink.written:,}",
            f"{sink.stale:,}",
            f"{sink.dead_letters:,}",
        )
    return shown


def views_table(status: Status) -> Listing:
    """Returns a table with a line for each view. The errors of views are among the problems."""
    shown = Listing("view", "state", "changes", "oldest", "keys", "rejected", "last write")
    for view in status.views:
        counts = (view.waiting_changes, view.waiting_keys, view.rejected_rows)
        changes, keys, rejected = ("?" if count is None else f"{count:,}" for count in counts)
        oldest = seconds(view.oldest_change_seconds) if view.waiting_changes != 0 else ""
        written = "" if view.state == "never run" else seconds(view.silent_seconds)
        shown.add_row(view.view, view.state, changes, oldest, keys, rejected, written)
    return shown


def comparisons_table(status: Status) -> Listing:
    """Returns a table of the last comparisons of each store with the source."""
    shown = Listing("compared", "when", "applied", "tables", "rows", "differ", "took", texts=[""])
    for sink in status.sinks:
        for run in sink.comparison.runs[:RUNS_SHOWN] if sink.comparison is not None else ():
            when = datetime.fromtimestamp(run.begun_unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            shown.add_row(
                sink.sink,
                when,
                run.applied_lsn,
                f"{run.tables:,}",
                f"{run.rows:,}",
                f"{sum(run.drift.values()):,}",
                seconds(run.seconds),
                _remark(run),
            )
    return shown


def _remark(run: RunStatus) -> str:
    parts = ["repair" if run.is_repair else "scheduled" if run.is_scheduled else ""]
    parts += ["sample" if run.is_sample else "", f"{run.repaired:,} repaired" if run.repaired else ""]
    parts += [f"{count:,} {kind}" for kind, count in run.drift.items()]
    parts += [f"{run.undecided:,} undecided" if run.undecided else ""]
    parts += [f"{table} not compared" for table in run.not_compared]
    return ", ".join(filter(None, parts))


def size(count: int | None) -> str:
    """Returns a size as text: `42 B`, `1.5 MiB`; `?` if it is not known."""
    if count is None:
        return "?"
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes every number")


def seconds(value: float | None) -> str:
    """Returns a duration as text: `0.25 s`, `3 m 05 s`; `?` if it is not known."""
    if value is None:
        return "?"
    return f"{value:.2f} s" if value < 10 else span(value)


def span(seconds: float) -> str:
    """Returns the duration as text: `42 s`, `3 m 05 s`, `2 h 10 m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} m"
