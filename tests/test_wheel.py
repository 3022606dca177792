"""The wheel: it holds every file that the installed commands read, and its extra `all` installs what they need."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "cdc",
    "configuration",
    "monitoring",
    "operations",
    "migrations",
    "sinks",
    "spark_jobs",
    "verification",
    "views",
    "devstack",
    "jars",
    "demo",
)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel that is built from a copy of the sources, because setuptools writes beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-c", f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_has_every_file_of_its_packages(wheel_files: set[str]) -> None:
    files = (path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert wanted - wheel_files == set(), "add them to [tool.setuptools] in pyproject.toml"
    assert {"demo/shop.sql", "operations/http/console/index.html", "jars/lock.json"} <= wheel_files


def test_the_wheel_has_no_other_package(wheel_files: set[str]) -> None:
    assert {name.partition("/")[0] for name in wheel_files if ".dist-info/" not in name} == set(PACKAGES)


def test_the_extra_all_has_every_extra_of_the_commands(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = everything.partition("[")[2].rstrip("]").split(",")
    assert set(named) == extras.keys() - {"all", "docs", "dev"}
