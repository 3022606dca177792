"""pytest plugin: `make prove` shows each promise of the README with the tests behind it and their result.

The README's table under "## Promises" is the list. Tests name the promise that they prove with
`@pytest.mark.promise(n)`, in every run; a number that is not in the list ends the run before the first test. `--prove`
runs only these tests, or those of one promise (`--prove 1`), and ends with the list. The exit code is pytest's: 1
when a test failed, 5 when the promise that was asked for has no test.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

HEADING: Final = "## Promises"
ALL: Final = "all"
_ROW = re.compile(r"\| *P(\d+) *\| *(.+?) *\|")
# The worst of a test's cases is the test's.
_WORST_FIRST: Final = ("FAILED", "not run", "skipped", "passed")


@dataclass(slots=True)
class Shown:
    """A test function behind a promise, with the results of its cases."""

    name: str
    results: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)  # of skipped cases

    @property
    def result(self) -> str:
        return min(self.results, key=_WORST_FIRST.index)

    def __str__(self) -> str:
        cases = f" ({len(self.results)} cases)" if len(self.results) > 1 else ""
        reasons = f": {'; '.join(sorted(self.reasons))}" if self.reasons else ""
        return f"{self.result:<8} {self.name}{cases}{reasons}"


def read_promises(readme: str) -> dict[int, str]:
    """Number → text, from the table under the heading; empty if there is none."""
    _, _, rest = f"\n{readme}".partition(f"\n{HEADING}\n")
    section = rest.partition("\n## ")[0]
    return {int(row[1]): row[2] for line in section.splitlines() if (row := _ROW.match(line))}


def report(promises: Mapping[int, str], shown: Mapping[int, Sequence[Shown]]) -> list[str]:
    """The lines that `make prove` ends with."""
    lines = []
    standing = []
    for number, text in promises.items():
        tests = shown.get(number, ())
        lines.append(f"P{number}  {text}")
        lines.extend(f"      {test}" for test in tests)
        if not tests:
            lines.append("      no test yet")
        standing.append(f"P{number} {_standing(tests)}")
    return [*lines, "", ", ".join(standing)]


def _standing(tests: Sequence[Shown]) -> str:
    results = {test.result for test in tests}
    if not results:
        return "no test yet"
    if "FAILED" in results:
        return "FAILED"
    return "passed" if results == {"passed"} else "not shown: a test was skipped or not run"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--prove",
        nargs="?",
        const=ALL,
        metavar="N",
        help="run the tests behind the README's promises (behind promise N), and end with the list",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--prove") is not None:
        config.pluginmanager.register(Proof(_wanted(config)), "proof")


def _promises(config: pytest.Config) -> dict[int, str]:
    readme = Path(config.rootpath, "README.md")
    promises = read_promises(readme.read_text(encoding="utf-8")) if readme.is_file() else {}
    if not promises:
        raise pytest.UsageError(f"README.md has no table of promises under {HEADING!r}")
    return promises


def _wanted(config: pytest.Config) -> dict[int, str]:
    """The promises that the option asks for."""
    promises = _promises(config)
    asked = str(config.getoption("--prove"))
    if asked == ALL:
        return promises
    number = asked.removeprefix("P")
    if not number.isdigit() or int(number) not in promises:
        raise pytest.UsageError(f"--prove {asked}: README.md promises {_numbers(promises)}")
    return {int(number): promises[int(number)]}


def _numbers(promises: Mapping[int, str]) -> str:
    return ", ".join(f"P{number}" for number in promises)


def promises_of(item: pytest.Item) -> set[int]:
    """Raises UsageError for a marker that is not `promise(n)`."""
    numbers = set()
    for marker in item.iter_markers("promise"):
        match marker.args:
            case (int(number),) if not marker.kwargs:
                numbers.add(number)
            case _:
                raise pytest.UsageError(f"{item.nodeid}: the marker is promise(n), with one number")
    return numbers


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = {item.nodeid: numbers for item in items if (numbers := promises_of(item))}
    if not marked:
        return
    promises = _promises(config)
    for name, numbers in marked.items():
        if unknown := numbers - promises.keys():
            said = ", ".join(str(number) for number in sorted(unknown))
            raise pytest.UsageError(f"{name} proves promise {said}, and README.md promises {_numbers(promises)}")


class Proof:
    """Selects the tests of the wanted promises, collects their results, and prints the list."""

    def __init__(self, wanted: Mapping[int, str]) -> None:
        self._wanted = wanted
        self._promises_of: dict[str, set[int]] = {}  # by node
        self._results: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        for item in items:
            if numbers := promises_of(item) & self._wanted.keys():
                self._promises_of[item.nodeid] = numbers
        dropped = [item for item in items if item.nodeid not in self._promises_of]
        items[:] = [item for item in items if item.nodeid in self._promises_of]
        config.hook.pytest_deselected(items=dropped)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # the set-up and the clean-up count too
            self._results[report.nodeid] = "FAILED"
        elif report.skipped:
            self._results[report.nodeid] = "skipped"
            if isinstance(report.longrepr, tuple):
                self._reasons[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")
        elif report.when == "call":
            self._results[report.nodeid] = "passed"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        shown: dict[int, dict[str, Shown]] = defaultdict(dict)
        for node, numbers in self._promises_of.items():
            name = node.partition("[")[0]
            for number in numbers:
                test = shown[number].setdefault(name, Shown(name))
                test.results.append(self._results.get(node, "not run"))
                if node in self._reasons:
                    test.reasons.add(self._reasons[node])
        terminalreporter.section("promises")
        for line in report(self._wanted, {number: list(tests.values()) for number, tests in shown.items()}):
            terminalreporter.write_line(line)
