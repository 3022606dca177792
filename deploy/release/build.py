"""The parts of a release, built from the files that git has, each checked. Two builds of a commit are byte-equal.

Everything is built in an export of the repository: so nothing gets in that git does not have, and neither the place of
the clone nor its permissions are visible in what is built.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.release.archives import EXECUTABLE, READABLE, files_below, pack, unpack
from deploy.release.notes import release_notes
from deploy.release.sbom import bill
from spark_jobs.jars.lock import read_lock

ROOT: Final = Path(__file__).parents[2]
# Image → the sets of jars that its Dockerfile fetches.
IMAGES: Final = {"capture": (), "sinks": ("iceberg",)}
CHECKSUMS: Final = "SHA256SUMS"
CHART: Final = "deploy/helm/watershed"
_BUILD: Final = """
import importlib, sys
hooks = importlib.import_module(sys.argv[1])
getattr(hooks, sys.argv[2])(sys.argv[3])
"""


class ReleaseError(Exception):
    """What prevents a release, with the next step behind `next:`."""


@dataclass(frozen=True, slots=True)
class Release:
    """Where it is built from, where to, and as what."""

    source: Path  # an export of the repository
    work: Path  # an empty folder
    target: Path
    time_s: int  # SOURCE_DATE_EPOCH
    version: str
    is_dry_run: bool

    @property
    def environment(self) -> dict[str, str]:
        """That of every program that builds a part."""
        ours = {"SOURCE_DATE_EPOCH": str(self.time_s), "PYTHONHASHSEED": "0", "NO_MKDOCS_2_WARNING": "1", "TZ": "UTC"}
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ours


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Returns what the program printed. Raises ReleaseError with its messages if it fails."""
    # The modes of files that a backend makes are in the wheel.
    done = subprocess.run(
        command, cwd=folder, env=environment, umask=0o022, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command[:4])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def commit_time(root: Path) -> int:
    """Returns the Unix seconds of SOURCE_DATE_EPOCH, or those of the last commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run(["git", "log", "-1", "--format=%ct"], root))


def require_committed(root: Path) -> None:
    """Raises ReleaseError if the clone differs from its commit."""
    if changed := run(["git", "status", "--porcelain"], root):
        raise ReleaseError(f"these files are not committed:\n{changed}  next: commit them, or try with DRY=1")


def export(root: Path, folder: Path) -> None:
    """Copies the files that git has, as they are in the clone, with one of two modes."""
    for name in run(["git", "ls-files", "-z"], root).split("\0"):
        path = root / name
        if name and path.is_file():  # without files that were removed and not committed
            copy = folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            copy.chmod(EXECUTABLE if path.stat().st_mode & 0o100 else READABLE)


def version_of(source: Path) -> str:
    """Returns the version that all files name. Raises ReleaseError if they differ."""
    chart = yaml.safe_load((source / CHART / "Chart.yaml").read_text(encoding="utf-8"))
    package = re.search(
        r'^__version__ = "(.*)"$', (source / "cdc/__init__.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    found = {
        "pyproject.toml": str(_project(source)["version"]),
        "cdc/__init__.py": package[1] if package else "none",
        f"{CHART}/Chart.yaml (version)": str(chart["version"]),
        f"{CHART}/Chart.yaml (appVersion)": str(chart["appVersion"]),
    }
    if len(set(found.values())) != 1:
        listed = ", ".join(f"{version} in {file}" for file, version in found.items())
        raise ReleaseError(f"the version differs: {listed}\n  next: write the same version into each")
    return found["pyproject.toml"]


def _project(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return loaded


def projects(source: Path) -> list[Path]:
    """Returns the folders of the distributions: the repository, and each folder of it that has a pyproject.toml."""
    return [path.parent for path in (source / "pyproject.toml", *sorted(source.glob("*/pyproject.toml")))]


def build(release: Release) -> list[Path]:
    """Builds and checks every part, and returns their files, with that of the checksums last. Raises ReleaseError."""
    changelog = (release.source / "CHANGELOG.md").read_text(encoding="utf-8")
    try:
        notes = release_notes(changelog, release.version, is_dry_run=release.is_dry_run)
    except ValueError as error:
        raise ReleaseError(str(error)) from error
    built = [
        file for number, folder in enumerate(projects(release.source)) for file in python_parts(release, folder, number)
    ]
    built += [_images(release), *_bills(release), _chart(release), _site(release)]
    built.append(release.target / f"watershed-{release.version}-notes.md")
    built[-1].write_text(notes, encoding="utf-8")
    built.append(release.target / CHECKSUMS)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(built[:-1])]
    built[-1].write_text("".join(lines), encoding="utf-8")
    return built


def python_parts(release: Release, folder: Path, number: int) -> Iterator[Path]:
    """The source distribution and the wheel of one project. The wheel is built twice, from the export and from the
    source distribution, and both must be equal: so the latter has every file."""
    work = release.work / f"python-{number}"
    sdist = _built(release, folder, "build_sdist", work / "sdist")
    wheel = _built(release, folder, "build_wheel", work / "wheel")
    unpack(sdist, work / "unpacked")
    (root,) = (work / "unpacked").iterdir()
    target = release.target / sdist.name
    pack(target, files_below(root, root.name), release.time_s)
    again = _built(release, root, "build_wheel", work / "again")
    if wheel.read_bytes() != again.read_bytes():
        raise ReleaseError(
            f"{wheel.name} differs when it is built from {sdist.name}: {_difference(wheel, again)}\n"
            "  next: add the missing files to the source distribution (MANIFEST.in)"
        )
    _import(release, wheel)
    yield target
    yield Path(shutil.copyfile(wheel, release.target / wheel.name))


def _built(release: Release, folder: Path, hook: str, target: Path) -> Path:
    """Calls a hook of the project's build backend (PEP 517), which must be installed here."""
    target.mkdir(parents=True)
    backend = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["build-backend"]
    # Backends leave folders of their own in the project, which would get into the next part.
    # Links are enough: a backend adds files and alters none.
    copy = Path(shutil.copytree(folder, target.with_name(f"{target.name}-source"), copy_function=os.link))
    run([sys.executable, "-c", _BUILD, backend, hook, str(target)], copy, release.environment)
    (file,) = target.iterdir()
    return file


