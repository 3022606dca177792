"""Imports go one way, between the packages and between the folders of `cdc/` and `watershed/`; the middle of capture is
pure; and no modules import each other in a circle."""

import ast
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath
from typing import Final

import pytest

from tests.support.sources import Source, Violation, imports, references, repository

# The folders of cdc/, from the nouns to the daemon: each imports only itself and folders above it in this list.
FOLDERS: Final = (
    *("model", "pgoutput", "config", "ports", "formats", "outbox", "snapshots", "capture", "tables"),
    *("postgres", "kafka", "daemon", "telemetry"),
)
_CDC: Final = {
    f"cdc.{folder}": ("cdc.__version__", *(f"cdc.{above}" for above in FOLDERS[: number + 1]))
    for number, folder in enumerate(FOLDERS)
}
# What capture and everything above it share.
BASE: Final = tuple(f"cdc.{folder}" for folder in ("model", "config", "formats", "kafka", "postgres"))

# Who may import what of ours; the longest name that fits a module counts. Names are of modules, with all below them.
ROOMS: Final[Mapping[str, tuple[str, ...]]] = {
    "cdc": ("cdc.__version__",),
    **_CDC,
    "sinks": ("sinks", "cdc.model", "cdc.config", "cdc.formats"),
    "spark_jobs": ("spark_jobs", "sinks", "cdc"),
    "spark_jobs.jars": ("spark_jobs.jars", "cdc.model"),
    "migrations": (),
    "client": (),  # nothing of ours, and no library: a test of its own
    "watershed": ("watershed.client",),
    "watershed.__main__": ("watershed.cli.main",),
    "watershed.client": ("watershed.client", *BASE),
    "watershed.status": ("watershed.status", "watershed.client", *_CDC),
    "watershed.verify": ("watershed.verify", "watershed.status", "watershed.client", "sinks", *_CDC),
    "watershed.views": ("watershed.views", "watershed.status.view_facts", "sinks", *BASE),
    # The one part that also waits for the base, and starts Spark where a target needs it.
    "watershed.views.running": (
        *("watershed.views", "watershed.client", "spark_jobs.view_targets", "sinks", "cdc.daemon.conditions", *BASE),
    ),
    "watershed.views.comparison": (
        *("watershed.views", "watershed.verify.comparison", "watershed.verify.model", "sinks", *BASE),
    ),
    "watershed.http": ("watershed.http", "watershed.verify", "watershed.status", "watershed.client", "sinks", "cdc"),
    "watershed.devstack": ("watershed.devstack", "spark_jobs.jars", "cdc.model"),
    "watershed.demo": (
        *(f"watershed.{folder}" for folder in ("demo", "views", "verify", "status", "client", "devstack")),
        *("spark_jobs", "sinks", "cdc"),
    ),
    "watershed.cli": ("watershed", "spark_jobs", "sinks", "cdc"),
    "deploy": ("deploy", "spark_jobs.jars"),  # the release: what is built, not what is installed
    "docs": ("docs", "watershed", "spark_jobs.jars", "sinks", "cdc"),
    "docs.examples": ("docs.examples", "sinks", "cdc.config", "cdc.model"),
    "tests": ("tests", "docs", "deploy", "watershed", "migrations", "spark_jobs", "sinks", "cdc"),
}
OURS: Final = tuple(name for name in ROOMS if "." not in name)

# Libraries that only these may import.
RESERVED: Final[Mapping[str, tuple[str, ...]]] = {
    "alembic": ("migrations", "watershed.client.outbox_migrations", "tests"),
    "anyio": ("watershed.http", "tests"),
    "confluent_kafka": ("cdc.kafka", "spark_jobs", "watershed", "tests"),
    "fastavro": ("cdc.formats", "tests"),
    "hypothesis": ("tests",),
    "joserfc": ("watershed.http", "tests"),
    "jgo": ("spark_jobs.jars", "tests"),
    "opentelemetry": ("cdc.telemetry.otlp", "tests"),
    "opensearchpy": ("sinks.search", "watershed.devstack", "watershed.demo", "tests"),
    "prometheus_client": ("watershed.http", "tests"),
    "psutil": ("watershed.devstack", "watershed.demo", "tests"),
    "psycopg": ("cdc.postgres", "watershed", "tests"),
    "py4j": ("spark_jobs", "tests"),
    "pyarrow": ("spark_jobs", "sinks.warehouse", "tests"),
    "pyiceberg": ("sinks.warehouse", "tests"),
    "pyspark": ("spark_jobs", "tests"),
    "pytest": ("tests",),
    "redis": ("sinks.cache", "watershed.devstack", "watershed.demo", "tests"),
    "sqlalchemy": (
        *("sinks.sql", "sinks.warehouse.catalog", "sinks.warehouse.slots"),
        *("watershed.client.outbox", "watershed.client.outbox_migrations", "watershed.cli.outbox", "tests"),
    ),
    "sqlglot": ("watershed.views", "sinks.shaping.expressions", "tests"),
    "starlette": ("watershed.http", "tests"),
    "typer": ("watershed.cli", "docs.build", "tests"),
    "uvicorn": ("watershed.http", "tests"),
}

