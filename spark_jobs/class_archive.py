"""Spark's loaded classes, kept ready for the next start (Java's dynamic class data sharing, JEP 350).

`spark_jobs/archive_maker.py` makes the archive.

Measured on two idle cores, three runs each, alternating, until a warehouse's second batch is readable: 23 → 14
processor seconds of the JVM, 22 → 13 s by the clock (the session alone: 7 → 4 s). Most of a start is reading and
checking classes, and a job that was killed starts again while its stores wait. Java itself refuses an archive that does
not fit its version or the class path; then, and where there is none, jobs start as they always did.
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark

JAR_SETS: Final = ("iceberg",)
SUFFIX: Final = ".jsa"


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
    return folder() / f"spark-{hashlib.sha256(text.encode()).hexdigest()[:16]}{SUFFIX}"


def flags(java_home: Path, jars: Sequence[Path]) -> str:
    """Returns the JVM's flags to use the archive; none if it does not exist."""
    file = archive_file(java_home, jars)
    # Quiet: it warns of an archive that it can't use, and does without.
    return f'"-XX:SharedArchiveFile={file}" -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off' if file.exists() else ""
