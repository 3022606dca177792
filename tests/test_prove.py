"""`make prove` on made-up tests and documents."""

import re
from pathlib import Path

import pytest

from tests.prove import INVARIANTS, LISTS, PROMISES, ClaimList, read_claims

pytest_plugins = ["pytester"]

PROMISES_PAGE = """\
# Thing

| P9 | not in the section | |

## Promises

Words about them.

| # | promise | today |
|---|---|---|
| P1 | Nothing is lost, `a` or b. | yes |
| P2 | It is fast. | yes |
| P3 | It flies. | not yet |

## More

| P8 | not in the section | |
"""

ARCHITECTURE = """\
## Invariants

| # | must hold | kept by |
|---|---|---|
| I1 | It never goes back. | a guard |
| I12 | It is alone. | a lock |
"""

TESTS = """\
import pytest

@pytest.mark.promise(1)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_each(n):
    assert n

@pytest.mark.promise(2)
@pytest.mark.promise(1)
def test_both():
    assert {both}

@pytest.mark.promise(2)
@pytest.mark.invariant(12)
def test_skipped():
    pytest.skip("needs a second machine")

def test_other():
    raise AssertionError("is not to run")
"""

INI = """\
[pytest]
markers =
  promise(n): shows promise n
  invariant(n): shows invariant n
addopts = -q --strict-markers -p tests.prove
"""
ROOT = Path(__file__).parent.parent


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # hypothesis's takes seconds to import, in each run again
    page = pytester.path / PROMISES.document
    page.parent.mkdir(parents=True)
    page.write_text(PROMISES_PAGE, encoding="utf-8")
    pytester.path.joinpath("ARCHITECTURE.md").write_text(ARCHITECTURE, encoding="utf-8")
    pytester.makeini(INI)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> tuple[int, str]:
    result = project.runpytest_inprocess(*arguments)
    return int(result.ret), result.stdout.str() + result.stderr.str()


def test_a_list_is_the_table_under_its_heading() -> None:
    assert read_claims(PROMISES_PAGE, PROMISES) == {
        "P1": "Nothing is lost, `a` or b.",
        "P2": "It is fast.",
        "P3": "It flies.",
    }
    assert read_claims(ARCHITECTURE, INVARIANTS) == {"I1": "It never goes back.", "I12": "It is alone."}
    assert read_claims("# Thing\n", PROMISES) == {}


def test_the_documents_have_eight_promises_and_fifteen_invariants() -> None:
    assert list(PROMISES.read(ROOT)) == [f"P{n}" for n in range(1, 9)]
    assert list(INVARIANTS.read(ROOT)) == [f"I{n}" for n in range(1, 16)]


@pytest.mark.parametrize("listed", LISTS, ids=lambda listed: listed.marker)
def test_each_is_named_by_a_test(listed: ClaimList) -> None:
    marker = re.compile(rf"^ *(?:@|pytestmark.*)pytest\.mark\.{listed.marker}\((\d+)\)", re.MULTILINE)
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    named = {f"{listed.letter}{n}" for path in tests for n in marker.findall(path.read_text(encoding="utf-8"))}
    assert sorted(listed.read(ROOT).keys() - named) == []


def test_every_promise_is_shown_with_its_tests_and_their_results(project: pytest.Pytester) -> None:
    project.makepyfile(test_a=TESTS.format(both="True"))
    code, output = run(project, "--prove")
    assert code == 0
    shown = output[output.index("P1  ") :].splitlines()[:13]
    assert shown == [
        "P1  Nothing is lost, `a` or b.",
        "      passed   test_a.py::test_each (3 cases)",
        "      passed   test_a.py::test_both",
        "P2  It is fast.",
        "      passed   test_a.py::test_both",
        "      skipped  test_a.py::test_skipped: needs a second machine",
        "P3  It flies.",
        "      no test yet",
        "I1  It never goes back.",
        "      no test yet",
        "I12  It is alone.",
        "      skipped  test_a.py::test_skipped: needs a second machine",
        "",
    ]
    assert "P1 passed, P2 not shown: a test was skipped or not run, P3 no test yet, I1 no test yet" in output
    assert "4 passed, 1 skipped, 1 deselected" in output.splitlines()[-1]


def test_several_processes_prove_together(project: pytest.Pytester) -> None:
    project.makepyfile(test_a=TESTS.format(both="True"), test_b=TESTS.format(both="False"))
    code, output = run(project, "-p", "xdist", "--numprocesses", "2", "--dist", "loadscope", "--prove")
    assert code == 1
    shown = output[output.index("P1  ") :].splitlines()[:5]
    assert sorted(shown[1:]) == [
        "      FAILED   test_b.py::test_both",
        "      passed   test_a.py::test_both",
        "      passed   test_a.py::test_each (3 cases)",
        "      passed   test_b.py::test_each (3 cases)",
    ]
    assert "P1 FAILED, P2 FAILED" in output