# The middle of capture: bytes and values in, bytes and values out. And what else has no clock and no I/O.
PURE: Final = (
    *("cdc.model", "cdc.pgoutput", "cdc.ports", "cdc.formats", "cdc.outbox"),
    *("cdc.config.columns", "cdc.config.format_options", "cdc.config.masking", "cdc.config.outbox_routing"),
    *("cdc.config.outbox_settings", "cdc.config.section"),
    *("cdc.capture.assembler", "cdc.capture.confirmation", "cdc.capture.kafka_transaction", "cdc.capture.stream_lag"),
    *("cdc.capture.stream_state", "cdc.capture.toast_batch", "cdc.capture.transaction_records"),
    *("cdc.snapshots.sweeps", "cdc.snapshots.signal_answers"),
    *("cdc.tables.continuity", "cdc.tables.schema_changes", "cdc.tables.selection", "cdc.tables.timelines"),
    *(f"watershed.status.{name}" for name in ("facts", "model", "history", "compute", "problems", "views")),
    *("watershed.status.fill_progress", "watershed.client.applied"),
)
# The loops act, and log, but reach the world through ports only.
LOOPS: Final = ("cdc.formats.unpublishable", "cdc.snapshots", "cdc.capture", "cdc.tables")
EDGES: Final = ("cdc.postgres", "cdc.kafka", "cdc.daemon", "watershed.cli", "psycopg", "confluent_kafka", "socket")
IO: Final = (
    *("asyncio", "http", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "selectors"),
    *("signal", "structlog", "subprocess", "tempfile", "threading", "time", "urllib.request"),
)
# PySpark publishes no other way to Java than these attributes. They may change with any version.
JAVA: Final = ("_gateway", "_jvm", "_jsparkSession", "_jsc", "_accumulatorServer")
# Packages with modules that import each other in a circle: which do.
CIRCULAR: Final = {"tests": "simulation.mixed.run and simulation.mixed.process"}


def is_below(module: str, names: Sequence[str]) -> bool:
    """Returns whether the module is one of these, or in one of them."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def wrong_directions(source: Source) -> Iterator[Violation]:
    """Each package imports only what it may, and some libraries belong to one package. A string that names a module
    counts as an import of it outside of tests."""
    room = max((name for name in ROOMS if is_below(source.module, [name])), key=len, default=None)
    if room is None:
        return
    if room == "cdc" and source.module != "cdc":
        yield Violation(
            source.path, 1, f"lies in no folder of cdc/ that has a place in its order: {', '.join(FOLDERS)}"
        )
    found = [*imports(source), *(references(source) if room != "tests" else ())]
    for line, name in found:
        if name == "cdc" and room != "cdc":
            continue  # its version, and its place on the disk
        if name.partition(".")[0] in OURS and not is_below(name, ROOMS[room]):
            yield Violation(source.path, line, f"{room} may not import {name}, only {', '.join(ROOMS[room])}")
        library = name.partition(".")[0]
        if library in RESERVED and not is_below(source.module, RESERVED[library]):
            yield Violation(source.path, line, f"only {', '.join(RESERVED[library])} may import {library}")


def impurities(source: Source) -> Iterator[Violation]:
    """Capture's middle does no I/O, asks no clock, and draws no random number; its loops do so through ports."""
    named = max((name for name in (*PURE, *LOOPS) if is_below(source.module, [name])), key=len, default=None)
    if named is None:
        return
    banned, kind = ((*EDGES, *IO), "is pure") if named in PURE else (EDGES, "reaches the world through cdc.ports")
    for line, name in imports(source):
        if is_below(name, banned):
            yield Violation(source.path, line, f"{source.module} {kind}, and may not import {name}")


def private_names(source: Source) -> Iterator[Violation]:
    """No private module of a library is imported, and one module knows the private attributes of PySpark."""
    for line, name in imports(source):
        library, *parts = name.split(".")
        if library not in OURS and any(part.startswith("_") and not part.startswith("__") for part in parts):
            yield Violation(source.path, line, f"{name} is private to {library}")
    if is_below(source.module, ["spark_jobs.jvm", "tests"]):
        return
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                continue
            case ast.Attribute(attr=attribute) if attribute in JAVA:
                yield Violation(source.path, node.lineno, f"only spark_jobs.jvm may use {attribute}")


def circles(sources: Sequence[Source], circular: Collection[str]) -> Iterator[Violation]:
    """One circle of each package, through imports in functions too. `circular`: packages that may have some."""
    python = {source.module: source for source in sources if source.is_python}
    for package in OURS:
        modules = {name: source for name, source in python.items() if name.partition(".")[0] == package}
        # `from a import b` imports the module b of a, or a name in a.
        needed = {
            module: {name if name in modules else name.rpartition(".")[0] for _, name in imports(source)} - {module}
            for module, source in modules.items()
        }
        try:
            TopologicalSorter(needed).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
            if package not in circular:
                yield Violation(modules[circle[0]].path, 1, f"imports follow a circle: {' → '.join(circle)}")
        else:
            if package in circular:
                yield Violation(PurePosixPath(package), 1, "needs no exception any more")


