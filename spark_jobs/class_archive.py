"""Spark's loaded classes, kept ready for the next start (Java's dynamic class data sharing, JEP 350).

    python -m spark_jobs.class_archive      makes the archive if it is missing: a small job is run once and watched

Measured on two idle cores, three runs each, alternating, until a warehouse's second batch is readable: 23 → 14
processor seconds of the JVM, 22 → 13 s by the clock (the session alone: 7 → 4 s). Most of a start is reading and
checking classes, and a job that was killed starts again while its stores wait. Java itself refuses an archive that does
not fit its version or the class path; then, and where there is none, jobs start as they always did.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyspark
from rich.console import Console

from cdc.model.errors import StackError, WatershedError
from jars.java import spark_java
from jars.resolver import resolve_sets

JAR_SETS: Final = ("spark-kafka", "iceberg")
DRIVER_MEMORY: Final = "512m"
END_S_MAX: Final = 120.0  # the archive is written while the JVM ends
_SUFFIX: Final = ".jsa"


def folder() -> Path:
    """Returns the archive's folder in this Python's environment: PySpark's jars, which are part of the class path, are
    there too."""
    return Path(sys.prefix) / "share" / "watershed"


def archive_file(java_home: Path, jars: Sequence[Path]) -> Path:
    """Returns the archive's file, named after Java's release and the jars in their order, on which it depends."""
    release = java_home / "release"
    text = "\n".join(
        [
            str(java_home),
            release.read_text(encoding="utf-8", errors="replace") if release.exists() else "",
            pyspark.__version__,
            *map(str, jars),
        ]
    )
    return folder() / f"spark-{hashlib.sha256(text.encode()).hexdigest()[:16]}{_SUFFIX}"


def flags(java_home: Path, jars: Sequence[Path]) -> str:
    """Returns the JVM's flags to use the archive; none if it does not exist."""
    file = archive_file(java_home, jars)
    # Quiet: it warns of an archive that it can't use, and does without.
    return f'"-XX:SharedArchiveFile={file}" -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off' if file.exists() else ""


def make() -> bool:
    """Creates the archive unless it exists. Returns whether it was created. Raises StackError."""
    java = spark_java()
    jars = [jar for found in resolve_sets(JAR_SETS).values() for jar in found]
    target = archive_file(java, jars)
    if target.exists():
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    for outdated in target.parent.glob(f"spark-*{_SUFFIX}"):
        outdated.unlink(missing_ok=True)
    partial = target.with_suffix(f".{os.getpid()}")
    try:
        _record(java, jars, {"spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={partial}" -Xlog:cds*=off'})
        partial.rename(target)
    except OSError as error:
        raise StackError(f"the archive can't be written: {error}", f"make {target.parent} writable") from error
    finally:
        partial.unlink(missing_ok=True)
    return True


def _record(java: Path, jars: Sequence[Path], options: Mapping[str, str]) -> None:
    """Runs what a job does with Spark and the warehouse, in a JVM that writes down the loaded classes when it ends."""
    from spark_jobs.rehearsal import rehearse
    from spark_jobs.session import spark_session

    spark = spark_session(java, jars, DRIVER_MEMORY, options)
    gateway: Any = spark.sparkContext._gateway
    try:
        with tempfile.TemporaryDirectory(prefix="watershed-rehearsal-") as name:
            rehearse(spark, Path(name))
            spark.stop()
    finally:
        gateway.proc.stdin.close()
        gateway.proc.wait(END_S_MAX)


def main() -> int:
    """Makes the archive. A failure is logged and does not fail the set-up: without the archive, jobs only start more
    slowly."""
    console = Console(stderr=True)
    try:
        with console.status("preparing quick starts of Spark"):
            make()
        console.print("Spark starts quickly")
    except WatershedError as error:
        console.print(f"Spark will start slowly: {error}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
