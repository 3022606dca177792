"""The client as it is installed: one import name, and nothing that it needs."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from tests.support.sources import ROOT

CLIENT = ROOT / "client"


def test_the_wheel_has_one_package_and_no_dependencies(tmp_path: Path) -> None:
    folder = tmp_path / "client"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    command = [sys.executable, "-c", f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("watershed_client-*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = {name for name in files.namelist() if ".dist-info/" not in name}
        (metadata,) = (files.read(name).decode() for name in files.namelist() if name.endswith("/METADATA"))
        files.extractall(tmp_path / "site")
    package = CLIENT / "watershed_client"
    assert names == {f"watershed_client/{file.name}" for file in package.iterdir() if file.is_file()}
    assert "watershed_client/py.typed" in names
    assert "Requires-Dist" not in metadata
    program = "import sys, watershed_client; print(watershed_client.__all__); assert 'cdc' not in sys.modules"
    used = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path / "site", capture_output=True, text=True, check=False
    )
    assert used.returncode == 0, used.stderr
    assert "AsyncClient" in used.stdout


def test_both_distributions_have_one_version() -> None:
    versions = {
        tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        for folder in (ROOT, CLIENT)
    }
    assert len(versions) == 1
