"""The status of views and event logs, and their problems, from what their bases say. Pure."""

from collections.abc import Iterator
from typing import Final, Literal

from cdc.config.config_file import Config
from cdc.config.event_logs import EventLogConfig
from cdc.config.views import ViewConfig
from cdc.model.errors import WatershedError
from cdc.model.sink_records import STALLED_S
from watershed.status.facts import Reading
from watershed.status.history import ObservationHistory
from watershed.status.model import Problem, Status, ViewStatus
from watershed.status.view_facts import ViewFacts

IDLE_WAIT_S: Final = 1.0  # how often a view looks for changes at least
LOG: Final = "event log"
_NOT_ANSWERED: Final = WatershedError("its base has not answered yet", "try again in a moment")


def view_statuses(config: Config, reading: Reading, history: ObservationHistory, now: float) -> tuple[ViewStatus, ...]:
    """Returns the status of each configured view and event log. `now`: monotonic seconds, for `history`."""
    sections: dict[str, ViewConfig | EventLogConfig] = {**config.views, **config.event_logs}
    return tuple(_status(name, section, reading, history, now) for name, section in sections.items())


def _status(
    name: str, section: ViewConfig | EventLogConfig, reading: Reading, history: ObservationHistory, now: float
) -> ViewStatus:
    found = reading.views.get(name, _NOT_ANSWERED)
    facts = found if isinstance(found, ViewFacts) else None
    away_s = history.silent_s(f"view answers/{name}", facts is not None, now)
    # Keys have no time, so that their age is observed; changes have one.
    has_keys = facts is not None and (facts.keys > 0 or bool(facts.behind) or facts.state in ("filling", "rebuild"))
    keys_s = history.silent_s(f"view keys/{name}", has_keys, now)
    if isinstance(found, WatershedError):
        state = "unknown" if found is _NOT_ANSWERED else "unreachable"
        return _of(name, section, state, failing_s=away_s, error=found.message, hint=found.hint)
    shown = _of(name, section, found.state, failing_s=found.failing_s, error=found.error or "", hint=found.next or "")
    return shown.model_copy(
        update={
            "is_kept": found.is_kept,
            "waiting_changes": found.changes,
            "oldest_change_seconds": round(found.oldest_s or 0.0, 3),
            "waiting_keys": found.keys,
            "behind_records": found.behind,
            "waiting_seconds": round(max(keys_s if has_keys else 0.0, found.oldest_s or 0.0), 3),
            "rejected_rows": found.rejected,
            "silent_seconds": None if found.applied_s is None else round(found.applied_s, 3),
        }
    )


def _of(
    name: str, section: ViewConfig | EventLogConfig, state: str, *, failing_s: float, error: str, hint: str
) -> ViewStatus:
    """The status of a view of which nothing else is known."""
    return ViewStatus(
        view=name,
        base=section.base,
        target=LOG if isinstance(section, EventLogConfig) else section.target.type,
        state=state,
        failing_seconds=round(failing_s, 3),
        error=error,
        next=hint,
    )


def view_problems(config: Config, reading: Reading, status: Status) -> Iterator[Problem]:
    """Yields the problems of the views. An error that has just begun is a warning: the view tries again by itself."""
    stopped = {
        condition.name: condition
        for condition in reading.conditions
        if condition.part == "view" and condition.is_failure
    }
    for view in status.views:
        name = view.view
        if (own := stopped.get(name)) is not None:
            yield _problem(name, "error", f"the {_kind(view)} has stopped: {own.message}", own.next)
        elif view.state == "failed":
            yield _problem(name, "error", f"the {_kind(view)} has stopped: {view.error}", view.next)
        elif view.error:
            is_new = view.state != "unknown" and view.failing_seconds < STALLED_S
            yield _problem(name, "warning" if is_new else "error", view.error, view.next)
        elif is_stalled(config, view):
            yield _stalled(view)
        if view.rejected_rows and view.target == LOG:
            what = f"{view.rejected_rows:,} records are not events in the form of the outbox, or can't be stored"
            hint = f"table watershed_views_{status.prefix}.log_rejected of the base lists each of them with the reason"
            yield _problem(name, "warning", what, hint)
        elif view.rejected_rows:
            yield _problem(
                name,
                "warning",
                f"{view.rejected_rows:,} rows are rejected by the target, or can't be computed by the query",
                f"table watershed_views_{status.prefix}.rejected of the base lists each key with the reason; a row "
                "that is corrected is computed again automatically",
            )


def is_stalled(config: Config, view: ViewStatus) -> bool:
    """Says whether something waits and no process keeps the view, or the one that does writes nothing. A view whose
    target is a warehouse gathers keys before it writes."""
    if view.is_kept:
        interval_s = config.spark.warehouse_trigger_ms / 1000 if view.target == "warehouse" else IDLE_WAIT_S
        patience_s = STALLED_S + 2 * interval_s
        is_silent = view.silent_seconds is None or view.silent_seconds >= patience_s
        return view.state == "serving" and is_silent and view.waiting_seconds >= patience_s
    return view.waiting_seconds >= STALLED_S


def _stalled(view: ViewStatus) -> Problem:
    name = view.view
    kind, waits = _kind(view), f"{view.waiting_changes or 0:,} changes and {view.waiting_keys or 0:,} keys are waiting"
    if view.target == LOG:
        waits = f"{view.behind_records or 0:,} records are waiting"
    since = f"for {view.waiting_seconds:.0f} s"
    if not view.is_kept:
        what = f"no process runs the {kind}, which is in state {view.state}: {waits}, {since}"
        return _problem(name, "error", what, f"start `cdc view run {name}`")
    what = f"the {kind} makes no progress: {waits}, {since}, and no row was written meanwhile"
    hint = f"cdc view check {name} names missing indexes; the log of cdc view run says what it is waiting for"
    return _problem(name, "error", what, hint)


def _kind(view: ViewStatus) -> str:
    return LOG if view.target == LOG else "view"


def _problem(name: str, severity: Literal["error", "warning"], message: str, hint: str) -> Problem:
    return Problem(part="view", name=name, severity=severity, message=message, next=hint)
