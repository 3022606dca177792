"""The lock file: every jar by coordinates, SHA-256 and size, and the places it goes to.

A place is the name of a set (`kafka`), or a folder within one (`opensearch/modules/lang-painless`). No address of a
repository is in it: the resolver library knows the public one, and a mirror comes from the environment.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc.model.errors import StackError

# Large, and needed by few: they are fetched when they are used, not with the others.
ON_DEMAND = ("aws", "debezium", "debezium-avro", "iceberg-rest", "schema-registry")
LOCK_FILE = Path(__file__).parent / "lock.json"
_PART = re.compile(r"[A-Za-z0-9_.-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class Coordinates:
    """`group:artifact:version[:classifier][@extension]`; the extension is `jar` if none is given."""

    group: str
    artifact: str
    version: str
    classifier: str = ""
    extension: str = "jar"

    @classmethod
    def parse(cls, text: str) -> "Coordinates":
        """Parses coordinates. Raises StackError for any other text."""
        name, _, extension = text.partition("@")
        parts = name.split(":")
        extension = extension or "jar"
        # A part of dots only would climb out of the cache's folder.
        if len(parts) not in (3, 4) or not all(
            _PART.fullmatch(part) and part.strip(".") for part in (*parts, extension)
        ):
            raise StackError(
                f"{text!r} is not group:artifact:version[:classifier][@extension]", "correct spark_jobs/jars/lock.json"
            )
        group, artifact, version, *classifier = parts
        return cls(group, artifact, version, "".join(classifier), extension)

    def __str__(self) -> str:
        suffix = "" if self.extension == "jar" else f"@{self.extension}"
        return ":".join(part for part in (self.group, self.artifact, self.version, self.classifier) if part) + suffix

    @property
    def filename(self) -> str:
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{suffix}.{self.extension}"

    @property
    def path(self) -> Path:
        """The relative path in a repository's layout."""
        return Path(*self.group.split("."), self.artifact, self.version, self.filename)


@dataclass(frozen=True, slots=True)
class Jar:
    coordinates: Coordinates
    sha256: str
    size: int  # bytes
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lock:
    jars: tuple[Jar, ...]

    @property
    def set_names(self) -> tuple[str, ...]:
        return tuple(sorted({place.split("/")[0] for jar in self.jars for place in jar.places}))

    def placed(self, set_name: str) -> tuple[tuple[Jar, str], ...]:
        """Returns the jars of a set, each with its folder in it ("" for none). Raises StackError for an unknown set."""
        found = tuple(
            (jar, folder)
            for jar in self.jars
            for name, _, folder in (place.partition("/") for place in jar.places)
            if name == set_name
        )
        if not found:
            raise StackError(f"there is no set of jars named {set_name!r}", f"sets: {', '.join(self.set_names)}")
        return found


def read_lock(path: Path = LOCK_FILE) -> Lock:
    """Reads the lock file. Raises StackError that names the wrong entry."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        return Lock(tuple(_jar(entry) for entry in content["jars"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StackError(f"{path} is not a lock file: {error}", "take it from the repository again") from error


def write_lock(jars: Iterable[Jar], path: Path = LOCK_FILE) -> None:
    """Writes one line for each jar, in order, so that a diff shows the changes."""
    lines = (
        json.dumps(
            {
                "coordinates": str(jar.coordinates),
                "sha256": jar.sha256,
                "size": jar.size,
                "places": sorted(jar.places),
            }
        )
        for jar in sorted(jars, key=lambda jar: jar.coordinates)
    )
    path.write_text('{"jars": [\n  ' + ",\n  ".join(lines) + "\n]}\n", encoding="utf-8")


def _jar(entry: Any) -> Jar:
    jar = Jar(Coordinates.parse(entry["coordinates"]), str(entry["sha256"]), int(entry["size"]), tuple(entry["places"]))
    if not _SHA256.fullmatch(jar.sha256) or jar.size <= 0 or not jar.places:
        raise ValueError(f"{jar.coordinates} lacks a SHA-256, a size or a place")
    return jar
