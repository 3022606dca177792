"""Bars in a terminal, lines elsewhere, JSON for machines."""

import json
from io import StringIO

import pytest
from rich.console import Console

from watershed.cli.snapshot_screen import (
    BAR_WIDTH,
    Bars,
    JsonLines,
    Lines,
    brief,
    figures,
    screen_for,
    status_table,
)
from watershed.status.fill_progress import FillProgress


def table(
    status: str = "running", done: int = 300, total: int = 1000, per_s: float = 50.0, message: str = ""
) -> FillProgress:
    return FillProgress("table", "public.a", status, done, total, per_s, message)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (table(), "300 of about 1,000 rows (30 %), 50/s, 14 s left"),
        (table(total=0), "300 rows, 50/s"),
        (table("done", 1000), "1,000 rows"),
        (table("waiting", 0, 0, 0.0, "earlier transactions"), "0 rows, waits for earlier transactions"),
        (table("failed", 5, 0, 0.0, "no such column"), "5 rows, no such column"),
        (FillProgress("sink", "search", "running", 50, 200, 10.0), "50 of about 200 records (25 %), 10/s, 15 s left"),
        (FillProgress("sink", "search", "waiting", 0, 0, 0.0, "Spark starts"), "0 records, Spark starts"),
    ],
)
def test_figures_say_what_is_known(progress: FillProgress, expected: str) -> None:
    assert figures(progress) == expected


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (table(), "300 of 1,000, 50/s, 14 s left"),
        (table(total=0), "300, 50/s"),
        (table("done", 1000), "done, 1,000"),
        (table("waiting", 0, 0, 0.0, "earlier transactions"), "waiting, earlier transactions"),
        (table(per_s=0.0, message="capture has not reported"), "300 of 1,000, capture has not reported"),
    ],
)
def test_beside_a_bar_it_is_said_briefly(progress: FillProgress, expected: str) -> None:
    assert brief(progress) == expected


def test_elsewhere_a_line_comes_for_a_change_and_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines()
    for _ in range(5):
        lines.show([table()])
    monkeypatch.setattr("watershed.cli.snapshot_screen.LINE_INTERVAL_S", 0.0)
    lines.show([table(done=400)])
    for _ in range(5):
        lines.show([table("done", 1000)])
    lines.say("filled: search")
    lines.close()
    assert capsys.readouterr().out.splitlines() == [
        "public.a: running, 300 of about 1,000 rows (30 %), 50/s, 14 s left",
        "public.a: running, 400 of about 1,000 rows (40 %), 50/s, 12 s left",
        "public.a: done, 1,000 rows",
        "filled: search",
    ]


def test_machines_get_an_object_for_each_change_once_a_second_at_most(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = JsonLines()
    lines.show([table()])
    lines.show([table(done=350)])
    lines.show([table("done", 1000)])
    monkeypatch.setattr("watershed.cli.snapshot_screen.JSON_INTERVAL_S", 0.0)
    lines.show([table("done", 1000)])
    lines.say("filled: search")
    lines.close()
    reported = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one.get("status"), one.get("done")) for one in reported] == [
        ("running", 300),
        ("done", 1000),
        (None, None),
    ]
    assert reported[0] == table().as_json()
    assert reported[-1] == {"what": "said", "text": "filled: search"}


def test_a_terminal_shows_a_bar_for_each_table_and_sink() -> None:
    output = StringIO()
    bars = Bars(Console(file=output, force_terminal=True, width=140, color_system=None))
    bars.say("the job of [search] starts")
    bars.show([table(), FillProgress("sink", "search", "waiting", 0, 0, 0.0, "Spark starts")])
    bars.show([table("done", 0, 0), FillProgress("sink", "search", "running", 50, 200, 10.0)])
    bars.close()
    text = output.getvalue()
    assert "the job of [search] starts" in text
    assert "300 of 1,000, 50/s, 14 s left" in text
    lines = text.replace("\r", "\n").splitlines()
    table_line = [line for line in lines if "public.a" in line][-1]
    assert "━" * BAR_WIDTH in table_line and "done" in table_line
    assert "50 of 200" in [line for line in lines if line.lstrip("\x1b[0123456789ABK").startswith("search")][-1]


def test_the_screen_is_chosen_by_where_it_is_shown() -> None:
    assert isinstance(screen_for(Console(force_terminal=True), as_json=False), Bars)
    assert isinstance(screen_for(Console(force_terminal=True), as_json=True), JsonLines)
    assert isinstance(screen_for(Console(file=StringIO()), as_json=False), Lines)


def test_the_status_table_has_a_line_for_each_table() -> None:
    output = StringIO()
    Console(file=output, width=120).print(status_table([table(), table("paused", per_s=0.0)]))
    rows = output.getvalue().splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["public.a", "running"], ["public.a", "paused"]]
