"""The output and the exit code of `cdc check`; what it finds on servers is in tests/integration/test_check*.py."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cdc.model.errors import SourceError, UnreachableError
from cdc.model.findings import Finding
from watershed.cli import check
from watershed.cli.main import application

Check = Callable[..., Result]

GOOD = Finding("brokers", "ok", "they answer")
WARNING = Finding("jars", "warn", "3 are not in the cache", "python -m spark_jobs.jars")
AWAY = Finding.failed("source", UnreachableError("the database does not answer", "start it"))
WRONG = Finding.failed("table public.a", SourceError("public.a has no key", "give it one"))


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    file = tmp_path / "watershed.yml"
    file.write_text("source: {dsn: host=none, tables: [a.b]}\nkafka: {bootstrap_servers: k:1}\ntopics: {prefix: p}\n")

    def checked(*findings: Finding, words: tuple[str, ...] = ()) -> Result:
        def found(*_: object) -> Iterator[Finding]:
            yield from findings

        monkeypatch.setattr(check, "all_findings", found)
        return CliRunner().invoke(application(["check"]), ["check", "--config", str(file), *words])

    return checked


def test_failures_stand_last(checked: Check) -> None:
    done = checked(WRONG, WARNING, GOOD)
    assert [line.split()[0] for line in done.output.splitlines()] == ["ok", "warn", "next:", "fail", "next:", "1"]
    assert done.output.splitlines()[-1] == "1 ok, 1 warn, 1 fail"


def test_quiet_leaves_out_what_is_in_order(checked: Check) -> None:
    done = checked(GOOD, WARNING, GOOD, words=("--quiet",))
    assert done.output == "warn jars: 3 are not in the cache\n  next: python -m spark_jobs.jars\n"
    assert checked(GOOD, words=("-q",)).output == ""


@pytest.mark.parametrize(
    ("findings", "code"),
    [((GOOD, WARNING), 0), ((GOOD, AWAY), 3), ((AWAY, WRONG), 1), ((WRONG,), 1)],
)
def test_the_code_says_whether_a_later_check_may_pass(checked: Check, findings: tuple[Finding, ...], code: int) -> None:
    assert checked(*findings).exit_code == code
    assert checked(*findings, words=("--json",)).exit_code == code


def test_json_has_all_findings_in_the_order_in_which_they_were_made(checked: Check) -> None:
    printed = json.loads(checked(WRONG, GOOD, AWAY, words=("--json", "--quiet")).output)
    assert printed["is_fit"] is False
    assert [finding["about"] for finding in printed["findings"]] == ["table public.a", "brokers", "source"]
    assert [finding["is_passing"] for finding in printed["findings"]] == [False, False, True]