def test_cases_that_are_skipped_or_left_to_another_run_do_not_hide_the_others(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_a="""\
import pytest

@pytest.mark.promise(1)
@pytest.mark.parametrize("n", [1, 2, pytest.param(3, marks=pytest.mark.skipif(True, reason="has no server"))])
def test_each(n):
    assert n

@pytest.mark.promise(1)
def test_long():
    raise AssertionError("is not to run")
"""
    )
    code, output = run(project, "--prove", "1", "-k", "not test_long")
    assert code == 0
    assert "      passed   test_a.py::test_each (3 cases): has no server" in output
    assert "P1 passed" in output
    assert "test_long" not in output


def test_a_failing_test_breaks_its_promises_and_the_exit_code(project: pytest.Pytester) -> None:
    project.makepyfile(test_a=TESTS.format(both="False"))
    code, output = run(project, "--prove")
    assert code == 1
    assert "      FAILED   test_a.py::test_both\n" in output
    assert "P1 FAILED, P2 FAILED, P3 no test yet" in output


@pytest.mark.parametrize("broken", ["setup", "teardown"])
def test_a_fixture_that_fails_breaks_the_promise(project: pytest.Pytester, broken: str) -> None:
    project.makepyfile(
        test_a=f"""\
import pytest

@pytest.fixture
def thing():
    assert {broken != "setup"}
    yield
    assert {broken != "teardown"}

@pytest.mark.promise(2)
def test_thing(thing):
    pass
"""
    )
    code, output = run(project, "--prove")
    assert code == 1
    assert "P1 no test yet, P2 FAILED, P3 no test yet" in output


def test_one_promise_runs_alone(project: pytest.Pytester) -> None:
    project.makepyfile(test_a=TESTS.format(both="True"))
    code, output = run(project, "--prove", "1")
    assert code == 0
    assert "P2" not in output
    assert "4 passed, 2 deselected" in output.splitlines()[-1]


def test_one_invariant_runs_alone(project: pytest.Pytester) -> None:
    project.makepyfile(test_a=TESTS.format(both="True"))
    code, output = run(project, "--prove", "I12")
    assert code == 0
    assert "P1" not in output
    assert "1 skipped, 5 deselected" in output.splitlines()[-1]


def test_a_promise_without_a_test_is_not_proved(project: pytest.Pytester) -> None:
    project.makepyfile(test_a=TESTS.format(both="True"))
    code, output = run(project, "--prove", "3")
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "P3  It flies.\n      no test yet" in output


@pytest.mark.parametrize("arguments", [(), ("--prove",)])
@pytest.mark.parametrize(
    ("marker", "complaint"),
    [
        ("promise(7)", "test_a.py::test_x shows P7, and docs/concepts/guarantees.md has P1, P2, P3"),
        ("invariant(2)", "test_a.py::test_x shows I2, and ARCHITECTURE.md has I1, I12"),
        ("promise", "test_a.py::test_x: the marker is promise(n), with one number"),
        ("promise('1')", "test_a.py::test_x: the marker is promise(n), with one number"),
        ("promise(1, 2)", "test_a.py::test_x: the marker is promise(n), with one number"),
    ],
)
def test_a_marker_that_names_no_promise_is_refused(
    project: pytest.Pytester, arguments: tuple[str, ...], marker: str, complaint: str
) -> None:
    project.makepyfile(test_a=f"import pytest\n\n@pytest.mark.{marker}\ndef test_x():\n    pass\n")
    code, output = run(project, *arguments)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert complaint in output


@pytest.mark.parametrize("asked", ["4", "P4", "I2", "one"])
def test_a_promise_that_is_not_in_the_list_can_not_be_asked_for(project: pytest.Pytester, asked: str) -> None:
    project.makepyfile(test_a=TESTS.format(both="True"))
    code, output = run(project, "--prove", asked)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert f"--prove {asked}: the documents have P1, P2, P3, I1, I12" in output


def test_without_a_list_nothing_can_be_proved(project: pytest.Pytester) -> None:
    project.path.joinpath(PROMISES.document).write_text("# Thing\n", encoding="utf-8")
    project.makepyfile(test_a=TESTS.format(both="True"))
    code, output = run(project)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "docs/concepts/guarantees.md has no table of promises under '## Promises'" in output


def test_tests_without_marker_need_no_list(project: pytest.Pytester) -> None:
    project.path.joinpath(PROMISES.document).unlink()
    project.makepyfile(test_a="def test_x():\n    pass\n")
    assert run(project)[0] == 0
