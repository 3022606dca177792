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
    FILE_LINES_MAX,
    FUNCTION_LINES_MAX,
    Source,
    Violation,
    broad_excepts_have_reasons,
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

ROOT = Path(__file__).parent.parent

# `path::name`, or `path` of a file: reason. What reads better whole.
LONG_FUNCTIONS: dict[str, str] = {}

# `path::name`: reason. Functions with more than PARAMETERS_MAX parameters.
_COMMAND = "each parameter is an option of the command"
WIDE_FUNCTIONS: dict[str, str] = {
    "cdc/cli/snapshot.py::start": _COMMAND,
    "cdc/cli/rebuild.py::rebuild": _COMMAND,
}

# Source files without a test file of their own: what tests them, and why there.
_CAPTURE = "tests/integration/test_capture.py"
_SINK_RUN = "tests/integration/test_sink_run.py"
_WAIT = "tests/integration/test_wait.py"
_TEARDOWN = "tests/integration/test_teardown.py"
_CHECK_STORES = "tests/integration/test_check_stores.py"
_VERIFY = "tests/integration/test_verify.py"
COVERED_ELSEWHERE: dict[str, str] = {
    "cdc/daemon/first_start.py": f"{_CAPTURE}: wiring of real servers at the first start",
    "cdc/daemon/adding_tables.py": "tests/integration/test_joining.py: tables added to a real publication",
    "cdc/daemon/outbox_setup.py": "tests/integration/test_outbox.py: wiring of real servers in every session",
    "cdc/cli/outbox.py": "tests/integration/test_outbox.py: creates and prunes in a real database",
    "migrations/env.py": "tests/integration/test_outbox.py: Alembic executes it, in a real database",
    "migrations/versions/table_0001.py": "tests/integration/test_outbox.py: creates in a real database",
    "migrations/versions/function_0002.py": "tests/integration/test_outbox.py: publishes in a real database",
    "cdc/outbox/publish.py": "tests/integration/test_outbox.py: sessions on a real database",
    "cdc/postgres/outbox_tables.py": "tests/integration/test_outbox.py: keys and rows of a real database",
    "cdc/config/section.py": "tests/unit/cdc/config/test_settings.py: names and errors of every section",
    "cdc/daemon/streaming_session.py": f"{_CAPTURE}: wiring of real servers in every session",
    "cdc/cli/check.py": "tests/integration/test_check.py: broken set-ups of real servers",
    "cdc/cli/interrupts.py": "tests/integration/test_snapshot_command.py: Ctrl-C at a command that waits",
    "cdc/cli/rebuild.py": "tests/integration/test_rebuild.py: a job that answers, or is started",
    "spark_jobs/building.py": "tests/integration/test_rebuild.py: a query beside another",
    "spark_jobs/serving.py": "tests/integration/test_rebuild.py: generations that take each other's place",
    "sinks/slots.py": "tests/unit/sinks/search/test_slots.py: slots of a real index",
    "cdc/cli/init.py": "tests/integration/test_init.py: a real database, whose file is then checked",
    "cdc/cli/status.py": "tests/integration/test_readiness.py: a pipeline of real servers",
    "cdc/cli/teardown.py": f"{_TEARDOWN}: what was made on real servers",
    "sinks/removal.py": f"{_TEARDOWN}: stores of real servers",
    "sinks/cache/removal.py": f"{_TEARDOWN}: keys of a real server",
    "sinks/search/removal.py": f"{_TEARDOWN}: indexes of a real server",
    "sinks/sql/removal.py": f"{_TEARDOWN}: tables of a real server",
    "sinks/warehouse/teardown.py": f"{_TEARDOWN}: tables of a real catalog",
    "sinks/check.py": f"{_CHECK_STORES}: broken set-ups of real servers",
    "sinks/cache/check.py": f"{_CHECK_STORES}: broken set-ups of a real server",
    "sinks/search/check.py": f"{_CHECK_STORES}: broken set-ups of a real server",
    "cdc/cli/wait.py": f"{_WAIT}: a store that is written meanwhile",
    "cdc/client/waiting.py": f"{_WAIT}: a store that is written meanwhile",
    "cdc/daemon/findings.py": "tests/integration/test_check.py: broken set-ups of real servers",
    "cdc/http/server.py": "tests/integration/test_readiness.py: in a capture process",
    "cdc/http/waits.py": "tests/unit/cdc/http/test_routes.py: requests that wait, over a socket",
    "cdc/kafka/sink_positions.py": f"{_WAIT}: topics of a real broker",
    "cdc/kafka/topic_facts.py": "tests/integration/test_readiness.py: topics of a real broker",
    "cdc/model/findings.py": "tests/integration/test_check.py: made of errors of real servers",
    "cdc/postgres/prospects.py": "tests/integration/test_init.py: a real database",
    "cdc/postgres/source_facts.py": "tests/integration/test_readiness.py: slots of a real server",
    "cdc/postgres/source_findings.py": "tests/integration/test_check.py: broken set-ups of a real server",
    "cdc/status/model.py": "tests/unit/cdc/status/test_problems.py: which problems concern which process",
    "cdc/cli/verify.py": f"{_VERIFY}: a pipeline of real servers",
    "cdc/kafka/last_versions.py": f"{_VERIFY}: topics of a real broker",
    "cdc/postgres/verified_rows.py": f"{_VERIFY}: rows of a real server",
    "sinks/cache/view.py": "tests/conformance/test_views.py: rows of a real server",
    "sinks/search/view.py": "tests/conformance/test_views.py: documents of a real server",
    "sinks/view.py": f"{_VERIFY}: opens views of real stores",
    "sinks/warehouse/slots.py": "tests/unit/spark_jobs/test_warehouse_slots.py: with a real Spark session",
    "spark_jobs/removal.py": "tests/faults/drift_campaign.py: in a Spark session of its own",
    "cdc/config/verify_settings.py": "tests/unit/verification/test_schedule.py: intervals and tables of the section",
    "cdc/daemon/children.py": "tests/unit/spark_jobs/test_bootstrap.py: a sink's process that ends with its parent",
    "cdc/records/comparisons.py": "tests/unit/verification/test_history.py: what runs add to a record",
    "verification/model.py": f"{_VERIFY}: what a pipeline's comparison has found",
    "verification/repairing.py": f"{_VERIFY}: stores that differ are repaired",
    "verification/world.py": f"{_VERIFY}: topics of a real broker",
    "cdc/cli/run.py": f"{_CAPTURE}: started as a user does, as a process",
    "cdc/cli/sink.py": f"{_SINK_RUN}: started as a user does, as a process",
    "cdc/cli/demo.py": "tests/integration/test_demo.py: started as a user does, as a process",
    "cdc/kafka/gap_signals.py": "tests/integration/test_snapshots.py: signals in state GAP through a real broker",
    "cdc/kafka/state_reader.py": f"{_CAPTURE}: reads what capture wrote to a real broker",
    "cdc/kafka/compacted.py": "tests/integration/test_topics.py: reads topics of a real broker",
    "cdc/kafka/signals.py": "tests/integration/test_signals.py: signals and answers through a real broker",
    "cdc/kafka/compacted_tail.py": "tests/integration/test_signals.py: reads topics of a real broker",
    "cdc/kafka/topic_keys.py": "tests/integration/test_topic_keys.py: reads topics of a real broker",
    "cdc/kafka/topic_watch.py": "tests/integration/test_gaps.py: topics altered on a real broker",
    "cdc/ports/gap_topics.py": "tests/unit/cdc/daemon/test_gap_state.py: epochs of known positions",
    "cdc/ports/source_table.py": "tests/unit/cdc/tables/test_selection.py: tables that can't be read in chunks",
    "cdc/postgres/catalog.py": "tests/integration/test_values.py: reads a real server's catalog",
    "cdc/postgres/chunk_table.py": "tests/integration/test_chunk_keys.py: indexes and types in a real server's catalog",
    "cdc/postgres/chunks.py": "tests/integration/test_chunks.py: chunks and marks of a real server",
    "cdc/postgres/connection.py": f"{_CAPTURE}: opens and loses connections to a real server",
    "cdc/postgres/transaction_barrier.py": "tests/integration/test_chunk_waits.py: transactions of a real server",
    "cdc/postgres/key_lookup.py": "tests/integration/test_chunk_keys.py: keys and rows of a real server",
    "cdc/postgres/connection_worker.py": "tests/integration/test_chunk_waits.py: ends while a real server hangs",
    "cdc/postgres/exported_snapshot.py": "tests/integration/test_values.py: COPY from a real server",
    "cdc/postgres/replication.py": "tests/integration/test_values.py: the stream of a real server",
    "cdc/postgres/source.py": f"{_CAPTURE}: asks a real server what is wrong with it",
    "cdc/postgres/start_lock.py": f"{_CAPTURE}: instances that start at once on a real server",
    "cdc/postgres/catalog_facts.py": "tests/integration/test_schema_changes.py: a real server's catalog",
    "cdc/postgres/table_descriptions.py": "tests/integration/test_schema_changes.py: a real server's catalog",
    "cdc/postgres/catalog_poll.py": "tests/integration/test_schema_changes.py: tables altered on a real server",
    "cdc/postgres/table_rows.py": "tests/integration/test_table_rows.py: rows as a real server prints them",
    "sinks/sql/check.py": "tests/integration/test_sql_sink.py: cdc check of a real database",
    "sinks/sql/tables.py": "tests/unit/sinks/sql/test_preparation.py: shapes that are refused, in real databases",
    "sinks/warehouse/staged_files.py": "tests/unit/sinks/warehouse/test_staging.py: files of staged rows",
    "spark_jobs/reading.py": "tests/integration/test_reading.py: topics of a real broker",
    "spark_jobs/session.py": f"{_SINK_RUN}: starts Spark",
    "spark_jobs/worker.py": f"{_SINK_RUN}: a query of Spark, its failures and its end",
}


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


