"""The status and the problems of views."""

from typing import Any

import pytest

from cdc.model.errors import WatershedError
from cdc.model.sink_records import STALLED_S
from sinks.errors import SinkError
from tests.support.status_facts import VIEW, Clock, condition, config, reading, view_facts
from watershed.http.metrics import metrics_text
from watershed.status.model import Status, ViewStatus
from watershed.status.view_facts import ViewFacts

AWAY = SinkError("the base of the view does not answer", "check that it runs")


class Views:
    """One view, observed at moments."""

    def __init__(self) -> None:
        self.clock = Clock(config(views=("documents",)))

    def observe(self, found: ViewFacts | WatershedError | None, after_s: float = 1.0, **fields: Any) -> Status:
        views = {} if found is None else {"documents": found}
        return self.clock.status(reading(views=views, **fields), after_s)


def view_of(status: Status) -> ViewStatus:
    (view,) = status.views
    return view


def problems(status: Status) -> list[tuple[str, str, str]]:
    return [(one.severity, one.name, one.message) for one in status.problems if one.part == "view"]


def test_a_view_that_follows_its_base_has_its_values_and_no_problem() -> None:
    status = Views().observe(view_facts(changes=3, oldest_s=2.0, keys=2))
    assert view_of(status) == ViewStatus(
        view="documents",
        base="copy",
        target="topic",
        state="serving",
        is_kept=True,
        waiting_changes=3,
        oldest_change_seconds=2.0,
        waiting_keys=2,
        waiting_seconds=2.0,
        rejected_rows=0,
        silent_seconds=1.5,
        failing_seconds=0.0,
        error="",
        next="",
    )
    assert problems(status) == []


def test_a_base_that_has_not_answered_yet_is_no_good_news() -> None:
    status = Views().observe(None)
    assert (view_of(status).state, view_of(status).waiting_changes) == ("unknown", None)
    assert problems(status) == [("error", "documents", "its base has not answered yet")]


def test_a_base_that_is_away_is_a_warning_and_after_five_seconds_an_error() -> None:
    views = Views()
    assert problems(views.observe(view_facts())) == []
    status = views.observe(AWAY)
    assert (view_of(status).state, view_of(status).rejected_rows, view_of(status).next) == (
        "unreachable",
        None,
        "check that it runs",
    )
    assert problems(status) == [("warning", "documents", AWAY.message)]
    assert problems(views.observe(AWAY, 4.9)) == [("warning", "documents", AWAY.message)]
    status = views.observe(AWAY, 0.1)
    assert view_of(status).failing_seconds == 5.0
    assert problems(status) == [("error", "documents", AWAY.message)]
    assert problems(views.observe(view_facts())) == []


@pytest.mark.parametrize(("failing_s", "severity"), [(4.9, "warning"), (5.0, "error")])
def test_what_a_view_waits_for_is_an_error_once_it_has_lasted(failing_s: float, severity: str) -> None:
    status = Views().observe(view_facts(error="the target is away", next="start it", failing_s=failing_s))
    assert problems(status) == [(severity, "documents", "the target is away")]


def test_a_view_that_has_stopped_is_an_error_at_once() -> None:
    failed = view_facts(state="failed", is_kept=False, error="2 rows have the key id = 1", next="choose another key")
    assert problems(Views().observe(failed)) == [
        ("error", "documents", "the view has stopped: 2 rows have the key id = 1")
    ]
    own = condition("view", name="documents", state="stopped", message="2 rows have the key id = 1")
    message = problems(Views().observe(failed, conditions=(own,)))
    assert message == [("error", "documents", "the view has stopped: 2 rows have the key id = 1")], "once"


def test_a_job_of_this_process_that_ended_is_an_error_where_the_base_does_not_say_so() -> None:
    own = condition("view", name="documents", state="stopped", message="KeyError: 1")
    message = problems(Views().observe(view_facts(is_kept=False), conditions=(own,)))
    assert message == [("error", "documents", "the view has stopped: KeyError: 1")]


def test_changes_that_wait_while_no_process_keeps_the_view_are_an_error() -> None:
    assert problems(Views().observe(view_facts(is_kept=False))) == []
    status = Views().observe(view_facts(is_kept=False, changes=1200, oldest_s=60.0))
    assert problems(status) == [
        (
            "error",
            "documents",
            "no process runs the view, which is in state serving: 1,200 changes and 0 keys are waiting, for 60 s",
        )
    ]
    assert status.problems[-1].next == "start `cdc view run documents`"


