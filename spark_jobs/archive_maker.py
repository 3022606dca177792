"""Makes the archive of Spark's classes.

python -m spark_jobs.archive_maker      makes the archive if it is missing: a small job is run once and watched
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from cdc.model.errors import StackError, WatershedError
from spark_jobs.class_archive import JAR_SETS, SUFFIX, archive_file
from spark_jobs.jars.java import spark_java
from spark_jobs.jars.resolver import resolve_sets
from spark_jobs.jvm import jvm_process
from spark_jobs.rehearsal import rehearse
from spark_jobs.session import spark_session

DRIVER_MEMORY: Final = "512m"
END_S_MAX: Final = 120.0  # the archive is written while the JVM ends


def make() -> bool:
    """Creates the archive unless it exists. Returns whether it was created. Raises StackError."""
    java = spark_java()
    jars = [jar for found in resolve_sets(JAR_SETS).values() for jar in found]
    target = archive_file(java, jars)
    if target.exists():
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    for outdated in target.parent.glob(f"spark-*{SUFFIX}"):
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
    spark = spark_session(java, jars, DRIVER_MEMORY, options)
    process = jvm_process(spark)
    try:
        with tempfile.TemporaryDirectory(prefix="watershed-rehearsal-") as name:
            rehearse(spark, Path(name))
            spark.stop()
    finally:
        process.stdin.close()
        process.wait(END_S_MAX)


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
