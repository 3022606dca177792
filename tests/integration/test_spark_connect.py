"""`format("watershed")` over Spark Connect: a server, and a client in another process, whose Python has no Java."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from spark_jobs.jars.java import spark_java
from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.waiting import eventually
from watershed.devstack.instance import PortClaims, choose_ports

pytestmark = pytest.mark.long

COLUMNS = {"id": (20, "bigint"), "name": (25, "text")}
START_S_MAX = 60.0
CLIENT_S_MAX = 240.0
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
ROOT = Path(__file__).parents[2]


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Its address. Its Python has this project, as that of a cluster must."""
    (port,) = choose_ports(1, PortClaims())
    environment = {
        **os.environ,
        "JAVA_HOME": str(spark_java()),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    log = folder / "server.log"
    settings = {"spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [Path(sys.executable).parent / "spark-submit", "--master", "local[2]", "--class", _SERVER, *options,
             "spark-internal"],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        eventually(
            lambda: "Spark Connect server started at" in log.read_text(),
            START_S_MAX,
            lambda: f"the server starts; it said:\n{log.read_text()[-3000:]}",
        )
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_a_client_reads_a_table_and_its_changes(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    feed = Feed(kafka.bootstrap_servers, unique)
    feed.add_table("items", COLUMNS, ["id"])
    feed.begin()
    for number in range(20):
        feed.upsert("items", id=number, name=f"item {number}")
    feed.commit()
    feed.begin()
    feed.upsert("items", id=3, name="changed")
    feed.delete("items", id=4)
    feed.commit()
    feed.progress()
    with connect_server(tmp_path) as remote:
        place = [str(tmp_path / "checkpoint"), kafka.bootstrap_servers, unique, "public.items"]
        client = subprocess.run(
            [sys.executable, "-m", "tests.support.connect_client", remote, *place],
            cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CLIENT_S_MAX, check=False,
            env={name: value for name, value in os.environ.items() if name != "JAVA_HOME"},
        )  # fmt: skip
        assert client.returncode == 0, f"{client.stderr}\n{(tmp_path / 'server.log').read_text()[-3000:]}"
    found = json.loads(client.stdout.splitlines()[-1])
    present = {number: f"item {number}" for number in range(20)} | {3: "changed"}
    del present[4]
    assert found["present"] == sorted(map(list, present.items()))
    assert found["sum"] == sum(present)
    assert (found["types"]["id"], found["types"]["name"]) == ("bigint", "string")
    assert [4, "d"] in [[key, op] for op, key in found["changes"]]
    assert {key for op, key in found["changes"] if op != "d"} == set(range(20))
    assert "unknown option nonsense" in found["refused"]
