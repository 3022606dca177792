"""Comparisons that are started over HTTP, with a program in the place of `cdc`."""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.config.http_settings import HttpConfig
from cdc.model.audit import AuditRecord
from tests.support.http_server import running
from tests.support.status_facts import config
from tests.support.waiting import eventually
from tests.unit.watershed.http.test_access import USERS
from tests.unit.watershed.http.test_operations import get, post
from tests.unit.watershed.http.test_routes import Pipeline
from watershed.http import comparisons
from watershed.http.access import NOBODY
from watershed.http.comparisons import DIFFERENCES_MAX, CompareRequest, Comparisons
from watershed.http.operations import Operations
from watershed.http.server import http_server

# Prints what `cdc verify --json --progress` does; ends with the code in file `code`, once that is there.
PROGRAM = """
import json, pathlib, sys, time
folder = pathlib.Path(__file__).parent
(folder / "words").write_text(json.dumps(sys.argv[1:]))
step = {"sink": "search", "table": "public.orders", "step": "compared", "done": 7, "total": 9}
print(json.dumps(step), "a line of the log", sep=chr(10), file=sys.stderr, flush=True)
while not (folder / "code").exists():
    time.sleep(0.01)
table = {"sink": "search", "table": "public.orders", "drift": 500, "differences": [{}] * 500}
print(json.dumps({"drift": 500, "undecided": 1, "tables": [table]}))
sys.exit(int((folder / "code").read_text()))
"""


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline()


@pytest.fixture
def port(pipeline: Pipeline, tmp_path: Path) -> Iterator[int]:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    audit = pipeline.audit.audit
    command = (sys.executable, "-I", "-S", str(program))
    started = Comparisons(config, tmp_path / "watershed.yml", audit.note, command)
    application = pipeline.application(started, Operations(started.operations(), audit))
    with running(http_server(application, HttpConfig(users=USERS), audit)) as made:
        yield made
        (tmp_path / "code").write_text("0")


def shown(port: int, identity: str) -> dict[str, Any]:
    code, found = get(port, f"/v1/operations/{identity}")
    assert code == 200
    return found


def ended(port: int, identity: str) -> dict[str, Any]:
    eventually(lambda: shown(port, identity)["status"] != "running", 10.0, "it has ended")
    return shown(port, identity)


def test_a_comparison_goes_on_in_the_background(port: int, pipeline: Pipeline, tmp_path: Path) -> None:
    wanted = {"sinks": ["search"], "tables": ["public.*"], "sample": 5}
    code, started = post(port, "/v1/verify", wanted)
    assert code == 202
    eventually(lambda: shown(port, started["id"])["progress"], 10.0, "it is under way")
    found = shown(port, started["id"])
    assert (found["status"], found["who"], found["result"]) == ("running", "oncall", None)
    assert found["progress"] == [
        {"sink": "search", "table": "public.orders", "step": "compared", "done": 7, "total": 9}
    ]
    words = json.loads((tmp_path / "words").read_text())
    assert words == ["verify", "--json", "--progress", "--config", str(tmp_path / "watershed.yml"),
                     "--sink", "search", "--table", "public.*", "--sample", "5"]  # fmt: skip
    (tmp_path / "code").write_text("5")
    found = ended(port, started["id"])
    assert (found["status"], found["error"], found["result"]["drift"]) == ("done", "", 500)
    assert len(found["result"]["tables"][0]["differences"]) == DIFFERENCES_MAX
    eventually(lambda: len(pipeline.audit.entries) == 3, 5.0, "its end is recorded")
    assert pipeline.audit.entries[-1][1].result == "done: 500 rows differ, 1 are undecided"


def test_there_is_one_of_each_at_a_time(port: int, tmp_path: Path) -> None:
    first = post(port, "/v1/verify", {})[1]["id"]
    code, failure = post(port, "/v1/verify", {})
    assert (code, failure["next"]) == (409, f"wait for it: GET /v1/operations/{first}")
    assert post(port, "/v1/repair", {})[0] == 202
    (tmp_path / "code").write_text("0")
    ended(port, first)
    assert post(port, "/v1/verify", {})[0] == 202


def test_one_that_fails_says_why(port: int, pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "code").write_text("1")
    found = ended(port, post(port, "/v1/repair", {})[1]["id"])
    assert (found["status"], found["error"], found["result"]) == ("failed", "a line of the log", None)
    assert found["next"]


@pytest.mark.parametrize(
    ("body", "code", "error"),
    [
        ({"sinks": ["none"]}, 404, "no sink"),
        ({"tables": ["--help"]}, 400, "tables: Value error, a name is empty, or begins with -"),
        ({"sample": 0}, 400, "sample: Input should be greater than or equal to 1"),
        ({"sample": "x"}, 400, "sample: Input should be a valid integer"),
    ],
)
def test_what_can_not_be_compared_is_refused(port: int, body: object, code: int, error: str) -> None:
    found, failure = post(port, "/v1/verify", body)
    assert found == code and error in failure["error"] and failure["next"]
    assert post(port, "/v1/repair", {"sample": 5})[0] == 400, "a sample can't be repaired"


def test_what_was_forgotten_is_said(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "KEPT", 1)
    (tmp_path / "code").write_text("0")
    first = post(port, "/v1/verify", {})[1]["id"]
    ended(port, first)
    ended(port, post(port, "/v1/repair", {})[1]["id"])
    code, failure = get(port, f"/v1/operations/{first}")
    assert code == 404 and "was restarted" in failure["error"] and failure["next"]


@pytest.mark.parametrize("printed", ["[]", "{}", '{"tables": null}'])
def test_what_it_prints_otherwise_is_no_result(printed: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"print({printed!r})", encoding="utf-8")
    noted: list[AuditRecord] = []
    command = (sys.executable, "-I", "-S", str(program))
    started = Comparisons(config, tmp_path / "watershed.yml", noted.append, command)
    identity = started._start("verify", NOBODY, CompareRequest(), {}).id
    eventually(lambda: noted, 10.0, "it has ended")
    run = started._runs[identity].shown()
    assert (run.status, run.result) == ("failed", None)
    assert "could not be run" in run.error and "could not be run" in noted[0].result
