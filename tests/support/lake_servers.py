"""Servers of a warehouse: Iceberg's own REST catalog from Maven, and Amazon's S3 and Glue as moto serves them."""

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark

from spark_jobs.jars.java import spark_java
from spark_jobs.jars.resolver import resolve
from tests.support.waiting import eventually

KEYS: Final = {"access_key_id": "test", "secret_access_key": "test-secret"}
START_S_MAX: Final = 60.0


@contextmanager
def rest_catalog(folder: Path, location: str) -> Iterator[str]:
    """The URI of a REST catalog whose tables are below `location`; its own data are in `folder`."""
    pyspark_jars = Path(pyspark.__file__).parent / "jars"
    jars = [*resolve("iceberg-rest"), *pyspark_jars.glob("hadoop-client-*.jar"), *pyspark_jars.glob("commons-logging*")]
    port = _free_port()
    settings = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": location,
        "CATALOG_URI": f"jdbc:sqlite:{folder}/rest.db",
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
    }
    flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command = [str(spark_java() / "bin/java"), *flags, "-cp", ":".join(map(str, jars))]
    with _served([*command, "org.apache.iceberg.rest.RESTCatalogServer"], folder / "rest.log", settings) as process:
        await_answer(process, f"http://127.0.0.1:{port}/v1/config", folder / "rest.log")
        yield f"http://127.0.0.1:{port}"


@contextmanager
def amazon(folder: Path) -> Iterator[str]:
    """The address of a server that speaks the protocols of S3 and Glue."""
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _served(command, folder / "moto.log", {}) as process:
        await_answer(process, f"http://127.0.0.1:{port}/moto-api/", folder / "moto.log")
        yield f"http://127.0.0.1:{port}"


def make_bucket(endpoint: str, bucket: str) -> dict[str, Any]:
    """Section `s3` for this bucket, which is created."""
    request = urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=10):  # noqa: S310
        return {"endpoint": endpoint, "region": "us-east-1", "path_style": True, **KEYS}


@contextmanager
def _served(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def await_answer(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, f"the server ended: {log.read_text(errors='replace')[-2000:]}"
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310
                return True
        except OSError:
            return False

    eventually(answers, START_S_MAX, lambda: f"{url} answers; log: {log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
