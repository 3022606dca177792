"""A Maven repository, through the resolver library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc.errors import StackError
from jars.lock import Jar
from jars.resolver import MIRROR_VARIABLE, TIMEOUT_S

try:
    from jgo.maven import MavenContext, PythonResolver
except ImportError as error:
    raise StackError(
        "jars are missing and the library that fetches them, jgo, is not installed",
        "pip install 'watershed-cdc[stack]'",
    ) from error


class MavenRepository:
    """Maven Central, or the mirror whose root `address` is."""

    def __init__(self, address: str | None) -> None:
        self.name = f"the repository in {MIRROR_VARIABLE}" if address else "Maven Central"
        self._remote = {"mirror": address.rstrip("/")} if address else None

    def fetch(self, jar: Jar, folder: Path, received: Callable[[int], None]) -> Path:
        @contextmanager
        def progress(_name: str, _size: int) -> Iterator[Callable[[int], None]]:
            yield received

        # The library writes straight to its cache's final names, so each jar gets an empty cache of its own.
        context = MavenContext(
            PythonResolver(progress_callback=progress), repo_cache=folder, remote_repos=self._remote, timeout=TIMEOUT_S
        )
        at = jar.coordinates
        component = context.project(at.group, at.artifact).at_version(at.version)
        return component.artifact(classifier=at.classifier).resolve()
