"""pytest plugin: `make prove` lists the promises and the invariants with the tests that show them and their results.

The promises are the table under "## Promises" in docs/concepts/guarantees.md, the invariants the one under "##
Invariants" in ARCHITECTURE.md. A test names what it shows with `@pytest.mark.promise(n)` or
`@pytest.mark.invariant(n)`. A number that is not in the list ends every run before the first test. `--prove` runs
only these tests, or those of one promise or invariant (`--prove 1`, `--prove I9`), and ends with the list. The exit
code is pytest's: 1 when a test failed, 5 when the one that was requested has no test.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ALL: Final = "all"
_CLAIMS: Final = "claims"  # name of the property with which a report says what its test shows
# A test is reported with the worst result of its cases.
_WORST_FIRST: Final = ("FAILED", "not run", "skipped", "passed")


class ClaimList(NamedTuple):
    """A table of numbered claims, and the marker with which tests name one of them."""

    marker: str
    letter: str
    document: str
    heading: str

    def read(self, root: Path) -> dict[str, str]:
        """Returns each claim's name, such as `P1`, with its text. Raises UsageError if there is no such table."""
        document = root / self.document
        claims = read_claims(document.read_text(encoding="utf-8"), self) if document.is_file() else {}
        if not claims:
            raise pytest.UsageError(f"{self.document} has no table of {self.marker}s under {self.heading!r}")
        return claims


PROMISES: Final = ClaimList("promise", "P", "docs/concepts/guarantees.md", "## Promises")
INVARIANTS: Final = ClaimList("invariant", "I", "ARCHITECTURE.md", "## Invariants")
LISTS: Final = (PROMISES, INVARIANTS)


@dataclass(slots=True)
class Shown:
    """A test function that shows a claim, with the results of its cases."""

    name: str
    results: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)  # of skipped cases

    @property
    def result(self) -> str:
        """Returns the worst result. A case that is skipped, such as that of a store without the feature, does not count
        beside others that ran."""
        ran = [result for result in self.results if result != "skipped"]
        return min(ran or self.results, key=_WORST_FIRST.index)

    def __str__(self) -> str:
        cases = f" ({len(self.results)} cases)" if len(self.results) > 1 else ""
        reasons = f": {'; '.join(sorted(self.reasons))}" if self.reasons else ""
        return f"{self.result:<8} {self.name}{cases}{reasons}"


def read_claims(text: str, claims: ClaimList) -> dict[str, str]:
    """Returns name → text from the table under the list's heading; empty if there is none."""
    _, _, rest = f"\n{text}".partition(f"\n{claims.heading}\n")
    section = rest.partition("\n## ")[0]
    row = re.compile(rf"\| *({claims.letter}\d+) *\| *(.+?) *\|")
    return {found[1]: found[2] for line in section.splitlines() if (found := row.match(line))}


def report(claims: Mapping[str, str], shown: Mapping[str, Sequence[Shown]]) -> list[str]:
    """Returns the lines with which `make prove` ends."""
    lines = []
    outcomes = []
    for name, text in claims.items():
        tests = shown.get(name, ())
        lines.append(f"{name}  {text}")
        lines.extend(f"      {test}" for test in tests)
        if not tests:
            lines.append("      no test yet")
        outcomes.append(f"{name} {_outcome(tests)}")
    return [*lines, "", ", ".join(outcomes)]


def _outcome(tests: Sequence[Shown]) -> str:
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
        help="run the tests that show promises and invariants (promise N, invariant IN), and end with the list",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--prove") is not None:
        config.pluginmanager.register(Proof(_wanted(config)), "proof")


def _wanted(config: pytest.Config) -> dict[str, str]:
    """Returns the claims that the option requests."""
    claims = {name: text for listed in LISTS for name, text in listed.read(config.rootpath).items()}
    asked = str(config.getoption("--prove"))
    if asked == ALL:
        return claims
    name = f"P{asked}" if asked.isdigit() else asked
    if name not in claims:
        raise pytest.UsageError(f"--prove {asked}: the documents have {', '.join(claims)}")
    return {name: claims[name]}


def claims_of(item: pytest.Item, listed: ClaimList) -> set[str]:
    """Returns the names of the claims that a test shows. Raises UsageError for a marker without one number."""
    names = set()
    for marker in item.iter_markers(listed.marker):
        match marker.args:
            case (int(number),) if not marker.kwargs:
                names.add(f"{listed.letter}{number}")
            case _:
                raise pytest.UsageError(f"{item.nodeid}: the marker is {listed.marker}(n), with one number")
    return names


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for listed in LISTS:
        marked = {item.nodeid: names for item in items if (names := claims_of(item, listed))}
        known = listed.read(config.rootpath) if marked else {}
        for node, names in marked.items():
            if unknown := names - known.keys():
                raise pytest.UsageError(
                    f"{node} shows {', '.join(sorted(unknown))}, and {listed.document} has {', '.join(known)}"
                )


class Proof:
    """Selects the tests of the wanted claims, collects their results, and prints the list."""

    def __init__(self, wanted: Mapping[str, str]) -> None:
        self._wanted = wanted
        self._claims_of: dict[str, set[str]] = {}  # by node
        self._results: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        for item in items:
            names = {name for listed in LISTS for name in claims_of(item, listed)}
            if names & self._wanted.keys():
                self._claims_of[item.nodeid] = names & self._wanted.keys()
                item.user_properties.append((_CLAIMS, sorted(self._claims_of[item.nodeid])))
        dropped = [item for item in items if item.nodeid not in self._claims_of]
        items[:] = [item for item in items if item.nodeid in self._claims_of]
        config.hook.pytest_deselected(items=dropped)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Leaves out tests that this run does not have: `make prove-long` runs those marked `long`."""
        for item in items:
            self._claims_of.pop(item.nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, claims in report.user_properties:
            if name == _CLAIMS:  # tests of other processes are known from their reports only
                assert isinstance(claims, list)
                self._claims_of[report.nodeid] = set(claims)
        if report.failed:  # the set-up and the clean-up count too
            self._results[report.nodeid] = "FAILED"
        elif report.skipped:
            self._results[report.nodeid] = "skipped"
            if isinstance(report.longrepr, tuple):
                self._reasons[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")
        elif report.when == "call":
            self._results[report.nodeid] = "passed"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        shown: dict[str, dict[str, Shown]] = defaultdict(dict)
        for node, names in self._claims_of.items():
            test_name = node.partition("[")[0]
            for name in names:
                test = shown[name].setdefault(test_name, Shown(test_name))
                test.results.append(self._results.get(node, "not run"))
                if node in self._reasons:
                    test.reasons.add(self._reasons[node])
        terminalreporter.section("promises and invariants")
        for line in report(self._wanted, {name: list(tests.values()) for name, tests in shown.items()}):
            terminalreporter.write_line(line)
