"""Creates the caches of loaded classes.

python -m watershed.devstack.startup_recorder      creates missing caches: each server is started once and recorded
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console

from cdc.model.errors import StackError
from spark_jobs.jars.resolver import default_cache, resolve_sets
from watershed.devstack.instance import PortClaims, ServerInstance, choose_ports, unprivileged_account
from watershed.devstack.java import Jvm
from watershed.devstack.kafka import Kafka
from watershed.devstack.keeper import Command, Keeper
from watershed.devstack.opensearch import OpenSearch
from watershed.devstack.server import Server, see_log, wait_until_ready
from watershed.devstack.startup_cache import OPTION, cache_file
from watershed.devstack.state import new_state

JAVA_MAJOR_MIN = 24
EXIT_TIMEOUT_S = 120.0


class JavaServer(Server, Protocol):
    """A server whose start can be recorded."""

    def jvm(self, instance: ServerInstance) -> Jvm: ...

    def recording(self, file: Path) -> "JavaServer":
        """Returns the same server, started so that it writes its loaded classes to `file` when it ends."""


def make(server: JavaServer, cache: Path) -> bool:
    """Creates the server's cache unless it exists. Returns False if this Java has no such cache. Raises StackError."""
    resolve_sets(server.jar_sets, cache)
    with tempfile.TemporaryDirectory(prefix="watershed-startup-") as name, PortClaims() as claims:
        folder = Path(name)
        folder.chmod(0o711)  # the server may run under another account
        ports = dict(zip(server.port_names, choose_ports(len(server.port_names), claims), strict=True))
        instance = ServerInstance(folder / server.name, ports, new_state().identity, unprivileged_account(), cache)
        jvm = server.jvm(instance)
        target = cache_file(server.name, jvm, cache)
        if target.exists():
            return True
        if jvm.major < JAVA_MAJOR_MIN:
            return False
        classes, made = instance.own("startup") / "classes", instance.own("startup") / "cache"
        command = server.recording(classes).prepare(instance)
        _run_once(server, instance, command)
        _create(command, [f"{OPTION}Mode=create", f"{OPTION}Configuration={classes}", f"{OPTION}Cache={made}"])
        target.parent.mkdir(parents=True, exist_ok=True)
        for outdated in target.parent.glob(f"{server.name}-*.aot"):
            outdated.unlink(missing_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(made, partial)  # a copy, because a link would still belong to the other account
        partial.replace(target)
    return True


def _run_once(server: JavaServer, instance: ServerInstance, command: Command) -> None:
    """Runs the server until it is ready, and ends it cleanly, at which it writes the recording."""
    keeper = Keeper()
    try:
        pid = keeper.spawn(command, bound=True)
        wait_until_ready(server, instance, pid, 0, lambda: keeper.exit_code(pid), lambda: False)
        os.kill(pid, signal.SIGTERM)
        if not keeper.wait(pid, EXIT_TIMEOUT_S):
            raise StackError(f"{server.title} does not end", see_log(instance.log))
    finally:
        keeper.close()


def _create(command: Command, create: Sequence[str]) -> None:
    program, *rest = command.argv
    kept = [word for word in rest if not word.startswith(OPTION)]
    done = subprocess.run(
        [program, *create, *kept],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=dict(command.env),
        cwd=command.cwd,
        user=command.uid,
        group=command.uid,
        extra_groups=None if command.uid is None else [],
        check=False,
    )
    if done.returncode:
        raise StackError(f"Java could not make its startup cache (exit code {done.returncode})", done.stdout[-500:])


def main() -> int:
    """Creates both caches. Failures are printed but do not fail the set-up: servers then only start more slowly."""
    console = Console(stderr=True)
    servers: tuple[JavaServer, ...] = (Kafka(), OpenSearch())
    for server in servers:
        try:
            with console.status(f"preparing quick starts of {server.title}"):
                known = make(server, default_cache())
            console.print(f"{server.title} {'starts quickly' if known else 'has a Java without startup cache'}")
        except StackError as error:
            console.print(f"{server.title} will start slowly: {error}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