def test_keys_that_wait_are_observed_as_they_have_no_time() -> None:
    views = Views()
    left = view_facts(is_kept=False, keys=7, applied_s=100.0)
    assert problems(views.observe(left)) == []
    (problem,) = problems(views.observe(left, 5.0))
    assert "0 changes and 7 keys are waiting, for 5 s" in problem[2]


def test_a_view_that_never_ran_is_no_problem() -> None:
    assert problems(Views().observe(view_facts(state="never run", is_kept=False, applied_s=None))) == []


def test_a_process_that_writes_nothing_while_changes_wait_makes_no_progress() -> None:
    slow = {"changes": 5, "oldest_s": 8.0}
    assert problems(Views().observe(view_facts(**slow, applied_s=1.0))) == [], "it writes"
    assert problems(Views().observe(view_facts(**slow, applied_s=9.0, state="filling"))) == [], "fills"
    (problem,) = problems(Views().observe(view_facts(**slow, applied_s=9.0)))
    assert problem[:2] == ("error", "documents")
    assert "makes no progress: 5 changes and 0 keys are waiting, for 8 s" in problem[2]


def test_a_view_that_gathers_keys_for_a_warehouse_has_more_patience() -> None:
    views = Views()
    gathers = view_facts(keys=5, applied_s=60.0)
    target = {"target": {"type": "warehouse", "catalog_uri": "jdbc:sqlite:x", "location": "z"}}
    settings = views.clock.config
    section = settings.views["documents"].model_validate(VIEW | target)
    views.clock.config = settings.model_copy(update={"views": {"documents": section}})
    assert settings.spark.warehouse_trigger_ms == 3_000
    assert problems(views.observe(gathers)) == []
    assert problems(views.observe(gathers, 10.9)) == []
    assert "makes no progress" in problems(views.observe(gathers, 0.1))[0][2]


def test_rejected_rows_are_a_warning_that_names_their_table() -> None:
    status = Views().observe(view_facts(rejected=3))
    ((severity, _, message),) = problems(status)
    assert (severity, message) == ("warning", "3 rows are rejected by the target, or can't be computed by the query")
    assert "watershed_views_shop.rejected" in status.problems[-1].next


def test_a_process_is_ready_by_its_own_views() -> None:
    status = Views().observe(None)
    assert status.errors(frozenset({"view"}), frozenset({"others"})) == ()
    assert len(status.errors(frozenset({"view"}), frozenset({"documents"}))) == 1
    assert status.errors(frozenset({"source", "brokers", "capture", "table"})) == (), "capture does not depend on it"


class TestEventLogs:
    """Logs are among the views, and have records that wait."""

    def observed(self, facts: ViewFacts) -> Status:
        clock = Clock(config(event_logs=("orders",)))
        clock.status(reading(views={"orders": facts}), 1.0)
        return clock.status(reading(views={"orders": facts}), STALLED_S)

    def test_a_log_that_nobody_loads_is_a_problem_as_soon_as_records_wait(self) -> None:
        facts = view_facts(is_kept=False, behind=1200)
        status = self.observed(facts)
        assert (view_of(status).target, view_of(status).behind_records) == ("event log", 1200)
        ((severity, name, message),) = problems(status)
        assert (severity, name) == ("error", "orders")
        assert message.startswith("no process runs the event log, which is in state serving: 1,200 records are waiting")
        assert problems(self.observed(view_facts(is_kept=False, behind=0))) == []
        assert b'watershed_event_log_lag_records{event_log="orders"} 1200.0' in metrics_text(status, is_ready=True)

    def test_rejected_records_and_an_error_are_said_of_the_log(self) -> None:
        facts = view_facts(state="failed", rejected=2, error="a topic was created again", behind=0)
        assert [message for _, _, message in problems(self.observed(facts))] == [
            "the event log has stopped: a topic was created again",
            "2 records are not events in the form of the outbox, or can't be stored",
        ]

    def test_a_view_has_no_sample_of_lag(self) -> None:
        assert b"watershed_event_log_lag_records{" not in metrics_text(Views().observe(view_facts()), is_ready=True)
