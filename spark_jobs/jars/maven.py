"""A Maven repository, through the resolver library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cdc.model.errors import StackError
from spark_jobs.jars.lock import Jar

if TYPE_CHECKING:
    from jgo.maven import MavenContext

MIRROR_VARIABLE: Final = "WATERSHED_MAVEN_REPOSITORY"
TIMEOUT_S: Final = 60


def context(cache: Path, address: str | None = None, received: Callable[[int], None] | None = None) -> "MavenContext":
    """The library set up for Maven Central, or for the mirror whose root `address` is. It writes straight to the final
    names in `cache`, so a cache must not be shared. Raises StackError if the library is not installed: it is an extra,
    because a filled cache works without it."""
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise StackError(
            "jars are missing and the library that fetches them, jgo, is not installed",
            "pip install 'watershed-cdc[spark]'",
        ) from error

    @contextmanager
    def progress(_name: str, _size: int) -> Iterator[Callable[[int], None]]:
        yield received or (lambda _: None)

    return MavenContext(
        PythonResolver(progress_callback=progress),
        repo_cache=cache,
        remote_repos={"mirror": address.rstrip("/")} if address else None,
        timeout=TIMEOUT_S,
    )


class MavenRepository:
    """A source of jars: Maven Central, or the mirror whose root `address` is."""

    def __init__(self, address: str | None) -> None:
        self.name = f"the repository in {MIRROR_VARIABLE}" if address else "Maven Central"
        self._address = address

    def fetch(self, jar: Jar, folder: Path, received: Callable[[int], None]) -> Path:
        at = jar.coordinates
        project = context(folder, self._address, received).project(at.group, at.artifact)
        return project.at_version(at.version).artifact(classifier=at.classifier, packaging=at.extension).resolve()