def _difference(one: Path, other: Path) -> str:
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        names = set(first.namelist()) ^ set(second.namelist())
    return ", ".join(sorted(names)[:5]) or "the same names, other contents"


def _import(release: Release, wheel: Path) -> None:
    """Imports what the wheel installs, from the wheel, and compares its metadata with the release."""
    with zipfile.ZipFile(wheel) as files:
        info = next(name.partition("/")[0] for name in files.namelist() if ".dist-info/" in name)
        metadata = files.read(f"{info}/METADATA").decode()
        names = files.read(f"{info}/top_level.txt").decode().split()
    if f"\nVersion: {release.version}\n" not in metadata:
        raise ReleaseError(
            f"{wheel.name} is not of version {release.version}\n  next: write it into its pyproject.toml"
        )
    program = (
        f"import sys; sys.path.insert(0, {str(wheel)!r})\n"
        f"for name in {names!r}:\n"
        f"    assert __import__(name).__file__.startswith({str(wheel)!r}), name\n"
    )
    run([sys.executable, "-I", "-c", program], release.work, release.environment)


def _images(release: Release) -> Path:
    """What `docker build` needs: the Dockerfiles, and the files that .dockerignore admits."""
    source = release.source
    admitted = [
        line[1:] for line in (source / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"
    ]
    patterns = [*admitted, "Dockerfile", ".dockerignore", "docker-compose.yml", "deploy/docker"]
    found = [path for pattern in patterns for path in source.glob(pattern)]
    name = f"watershed-images-{release.version}"
    files = {
        f"{name}/{file.relative_to(source).as_posix()}": file
        for path in found
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file()
    }
    for source_of_copy in re.findall(r"^COPY (?!--from)(\S+) ", (source / "Dockerfile").read_text(), re.MULTILINE):
        if not (source_of_copy == "." or f"{name}/{source_of_copy}" in files):
            raise ReleaseError(f"the Dockerfile copies {source_of_copy}\n  next: admit it in .dockerignore")
    target = release.target / f"{name}.tar.gz"
    pack(target, files, release.time_s)
    return target


def _bills(release: Release) -> Iterator[Path]:
    lock_of_jars = read_lock(release.source / "spark_jobs/jars/lock.json")
    for image, sets in IMAGES.items():
        lock = (release.source / f"deploy/docker/{image}.lock").read_text(encoding="utf-8")
        wanted = [jar for name in sets for jar, _ in lock_of_jars.placed(name)]
        target = release.target / f"watershed-{image}-{release.version}.cdx.json"
        target.write_text(bill(image, release.version, lock, wanted, release.time_s), encoding="utf-8")
        yield target


def _chart(release: Release) -> Path:
    """The chart as `helm package` lays it out: a folder with the chart's name."""
    folder = release.source / CHART
    ignored = (folder / ".helmignore").read_text(encoding="utf-8").split()
    left_out = {path for pattern in ignored for path in folder.glob(pattern.rstrip("/"))}
    files = {
        name: path
        for name, path in files_below(folder, folder.name).items()
        if path.name != ".helmignore" and left_out.isdisjoint((path, *path.parents))
    }
    target = release.target / f"{folder.name}-{release.version}.tgz"
    pack(target, files, release.time_s)
    return target


def _site(release: Release) -> Path:
    site = release.work / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)]
    run(command, release.source, release.environment)
    name = f"watershed-docs-{release.version}"
    target = release.target / f"{name}.tar.gz"
    pack(target, files_below(site, name), release.time_s)
    return target
