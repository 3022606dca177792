"""pytest plugin: how long each file's tests take, and which files take longer than they may.

`--durations-file FILE` writes seconds by file as JSON, the longest first. The summary names each file that took longer
than its budget: so a tier that becomes slow shows where.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

BUDGET_S: Final = 60.0  # of a file, on two quiet cores
# Files with another budget, in seconds.
BUDGETS_S: Final[dict[str, float]] = {
    "tests/integration/test_cluster.py": 160,
    "tests/integration/test_sink_run.py": 150,
    "tests/integration/test_owed.py": 110,
    "tests/integration/test_view_maintenance.py": 110,
    "tests/integration/test_lifecycle.py": 100,
    "tests/integration/test_check.py": 80,
    "tests/simulation/test_operators.py": 120,
    "tests/integration/test_schema_changes.py": 100,
    "tests/integration/test_wait.py": 90,
    "tests/integration/test_tutorials.py": 120,
    "tests/integration/test_snapshot_command.py": 120,
    "tests/conformance/test_values.py": 90,
    "tests/faults/test_sink_kill.py": 90,
    "tests/integration/test_capture.py": 180,
    "tests/integration/test_console.py": 120,
    "tests/integration/test_console_work.py": 90,
    "tests/integration/test_demo.py": 270,
    "tests/integration/test_failover.py": 120,
    "tests/integration/test_move_under_load.py": 150,
    "tests/integration/test_after_alter.py": 200,
    "tests/integration/test_standby_source.py": 240,
    "tests/integration/test_mapping_change.py": 240,
    "tests/integration/test_rebuild.py": 200,
    "tests/integration/test_snapshots.py": 120,
    "tests/integration/test_secured_kafka.py": 90,
    "tests/integration/test_spark_source.py": 180,
    "tests/integration/test_topic_troubles.py": 180,
    "tests/integration/test_warehouse_modes.py": 150,
    "tests/integration/test_verify.py": 260,
    "tests/faults/test_kill_capture.py": 120,
    "tests/integration/test_many_tables.py": 400,
}


class Durations:
    """Adds up what setup, call and teardown of each file's tests take."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({name: round(s, 1) for name, s in longest_first(self.seconds)}, indent=1))
        for line in over_budget(self.seconds):
            terminalreporter.write_line(line)


def longest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns (file, seconds)."""
    return sorted(seconds.items(), key=lambda one: -one[1])


def over_budget(seconds: Mapping[str, float]) -> list[str]:
    """Returns a line for each file above its budget, the longest first."""
    return [
        f"{name} took {taken:.0f} s, more than its {budget:.0f} s: make it faster, move what is long to another tier, "
        "or raise its budget in tests/durations.py"
        for name, taken in longest_first(seconds)
        if taken > (budget := BUDGETS_S.get(name, BUDGET_S))
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-file", type=Path, metavar="FILE", help="write the seconds of each file as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--durations-file")
    if path is not None and not hasattr(config, "workerinput"):  # a process of xdist reports to the one that has these
        config.pluginmanager.register(Durations(path), "durations-file")
