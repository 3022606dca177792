"""The real resolver library against a repository on this machine."""

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cdc.model.errors import StackError
from spark_jobs.jars.lock import Coordinates, Jar, Lock
from spark_jobs.jars.maven import MavenRepository
from spark_jobs.jars.resolver import resolve_sets

AT = Coordinates("org.example", "thing", "1.2", "linux")
CONTENT = b"a jar" * 5000


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a repository that the environment names."""
    root = tmp_path / "repository"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WATERSHED_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield root
    server.shutdown()
    server.server_close()


def lock(content: bytes) -> Lock:
    return Lock((Jar(AT, hashlib.sha256(content).hexdigest(), len(content), ("set",)),))


def publish(root: Path, content: bytes) -> None:
    (root / AT.path).parent.mkdir(parents=True)
    (root / AT.path).write_bytes(content)


def test_a_jar_with_classifier_comes_from_the_mirror_in_the_environment(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, CONTENT)
    (path,) = resolve_sets(["set"], tmp_path / "cache", lock=lock(CONTENT))["set"]
    assert path.read_bytes() == CONTENT


def test_another_jar_under_the_same_name_is_refused(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, CONTENT[::-1])
    with pytest.raises(StackError, match=r"org\.example:thing:1\.2:linux from the repository in WATERSHED_MAVEN"):
        resolve_sets(["set"], tmp_path / "cache", lock=lock(CONTENT))


def test_a_jar_that_the_mirror_lacks_is_named(mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"org\.example:thing:1\.2:linux can't be had .*: it is not there"):
        resolve_sets(["set"], tmp_path / "cache", lock=lock(CONTENT))


def test_received_bytes_are_told(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, CONTENT)
    import os

    on_error: list[int] = []
    MavenRepository(os.environ["WATERSHED_MAVEN_REPOSITORY"]).fetch(
        lock(CONTENT).jars[0], tmp_path / "f", on_error.append
    )
    assert sum(on_error) == len(CONTENT)
