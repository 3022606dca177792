"""The repository keeps its own rules: who may import whom, sizes, words, a test for every source file."""

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.tidy import (
    CAPTURE,
    CAPTURE_LINES_MAX,
    FILE_LINES_MAX,
    FUNCTION_LINES_MAX,
    OURS,
    Source,
    Violation,
    broad_excepts_have_reasons,
    capture_is_small,
    dependencies_have_reasons,
    docstrings_are_sentences,
    imports,
    modules_say_what_they_are,
    nothing_is_unfinished,
    nothing_points_elsewhere,
    parameters_are_few,
    rooms_are_kept,
    sizes_are_bounded,
    sources_have_tests,
    the_middle_is_pure,
    waits_are_for_conditions,
)
from tests.tidy_circles import imports_follow_no_circle
from tests.tidy_exceptions import CIRCULAR, COVERED_ELSEWHERE, LONG_FUNCTIONS, WIDE_FUNCTIONS

ROOT = Path(__file__).parent.parent


def _sizes(source: Source) -> Iterator[Violation]:
    return sizes_are_bounded(source, LONG_FUNCTIONS)


def _parameters(source: Source) -> Iterator[Violation]:
    return parameters_are_few(source, WIDE_FUNCTIONS)


RULES: list[Callable[[Source], Iterator[Violation]]] = [
    rooms_are_kept,
    the_middle_is_pure,
    modules_say_what_they_are,
    _sizes,
    _parameters,
    docstrings_are_sentences,
    broad_excepts_have_reasons,
    waits_are_for_conditions,
]
WORD_RULES = [nothing_is_unfinished, nothing_points_elsewhere]


@cache
def tree() -> tuple[Source, ...]:
    """Every text file that git has or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    sources = []
    for name in sorted(set(filter(None, listed.split("\0")))):
        try:
            sources.append(Source(PurePosixPath(name), (ROOT / name).read_text(encoding="utf-8")))
        except (FileNotFoundError, UnicodeDecodeError):  # deleted and not yet committed; not text
            continue
    return tuple(sources)


def assert_none(violations: Iterator[Violation]) -> None:
    found = sorted(set(violations))
    if found:
        pytest.fail("\n".join(map(str, found)), pytrace=False)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__.strip("_"))
def test_python_files(rule: Callable[[Source], Iterator[Violation]]) -> None:
    assert_none(violation for source in tree() if source.is_python for violation in rule(source))


@pytest.mark.parametrize("rule", WORD_RULES, ids=lambda rule: rule.__name__)
def test_all_files(rule: Callable[[Source], Iterator[Violation]]) -> None:
    assert_none(violation for source in tree() for violation in rule(source))


def test_capture_is_small_and_contains_nothing_else() -> None:
    assert_none(capture_is_small(tree()))


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert_none(imports_follow_no_circle(tree(), CIRCULAR))


def test_every_source_file_has_its_test_file() -> None:
    assert_none(sources_have_tests(tree(), COVERED_ELSEWHERE))


@pytest.mark.parametrize(
    "name", ["README.md", "ARCHITECTURE.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
)
def test_documents_name_files_and_definitions_that_exist(name: str) -> None:
    """Paths in code spans, and `name` in `path`, as the section "Where to find what" has them."""
    text = (ROOT / name).read_text(encoding="utf-8")
    rooms = "|".join(OURS) + "|docker"
    paths = set(re.findall(rf"`((?:{rooms})/[\w/.-]+)`", text))
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []
    for definition, path in re.findall(rf"`(\w+)(?:\(\))?` in `((?:{rooms})/[\w/.]+)`", text):
        assert re.search(
            rf"^\s*(?:def |class )?{definition}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
        ), f"{path} has no {definition}"


def test_support_code_of_tests_is_in_its_folder() -> None:
    """Modules in tests/ are tests, pytest's own (conftest, prove) and the rules of this file."""
    loose = {path.name for path in (ROOT / "tests").glob("*.py") if not path.name.startswith("test_")}
    assert loose == {"__init__.py", "conftest.py", "prove.py", "tidy.py", "tidy_circles.py", "tidy_exceptions.py"}


def test_exceptions_for_long_functions_name_files_that_are_there() -> None:
    known = {str(source.path) for source in tree()}
    assert [name for name in LONG_FUNCTIONS if name.partition("::")[0] not in known] == []