def test_the_client_needs_the_standard_library_only() -> None:
    client = [source for source in repository() if source.path.parts[0] == "client" and source.is_python]
    libraries = {name.partition(".")[0] for source in client for _, name in imports(source)}
    assert client and libraries - {"watershed_client"} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    "rule", [wrong_directions, impurities, private_names], ids=["directions", "purity", "private names"]
)
def test_each_file_imports_only_what_it_may(rule: object) -> None:
    assert callable(rule)
    found = sorted({violation for source in repository() if source.is_python for violation in rule(source)})
    assert not found, "\n".join(map(str, found))


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert [str(each) for each in circles(repository(), CIRCULAR)] == []


# Each rule can fail.


def python(path: str, text: str) -> Source:
    return Source(PurePosixPath(path), text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cdc/capture/loop.py", "import sinks.contract"),
        ("cdc/daemon/service.py", "from spark_jobs import session"),
        ("cdc/daemon/service.py", "def f():\n    from watershed.devstack.stack import Stack"),
        ("cdc/capture/loop.py", "from cdc.tables.selection import assign"),
        ("cdc/model/lsn.py", "from cdc.pgoutput.messages import Relation"),
        ("cdc/misc/service.py", "import json"),
        ("cdc/__init__.py", "from cdc.model import lsn"),
        ("cdc/kafka/broker.py", "from ...watershed.cli.main import main"),
        ("cdc/daemon/service.py", "PROGRAM = 'watershed.cli.main:main'"),
        ("cdc/config/stores.py", "SINK = 'sinks.search.sink:SearchSink'"),
        ("cdc/daemon/service.py", "import psycopg"),
        ("migrations/env.py", "from watershed.client import outbox"),
        ("sinks/records.py", "from cdc import kafka"),
        ("sinks/warehouse/sink.py", "if False:\n    import pyspark.sql"),
        ("sinks/search/sink.py", "import redis"),
        ("spark_jobs/sink_thread.py", "import watershed.status.views"),
        ("spark_jobs/jars/java.py", "from watershed.devstack import place"),
        ("watershed/verify/schedule.py", "CDC = ('python', '-m', 'watershed.cli.main')"),
        ("watershed/devstack/stack.py", "import watershed.demo"),
        ("watershed/demo/rows.py", "import tests.support.wire"),
    ],
)
def test_imports_in_the_wrong_direction_are_found(path: str, text: str) -> None:
    assert list(wrong_directions(python(path, text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("watershed/cli/sink.py", "from sinks.registry import SINKS\nfrom . import main\nimport typer"),
        ("watershed/cli/main.py", "COMMAND = 'watershed.cli.sink:app'"),
        ("cdc/kafka/broker.py", "import cdc\nfrom cdc import __version__\nfrom cdc.ports.stream import Broker"),
        ("sinks/records.py", "from cdc.model.events import ChangeEvent\nfrom sinks.contract import Sink"),
        ("sinks/search/sink.py", "import opensearchpy\nfrom .server import Server"),
        ("spark_jobs/session.py", "from pyspark.sql import SparkSession\nfrom spark_jobs.jars.java import spark_java"),
        ("tests/unit/test_x.py", "import psycopg, watershed.cli.main\nNAME = 'cdc.kafka.broker'"),
    ],
)
def test_imports_in_the_right_direction_pass(path: str, text: str) -> None:
    assert list(wrong_directions(python(path, text))) == []


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
    assert (list(impurities(python(path, text))) == []) is is_kept


@pytest.mark.parametrize(
    ("path", "text", "is_kept"),
    [
        ("cdc/kafka/broker.py", "from confluent_kafka.admin._listoffsets import OffsetSpec", False),
        ("tests/unit/test_x.py", "import pyarrow._fs", False),
        ("spark_jobs/engine.py", "java = spark.sparkContext._gateway", False),
        ("spark_jobs/jvm.py", "java = spark.sparkContext._gateway", True),
        ("spark_jobs/engine.py", "self._jvm = java_classes(spark)", True),
        ("cdc/kafka/broker.py", "from __future__ import annotations\nfrom cdc.kafka import _x", True),
    ],
)
def test_private_names_of_libraries_are_found(path: str, text: str, is_kept: bool) -> None:
    assert (list(private_names(python(path, text))) == []) is is_kept


def test_circles_of_imports_are_found() -> None:
    def found(*circular: str, last: str) -> list[str]:
        modules = {
            "sinks/a.py": "import json\nimport sinks.b",
            "sinks/b.py": "from sinks.x import c",
            "sinks/x/c.py": last,
        }
        return [each.what for each in circles([python(*module) for module in modules.items()], circular)]

    assert found(last="from sinks import x\nimport sinks.x.c") == []
    for last in ("from sinks import a", "def f():\n    from sinks.a import name", "from .. import b"):
        (circle,) = found(last=last)
        assert "sinks.b → sinks.x.c" in circle
        assert found("sinks", last=last) == []
    assert found("sinks", last="import json") == ["needs no exception any more"]
