"""The search for a Java. Each Java that is found is run to get its properties.

This module is not in `devstack`, because Spark jobs need it, too. Spark 4.1 needs a full Java 17 or 21: on later
versions its first file write fails, and the runtime for Kafka and OpenSearch lacks the vector module that Spark's
launcher requires.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cdc.model.errors import StackError

SPARK_MAJORS = (17, 21)
SPARK_MODULE = "jdk.incubator.vector"
SYSTEM_FOLDERS = (Path("/usr/lib/jvm"), Path("/usr/java"), Path("/opt/java"), Path("/opt"))
PROBE_TIMEOUT_S = 20  # a Java answers in a third of a second; a machine under load takes longer

# What installs a Java 17 or 21, by the package tool that the system has.
INSTALL_COMMANDS = {
    "apt-get": "apt-get install -y openjdk-17-jre-headless",
    "dnf": "dnf install -y java-21-openjdk-headless",
    "zypper": "zypper install -y java-21-openjdk-headless",
    "pacman": "pacman -S --noconfirm jre21-openjdk-headless",
    "apk": "apk add openjdk21-jre-headless",
}


@dataclass(frozen=True, slots=True)
class Java:
    """The properties of a Java."""

    home: Path
    major: int
    modules: frozenset[str]

    @property
    def suits_spark(self) -> bool:
        return self.major in SPARK_MAJORS and SPARK_MODULE in self.modules


def spark_java(environ: Mapping[str, str] = os.environ, system: Iterable[Path] = SYSTEM_FOLDERS) -> Path:
    """Returns the JAVA_HOME of a Java that runs Spark: the first suitable one in JAVA_HOME, on PATH, or in the usual
    folders. Raises StackError with the Javas that were found and the command that installs a suitable one.
    """
    found = []
    for home in candidates(environ, system):
        java = ask(home)
        if java and java.suits_spark:
            return java.home
        found.append(f"{home} ({_describe(java)})")
    raise StackError(
        "Spark needs a full Java 17 or 21; "
        + (f"found only {', '.join(found)}" if found else "there is no Java on this machine"),
        f"{install_command(environ)}; or set JAVA_HOME to one",
    )


def candidates(environ: Mapping[str, str], system: Iterable[Path]) -> list[Path]:
    """Yields folders with a `bin/java`, in the order in which they are tried, each once."""
    found = []
    if chosen := environ.get("JAVA_HOME"):
        found.append(Path(chosen))
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        found.append(Path(on_path).resolve().parent.parent)
    for folder in system:
        if folder.is_dir():
            found.extend(sorted(folder.iterdir()))
    homes = {home.resolve(): None for home in found if (home / "bin" / "java").is_file()}
    return list(homes)


def ask(home: Path) -> Java | None:
    """Runs the Java in `home` and returns its properties; None if it can't be run or its answer can't be read."""
    command = [str(home / "bin" / "java"), "-XshowSettings:properties", "--list-modules"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_answer(home, answer.stdout + "\n" + answer.stderr)


def parse_answer(home: Path, text: str) -> Java | None:
    """Parses the properties (`name = value`) and modules (`name@version`). Java 8 writes its version as 1.8."""
    major = 0
    modules = set()
    for line in map(str.strip, text.splitlines()):
        name, equals, value = line.partition(" = ")
        if equals:
            if name == "java.specification.version":
                number = value.removeprefix("1.")
                major = int(number) if number.isdigit() else 0
        elif "@" in line:
            modules.add(line.partition("@")[0])
    return Java(home, major, frozenset(modules)) if major else None


def install_command(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the command with which a user of this system installs a Java for Spark."""
    for tool, command in INSTALL_COMMANDS.items():
        if shutil.which(tool, path=environ.get("PATH", "")):
            return f"`{command}`" if os.geteuid() == 0 else f"`sudo {command}`"
    return "install your system's package of OpenJDK 17 or 21"


def _describe(java: Java | None) -> str:
    if java is None:
        return "does not run"
    if java.major in SPARK_MAJORS:
        return f"Java {java.major} without the module {SPARK_MODULE}"
    return f"Java {java.major}"
