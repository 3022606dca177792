"""`cdc sink submit` on a standalone cluster: one master, two workers, the stores' rows compared with what was fed."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from cdc.config.config_file import load_config
from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.sink_job import sink_record, write_config
from tests.support.spark_cluster import SparkCluster
from tests.support.stores import sinks_section, stored_rows
from tests.support.waiting import eventually
from watershed.devstack.instance import PortClaims, choose_ports

pytestmark = pytest.mark.long

COLUMNS = {"id": (20, "bigint"), "name": (25, "text")}
ROWS = 6000
APPLIED_S_MAX = 180.0


@contextmanager
def submitted(config: Path, master: str, *names: str) -> Iterator[Path]:
    """The driver; its log."""
    log = config.parent / "driver.log"
    words = [sys.executable, "-m", "watershed", "sink", "submit", "--master", master, "--config", str(config)]
    local = ["--conf", "spark.driver.host=127.0.0.1", "--driver-memory", "512m", "--executor-memory", "512m"]
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [*words, *names, *local],
            cwd=config.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_executors_of_two_workers_fill_the_stores_and_a_killed_worker_costs_nothing(
    kafka: KafkaBroker, opensearch: str, redis: str, tmp_path: Path
) -> None:
    prefix = f"t{secrets.token_hex(5)}"
    path = write_config(tmp_path, kafka.bootstrap_servers, prefix, sinks_section(tmp_path, opensearch, redis))
    config = load_config(path)
    feed = Feed(kafka.bootstrap_servers, prefix)
    feed.add_table("items", COLUMNS, ["id"], partitions=4)
    feed.begin()
    for number in range(ROWS):
        feed.upsert("items", id=number, name=f"item {number}")
    feed.commit()
    expected = {number: f"item {number}" for number in range(ROWS)}

    def is_applied(store: str, lsn: int) -> bool:
        record = sink_record(config, store)
        return record is not None and record.applied_lsn >= lsn

    def compare(log: Path) -> None:
        lsn = feed.progress()
        for store in ("cache", "search"):
            eventually(
                partial(is_applied, store, lsn),
                APPLIED_S_MAX,
                lambda: f"everything is applied; the driver said:\n{log.read_text()[-4000:]}",
            )
            rows = {row.key["id"]: row.row["name"] for row in stored_rows(config, store, feed.schemas["items"])}
            assert rows == expected, store

    (port,) = choose_ports(1, PortClaims())
    with SparkCluster(tmp_path, port) as cluster, submitted(path, cluster.master, "cache", "search") as log:
        compare(log)
        executors = [folder for folder in tmp_path.glob("work*/app-*/*") if folder.is_dir()]
        assert len({folder.parts[-3] for folder in executors}) == 2, "both workers have run tasks"
        feed.begin()
        for number in range(0, ROWS, 3):
            feed.upsert("items", id=number, name=f"changed {number}")
            expected[number] = f"changed {number}"
        feed.commit()
        cluster.kill_worker(0)
        for number in range(50):
            feed.begin()
            feed.delete("items", id=number)
            del expected[number]
            feed.commit()
        compare(log)