def test_every_dependency_has_its_reason() -> None:
    assert_none(dependencies_have_reasons(Source(PurePosixPath("pyproject.toml"), read("pyproject.toml"))))


@pytest.mark.parametrize("lock", ["requirements.lock"])
def test_the_lock_satisfies_the_project(lock: str) -> None:
    locked = locked_versions(lock)
    project = tomllib.loads(read("pyproject.toml"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for names in project["optional-dependencies"].values() for name in names),
    ]
    unsatisfied = [
        text
        for text, requirement in ((text, Requirement(text)) for text in wanted)
        if not requirement.specifier.contains(locked.get(requirement.name.lower(), Version("0")), prereleases=True)
    ]
    assert unsatisfied == [], "run `make lock`"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def locked_versions(lock: str) -> dict[str, Version]:
    return {
        name: Version(version) for name, version in re.findall(r"^([a-z0-9-]+)==([^ ;]+)", read(lock), re.MULTILINE)
    }


# Each rule can fail.


def python(path: str, text: str) -> Source:
    return Source(PurePosixPath(path), text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cdc/capture/loop.py", "import sinks.contract"),
        ("cdc/daemon/service.py", "from spark_jobs import session"),
        ("cdc/daemon/service.py", "def f():\n    from devstack.stack import Stack"),
        ("cdc/daemon/service.py", "from ..cli import main"),
        ("cdc/capture/loop.py", "from cdc.tables.selection import assign"),
        ("cdc/model/lsn.py", "from cdc.pgoutput.messages import Relation"),
        ("cdc/service.py", "import json"),
        ("cdc/misc/service.py", "import json"),
        ("cdc/__init__.py", "from cdc.model import lsn"),
        ("migrations/env.py", "from cdc.kafka import broker"),
        ("cdc/kafka/broker.py", "from ..cli.main import main"),
        ("cdc/kafka/__init__.py", "from ..cli import main"),
        ("cdc/daemon/service.py", "import importlib\nimportlib.import_module('operations.cli.main')"),
        ("cdc/daemon/service.py", "import psycopg"),
        ("cdc/postgres/source.py", "import confluent_kafka"),
        ("cdc/daemon/service.py", "from confluent_kafka.admin import AdminClient"),
        ("sinks/records.py", "import cdc"),
        ("sinks/records.py", "from cdc import kafka"),
        ("sinks/records.py", "from cdc.kafka.client import client"),
        ("sinks/warehouse/sink.py", "if False:\n    import pyspark.sql"),
        ("sinks/search/sink.py", "import redis"),
        ("jars/java.py", "from devstack import place"),
        ("devstack/stack.py", "import demo"),
        ("demo/rows.py", "import tests.support.wire"),
        ("operations/cli/run.py", "from tests.support import wire"),
    ],
)
def test_imports_across_rooms_are_found(path: str, text: str) -> None:
    assert list(rooms_are_kept(python(path, text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("operations/cli/sink.py", "from sinks.registry import SINKS\nfrom . import main\nimport typer"),
        ("cdc/kafka/broker.py", "import cdc\nfrom cdc import __version__\nfrom cdc.ports.stream import Broker"),
        ("cdc/postgres/source.py", "import psycopg\nfrom cdc.model.errors import SourceError"),
        ("sinks/records.py", "from cdc.model.events import ChangeEvent\nfrom sinks.contract import Sink"),
        ("sinks/search/sink.py", "import opensearchpy\nfrom .server import Server"),
        ("spark_jobs/session.py", "from pyspark.sql import SparkSession\nfrom jars.java import spark_java"),
        ("tests/unit/test_x.py", "import psycopg, operations.cli.main"),
    ],
)
def test_imports_within_the_rules_pass(path: str, text: str) -> None:
    assert list(rooms_are_kept(python(path, text))) == []


def test_relative_imports_are_resolved() -> None:
    source = python(
        "cdc/kafka/broker.py", "from . import client\nfrom ..model.errors import BrokerError\nfrom .topics import *"
    )
    assert [name for _, name in imports(source)] == [
        "cdc.kafka.client",
        "cdc.model.errors.BrokerError",
        "cdc.kafka.topics",
    ]
    package = python("cdc/kafka/__init__.py", "from .client import connect")
    assert [name for _, name in imports(package)] == ["cdc.kafka.client.connect"]


@pytest.mark.parametrize(
    ("path", "text", "is_kept"),
    [
        ("cdc/capture/assembler.py", "import time", False),
        ("cdc/pgoutput/codec.py", "def f():\n    import os", False),
        ("cdc/formats/records.py", "from urllib.request import urlopen", False),
        ("cdc/capture/confirmation.py", "from cdc.kafka import broker", False),
        ("cdc/capture/loop.py", "from cdc.postgres.replication import Stream", False),
        ("cdc/capture/loop.py", "import structlog", True),
        ("cdc/model/control.py", "from urllib.parse import quote", True),
        ("cdc/postgres/replication.py", "import time, select", True),
    ],
)
def test_io_in_the_middle_is_found(path: str, text: str, is_kept: bool) -> None:
    assert (list(the_middle_is_pure(python(path, text))) == []) is is_kept


def test_circles_of_imports_are_found() -> None:
    def found(*circular: str, last: str) -> list[str]:
        modules = {
            "sinks/a.py": "import json\nimport sinks.b",
            "sinks/b.py": "from sinks.x import c",
            "sinks/x/c.py": last,
        }
        return [
            each.what for each in imports_follow_no_circle([python(*module) for module in modules.items()], circular)
        ]

    assert found(last="from sinks import x\nimport sinks.x.c") == []
    for last in ("from sinks import a", "def f():\n    from sinks.a import name", "from .. import b"):
        (circle,) = found(last=last)
        assert "sinks.b → sinks.x.c" in circle
        assert found("sinks", last=last) == []
    assert found("sinks", last="import json") == ["needs no exception any more"]


def test_what_capture_does_not_need_is_found_in_it() -> None:
    service = python(f"{CAPTURE.replace('.', '/')}.py", "from cdc.kafka import broker\nfrom cdc.model.lsn import Lsn")
    needed = [
        python("cdc/kafka/broker.py", ""),
        python("cdc/model/lsn.py", "def parse(): ..."),
        python("sinks/x.py", ""),
    ]
    assert list(capture_is_small([service, *needed])) == []
    (found,) = capture_is_small([service, *needed, python("cdc/kafka/tail.py", "from cdc.model.lsn import Lsn")])
    assert str(found.path) == "cdc/kafka/tail.py"


def test_too_many_lines_of_capture_are_found() -> None:
    def service(line_count: int) -> Source:
        return python(f"{CAPTURE.replace('.', '/')}.py", "x = 1\n" * line_count)

    assert list(capture_is_small([service(CAPTURE_LINES_MAX)])) == []
    assert list(capture_is_small([service(CAPTURE_LINES_MAX + 1)]))


def test_a_missing_docstring_is_found_and_an_empty_file_needs_none() -> None:
    assert list(modules_say_what_they_are(python("cdc/x.py", "X = 1\n")))
    assert list(modules_say_what_they_are(python("cdc/x.py", '"""Says it."""\nX = 1\n'))) == []
    assert list(modules_say_what_they_are(python("cdc/__init__.py", ""))) == []


def test_long_files_and_functions_are_found() -> None:
    def function(line_count: int) -> Source:
        return python("cdc/x.py", "def f():\n" + "    x = 1\n" * (line_count - 1))

    assert list(sizes_are_bounded(python("cdc/x.py", "x = 1\n" * (FILE_LINES_MAX + 1)), {}))
    assert list(sizes_are_bounded(python("cdc/x.py", "x = 1\n" * FILE_LINES_MAX), {})) == []
    assert list(sizes_are_bounded(function(FUNCTION_LINES_MAX + 1), {}))
    assert list(sizes_are_bounded(function(FUNCTION_LINES_MAX), {})) == []
    assert list(sizes_are_bounded(function(FUNCTION_LINES_MAX + 1), {"cdc/x.py::f": "a table"})) == []
    assert list(sizes_are_bounded(function(FUNCTION_LINES_MAX), {"cdc/x.py::f": "a table"})), "an old exception"


@pytest.mark.parametrize(
    ("handler", "is_kept"),
    [
        ("except:\n    pass", False),
        ("except Exception:\n    pass", False),
        ("except (ValueError, BaseException) as error:\n    raise RuntimeError from error", False),
        ("except Exception:  # noqa: BLE001\n    pass", False),
        ("except Exception:  # noqa: BLE001  the thread's edge: told to the caller\n    pass", True),
        ("except Exception as error:\n    # Nothing is known about it.\n    stop(error)", True),
        ("except BaseException:\n    close()\n    raise", True),
        ("except ValueError:\n    pass", True),
    ],
)
def test_broad_excepts_without_reason_are_found(handler: str, is_kept: bool) -> None:
    source = python("cdc/x.py", f"try:\n    work()\n{handler}\n")
    assert (list(broad_excepts_have_reasons(source)) == []) is is_kept


@pytest.mark.parametrize(
    ("path", "text", "is_kept"),
    [
        ("tests/unit/test_x.py", "import time\ntime.sleep(1)", False),
        ("tests/unit/test_x.py", "from time import sleep", False),
        ("tests/support/waiting.py", "import time\ntime.sleep(1)", True),
        ("devstack/server.py", "import time\ntime.sleep(1)", True),
    ],
)
def test_sleeping_tests_are_found(path: str, text: str, is_kept: bool) -> None:
    assert (list(waits_are_for_conditions(python(path, text))) == []) is is_kept


# Written backwards, because this file is searched too.
@pytest.mark.parametrize("drow", ["retal :ODOT", "EMXIF", "rorrEdetnemelpmItoN esiar"])
def test_unfinished_marks_are_found(drow: str) -> None:
    assert list(nothing_is_unfinished(python("README.md", f"text\n{drow[::-1]}\n")))


@pytest.mark.parametrize(
    "ecalp",
    ["x/toor/", "niam/krow/ dc", "yrarbil. ees", "x/derahs/..", "gro.ipyp", "x/gro.nevam.1oper//:sptth", "oi.rcg"],
)
def test_places_elsewhere_are_found(ecalp: str) -> None:
    assert list(nothing_points_elsewhere(python("README.md", f"text {ecalp[::-1]}\n")))


def test_words_that_only_resemble_those_pass() -> None:
    harmless = python(
        "README.md", "a network/working copy, a shared/ folder, our library, XXXL, Maven's host, apache/kafka\n"
    )
    assert [*nothing_is_unfinished(harmless), *nothing_points_elsewhere(harmless)] == []


def test_a_source_without_its_test_is_found() -> None:
    def violations(*names: str, covered: dict[str, str] | None = None) -> list[Violation]:
        return list(sources_have_tests([python(name, "def f():\n    return 1\n") for name in names], covered or {}))

    assert violations("cdc/a/b.py")
    assert violations("cdc/a/b.py", "tests/unit/cdc/a/test_b.py") == []
    assert violations("jars/__main__.py", "tests/unit/jars/test_main.py") == []
    assert violations("cdc/a/__init__.py", "demo/x.py", "tests/support/waiting.py") == []
    elsewhere = {"cdc/a/b.py": "tests/integration/test_b.py: needs a server for all that it does"}
    assert violations("cdc/a/b.py", "tests/integration/test_b.py", covered=elsewhere) == []
    assert violations("cdc/a/b.py", covered=elsewhere), "its test is not there"
    assert violations("tests/integration/test_b.py", covered=elsewhere), "the source is not there"
    assert violations("cdc/a/b.py", "tests/integration/test_b.py", "tests/unit/cdc/a/test_b.py", covered=elsewhere)
    assert violations("cdc/a/b.py", "tests/x.py", covered={"cdc/a/b.py": "tests/x.py: so"}), "no reason"


def test_a_source_that_only_declares_needs_no_test() -> None:
    port = 'class Port(Protocol):\n    def send(self) -> None:\n        """Sends."""\n        ...\nLIMIT = 3\n'
    assert list(sources_have_tests([python("cdc/ports/stream.py", port)], {})) == []
    assert list(sources_have_tests([python("cdc/ports/stream.py", port + "def f():\n    return LIMIT\n")], {}))


def test_a_dependency_without_reason_is_found() -> None:
    def project(lines: str) -> Source:
        return python("pyproject.toml", f"[project]\n{lines}\n[project.optional-dependencies]\n")

    assert list(dependencies_have_reasons(project('dependencies = [\n  "a>=1",\n]')))
    assert list(dependencies_have_reasons(project('dependencies = [\n  "a>=1",  # what it does\n]'))) == []
