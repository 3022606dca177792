"""Apicurio's schema registry from Maven, which has Confluent's API."""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from spark_jobs.jars.resolver import default_cache, resolve
from tests.support.http_server import free_port
from tests.support.lake_servers import await_answer
from watershed.devstack.java import server_java

API: Final = "apis/ccompat/v7"
_FLAGS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class RegistryServer:
    """A registry whose schemas are in memory: it can be stopped, and started again without them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/{API}"

    def start(self) -> None:
        home, log = _unpacked(), self._folder / "registry.log"
        properties = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self._port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": 0,  # any free one: its own is 9000, on all interfaces
            "java.io.tmpdir": self._folder,
        }
        command = [str(server_java().home / "bin" / "java"), *_FLAGS]
        command += [f"-D{name}={value}" for name, value in properties.items()]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "-jar", str(home / "quarkus-run.jar")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        await_answer(self._process, f"{self.url}/schemas/types", log)

    def freeze(self) -> None:
        """It does not answer until `thaw`."""
        assert self._process is not None
        self._process.send_signal(19)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(18)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def schema_registry(folder: Path) -> Iterator[RegistryServer]:
    server = RegistryServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _unpacked() -> Path:
    """The folder of the archive's files, in the cache of jars."""
    (archive,) = resolve("schema-registry")
    home = default_cache() / "unpacked" / archive.name.removesuffix(".tar.gz")
    if not home.exists():
        partial = home.with_name(f"{home.name}.{os.getpid()}")
        partial.mkdir(parents=True)
        with tarfile.open(archive) as files:
            files.extractall(partial, filter="data")
        with suppress(OSError):  # another process was faster
            partial.rename(home)
    return home
