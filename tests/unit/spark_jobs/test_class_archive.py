"""The archive of Spark's classes: named after what it fits, and used by a session."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import class_archive
from spark_jobs.jars.java import spark_java
from spark_jobs.jars.resolver import resolve_sets


@pytest.fixture
def java(tmp_path: Path) -> Path:
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n')
    return tmp_path


def test_another_java_or_class_path_has_another_archive(java: Path) -> None:
    jars = [Path("/jars/a.jar"), Path("/jars/b.jar")]
    names = {class_archive.archive_file(java, jars), class_archive.archive_file(java, jars[::-1])}
    assert class_archive.archive_file(java, jars) in names
    (java / "release").write_text('JAVA_VERSION="17.0.16"\n')
    names.add(class_archive.archive_file(java, jars))
    assert len(names) == 3
    assert {name.parent for name in names} == {class_archive.folder()}


def test_without_an_archive_there_are_no_flags(java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(class_archive, "folder", lambda: tmp_path / "with a blank")
    assert class_archive.flags(java, []) == ""
    file = class_archive.archive_file(java, [])
    file.parent.mkdir()
    file.touch()
    assert f'"-XX:SharedArchiveFile={file}"' in class_archive.flags(java, [])


def test_a_session_has_mapped_the_archive(spark: SparkSession) -> None:
    """Java takes no archive that does not fit, and says nothing."""
    jars = [jar for found in resolve_sets(class_archive.JAR_SETS).values() for jar in found]
    archive = class_archive.archive_file(spark_java(), jars)
    gateway: Any = spark.sparkContext._gateway
    assert archive.exists(), "make setup makes it"
    assert str(archive) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()
