"""Bills of materials in CycloneDX 1.6, from the lock files that the images install.

They name the Python packages of a lock and the jars of a set. What Debian's packages put into an image is not in
a lock: a scanner of the built image finds it.
"""

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from spark_jobs.jars.lock import Jar

PROJECT: Final = "watershed-cdc"
_NAMESPACE: Final = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562's for object identifiers
_REQUIREMENT: Final = re.compile(
    r"^(?P<name>[\w.-]+)(?:\[[\w,.-]*\])?==(?P<version>[^\s;\\]+)(?: ; (?P<marker>[^\\]+?))? *\\?$"
)
_VIA: Final = re.compile(r"^ +# (?:via )? *(?P<name>[\w.-]+)(?:\[.*\])?(?: \(pyproject\.toml\))?$")
# An image runs on Linux with the Python of the Dockerfile, on either machine.
_ENVIRONMENTS: Final = tuple(
    {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": "3.11.0",
        "python_version": "3.11",
        "sys_platform": "linux",
        "extra": "",
    }
    for machine in ("x86_64", "aarch64")
)


@dataclass(frozen=True, slots=True)
class Package:
    """A package of a lock file, with the packages that need it, of which the project itself is one."""

    name: str
    version: str
    needed_by: tuple[str, ...]

    @property
    def reference(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def packages_of(lock: str) -> list[Package]:
    """Returns the packages that an image installs by the text of its lock file. Raises ValueError for a line that is
    neither a requirement nor one of the lines below it."""
    found: list[Package] = []
    is_installed = False
    for number, line in enumerate(lock.splitlines(), 1):
        if requirement := _REQUIREMENT.match(line):
            is_installed = _is_on_an_image(requirement["marker"])
            if is_installed:
                found.append(Package(canonicalize_name(requirement["name"]), requirement["version"], ()))
        elif (via := _VIA.match(line)) and is_installed:
            last = found[-1]
            found[-1] = Package(last.name, last.version, (*last.needed_by, canonicalize_name(via["name"])))
        elif line.strip() and not line.lstrip().startswith(("#", "--hash=")):
            raise ValueError(f"line {number} of the lock file is no requirement: {line}")
    return found


def _is_on_an_image(marker: str | None) -> bool:
    return marker is None or any(Marker(marker).evaluate(environment) for environment in _ENVIRONMENTS)


def bill(image: str, version: str, lock: str, jars: Iterable[Jar], time_s: int) -> str:
    """Returns the bill of an image as JSON. `time_s`: Unix seconds of the release."""
    packages = packages_of(lock)
    ours = f"pkg:pypi/{PROJECT}@{version}"
    components: list[Mapping[str, Any]] = [
        {"type": "library", "bom-ref": ours, "name": PROJECT, "version": version, "purl": ours}
    ]
    components += [
        {
            "type": "library",
            "bom-ref": one.reference,
            "name": one.name,
            "version": one.version,
            "purl": one.reference,
        }
        for one in packages
    ]
    jar_components = [_jar_component(jar) for jar in jars]
    root = f"watershed-{image}@{version}"
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "container", "bom-ref": root, "name": f"watershed-{image}", "version": version},
        },
        "components": [*components, *jar_components],
        "dependencies": _dependencies(root, ours, packages, [one["bom-ref"] for one in jar_components]),
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True))
    return json.dumps({"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", **content} | {
        "serialNumber": f"urn:uuid:{serial}"
    }, indent=2) + "\n"  # fmt: skip


def _jar_component(jar: Jar) -> dict[str, Any]:
    at = jar.coordinates
    classifier = f"?classifier={at.classifier}" if at.classifier else ""
    purl = f"pkg:maven/{at.group}/{at.artifact}@{at.version}{classifier}"
    return {
        "type": "library",
        "bom-ref": purl,
        "group": at.group,
        "name": at.artifact,
        "version": at.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
    }


def _dependencies(root: str, ours: str, packages: Iterable[Package], jars: list[str]) -> list[dict[str, Any]]:
    packages = list(packages)
    known = {one.name: one.reference for one in packages} | {PROJECT: ours}
    needs: dict[str, list[str]] = {root: [ours], ours: [*jars]} | {one.reference: [] for one in packages}
    for one in packages:
        for name in one.needed_by:
            if name in known:  # not of a package that only other systems install
                needs[known[name]].append(one.reference)
    return [{"ref": ref, "dependsOn": sorted(below)} for ref, below in needs.items()]
