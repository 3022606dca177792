"""Each test is in one tier, and a file that takes too long is named."""

import json
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from tests.durations import BUDGET_S, BUDGETS_S, Durations, over_budget
from tests.support.sources import ROOT
from tests.tiers import ABOUT_VARIANTS, marks_of


@pytest.mark.parametrize(
    ("path", "fixtures", "parameters", "marks"),
    [
        ("tests/unit/cdc/test_x.py", ["tmp_path"], [], set()),
        ("tests/unit/sinks/test_x.py", ["redis", "unique"], [], {"servers"}),
        ("tests/integration/test_stack.py", [], [], {"servers"}),
        ("tests/conformance/test_batches.py", ["sink_under_test"], ["cache"], {"servers"}),
        ("tests/conformance/test_batches.py", ["sink_under_test"], ["cache-lookups"], {"servers", "whole"}),
        ("tests/conformance/test_values.py", ["sink_under_test"], ["cache-lookups"], {"servers"}),
        ("tests/integration/test_complete_rows.py", ["kafka"], [("postgres16", {})], {"servers", "whole"}),
        ("tests/integration/test_value_matrix.py", ["kafka"], ["postgres16"], {"servers"}),
    ],
)
def test_the_tier_follows_from_servers_and_variants(
    path: str, fixtures: list[str], parameters: list[object], marks: set[str]
) -> None:
    assert marks_of(PurePosixPath(path), fixtures, parameters) == marks


def test_the_files_that_are_named_are_there() -> None:
    assert [name for name in (*ABOUT_VARIANTS, *BUDGETS_S) if not (ROOT / name).is_file()] == []


def test_a_file_above_its_budget_is_named_and_all_are_recorded(tmp_path: Path) -> None:
    durations, shown = Durations(tmp_path / "made" / "d.json"), []

    class Report:
        def __init__(self, nodeid: str, duration: float) -> None:
            self.nodeid, self.duration = nodeid, duration

    class Terminal:
        def write_line(self, line: str) -> None:
            shown.append(line)

    for nodeid in ("tests/a.py::test_1", "tests/a.py::test_2[x::y]", "tests/b.py::test"):
        durations.pytest_runtest_logreport(cast(Any, Report(nodeid, BUDGET_S * 0.75)))
    durations.pytest_terminal_summary(cast(Any, Terminal()))
    assert json.loads((tmp_path / "made" / "d.json").read_text()) == {"tests/a.py": 90.0, "tests/b.py": 45.0}
    (line,) = shown
    assert line.startswith("tests/a.py took 90 s, more than its 60 s")
    assert over_budget({"tests/b.py": BUDGET_S}) == []