def test_every_source_file_has_its_test_file() -> None:
    assert_none(sources_have_tests(tree(), COVERED_ELSEWHERE))


@pytest.mark.parametrize(
    "name", ["README.md", "ARCHITECTURE.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
)
def test_documents_name_files_and_definitions_that_exist(name: str) -> None:
    """Paths in code spans, and `name` in `path`, as the section "Where to find what" has them."""
    text = (ROOT / name).read_text(encoding="utf-8")
    rooms = "cdc|sinks|spark_jobs|tests|demo|bench|devstack|docker|jars|migrations"
    paths = set(re.findall(rf"`((?:{rooms})/[\w/.-]+)`", text))
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []
    for definition, path in re.findall(rf"`(\w+)(?:\(\))?` in `((?:{rooms})/[\w/.]+)`", text):
        assert re.search(
            rf"^\s*(?:def |class )?{definition}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
        ), f"{path} has no {definition}"


def test_support_code_of_tests_is_in_its_folder() -> None:
    """Modules in tests/ are tests, pytest's own (conftest, prove) and the rules of this file."""
    loose = {path.name for path in (ROOT / "tests").glob("*.py") if not path.name.startswith("test_")}
    assert loose == {"__init__.py", "conftest.py", "prove.py", "tidy.py"}


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
        ("cdc/model/lsn.py", "from cdc.records.control import U64"),
        ("cdc/service.py", "import json"),
        ("cdc/misc/service.py", "import json"),
        ("cdc/__init__.py", "from cdc.model import lsn"),
        ("migrations/env.py", "from cdc.kafka import broker"),
        ("cdc/kafka/broker.py", "from ..cli.main import main"),
        ("cdc/kafka/__init__.py", "from ..cli import main"),
        ("cdc/daemon/service.py", "import importlib\nimportlib.import_module('cdc.cli.main')"),
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
        ("cdc/cli/run.py", "from tests.support import wire"),
    ],
)
def test_imports_across_rooms_are_found(path: str, text: str) -> None:
    assert list(rooms_are_kept(python(path, text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cdc/cli/sink.py", "from sinks.registry import SINKS\nfrom . import main\nimport typer"),
        ("cdc/kafka/broker.py", "import cdc\nfrom cdc import __version__\nfrom cdc.ports.stream import Broker"),
        ("cdc/postgres/source.py", "import psycopg\nfrom cdc.model.errors import SourceError"),
        ("sinks/records.py", "from cdc.model.events import ChangeEvent\nfrom sinks.contract import Sink"),
        ("sinks/search/sink.py", "import opensearchpy\nfrom .server import Server"),
        ("spark_jobs/session.py", "from pyspark.sql import SparkSession\nfrom jars.java import spark_java"),
        ("tests/unit/test_x.py", "import psycopg, cdc.cli.main"),
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
        ("cdc/formats/debezium.py", "from urllib.request import urlopen", False),
        ("cdc/capture/confirmation.py", "from cdc.kafka import broker", False),
        ("cdc/capture/loop.py", "from cdc.postgres.replication import Stream", False),
        ("cdc/capture/loop.py", "import structlog", True),
        ("cdc/records/control.py", "from urllib.parse import quote", True),
        ("cdc/postgres/replication.py", "import time, select", True),
    ],
)
def test_io_in_the_middle_is_found(path: str, text: str, is_kept: bool) -> None:
    assert (list(the_middle_is_pure(python(path, text))) == []) is is_kept


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
