"""A standalone Spark cluster on this machine: one master and two workers, each a process."""

import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped]
import pyspark

from spark_jobs.jars.java import spark_java
from tests.support.waiting import eventually

START_S_MAX = 60.0
_CLASS = "org.apache.spark.deploy"


class SparkCluster:
    """Started by entering; its processes are killed at the end."""

    def __init__(self, folder: Path, port: int, workers: int = 2) -> None:
        self.master = f"spark://127.0.0.1:{port}"
        self._folder = folder
        self._port = port
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        port = str(self._port)
        master = self._start("master", f"{_CLASS}.master.Master", "--host", "127.0.0.1", "--port", port)
        for number in range(self._count):
            resources = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work{number}")]
            self._start(f"worker{number}", f"{_CLASS}.worker.Worker", "--host", "127.0.0.1", *resources, self.master)
        log = self._folder / "master.log"
        eventually(
            lambda: log.read_text().count("Registering worker") == self._count,
            START_S_MAX,
            lambda: f"the workers have registered; the master said:\n{log.read_text()}",
        )
        assert master.poll() is None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker, its executors and their Python processes."""
        worker = self._processes[1 + number]
        family = [*psutil.Process(worker.pid).children(recursive=True), psutil.Process(worker.pid)]
        for process in family:
            process.kill()
        worker.wait()

    def _start(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        java = spark_java()
        environment = {
            **os.environ,
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",  # as bin/load-spark-env.sh does
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
        }
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-modules=jdk.incubator.vector"]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(java / "bin" / "java"), *options, "-cp", f"{home}/jars/*", main, "--webui-port", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        self._processes.append(process)
        return process
