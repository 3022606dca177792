"""Loaded classes of Kafka and OpenSearch, kept ready for the next start (Java's ahead-of-time cache, since 24).

    python -m devstack.startup_cache      makes what is missing: each server is started once and watched

Measured on two cores, processor seconds to a ready server: Kafka 4.7 → 2.0, OpenSearch 9.8 → 4.5. The runtime from the
wheel has no class archive of its own, so most of a start is reading and checking classes. Java itself refuses a cache
that does not fit its version or the jars; then, and where there is none, servers start as they always did.
"""

import hashlib
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
from devstack.java import Jvm
from devstack.keeper import Command, Keeper
from devstack.place import Place, PortClaims, choose_ports, unprivileged_account
from devstack.server import Server, see_log, wait_until_ready
from devstack.state import new_state
from jars.resolver import default_cache, resolve_sets

JAVA_MAJOR_MIN = 24
EXIT_TIMEOUT_S = 120.0
_OPTION = "-XX:AOT"


class JavaServer(Server, Protocol):
    """A server whose start can be watched."""

    def jvm(self, place: Place) -> Jvm: ...

    def recording(self, file: Path) -> "JavaServer":
        """The same server, started so that it writes to `file`, when it ends, what it had loaded."""


def options(name: str, jvm: Jvm, place: Place, record: Path | None = None) -> list[str]:
    """What a start is given: to write what it loads to `record`, or to use the cache, if there is one made for it."""
    if record:
        return [f"{_OPTION}Mode=record", f"{_OPTION}Configuration={record}"]
    file = cache_file(name, jvm, place.cache)
    # Quiet: it warns of each small part that it can't use, and does without.
    return [f"{_OPTION}Cache={place.public(file)}", "-Xlog:aot*=off"] if file.exists() else []


def cache_file(name: str, jvm: Jvm, cache: Path) -> Path:
    """Named after all that it depends on: Java's release, options, and the jars in order."""
    jars = "\n".join(f"{jar.name} {jar.stat().st_size}" for jar in jvm.class_path)
    text = f"{jvm.release}\n{jvm.general_options}\n{jars}"
    return cache / "startup" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.aot"


def make(server: JavaServer, cache: Path) -> bool:
    """Make the server's cache unless it is there. False if this Java can't. Raises StackError."""
    resolve_sets(server.jar_sets, cache)
    with tempfile.TemporaryDirectory(prefix="watershed-startup-") as name, PortClaims() as claims:
        folder = Path(name)
        folder.chmod(0o711)  # the server may run under another account
        ports = dict(zip(server.port_names, choose_ports(len(server.port_names), claims), strict=True))
        place = Place(folder / server.name, ports, new_state().identity, unprivileged_account(), cache)
        jvm = server.jvm(place)
        target = cache_file(server.name, jvm, cache)
        if target.exists():
            return True
        if jvm.major < JAVA_MAJOR_MIN:
            return False
        classes, made = place.own("startup") / "classes", place.own("startup") / "cache"
        command = server.recording(classes).prepare(place)
        _run_once(server, place, command)
        _create(command, [f"{_OPTION}Mode=create", f"{_OPTION}Configuration={classes}", f"{_OPTION}Cache={made}"])
        target.parent.mkdir(parents=True, exist_ok=True)
        for outdated in target.parent.glob(f"{server.name}-*.aot"):
            outdated.unlink(missing_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(made, partial)  # no link: that would stay the other account's
        partial.replace(target)
    return True


def _run_once(server: JavaServer, place: Place, command: Command) -> None:
    """To readiness and an orderly end, at which the recording is written."""
    keeper = Keeper()
    try:
        pid = keeper.spawn(command, bound=True)
        wait_until_ready(server, place, pid, 0, lambda: keeper.exit_code(pid), lambda: False)
        os.kill(pid, signal.SIGTERM)
        if not keeper.wait(pid, EXIT_TIMEOUT_S):
            raise StackError(f"{server.title} does not end", see_log(place.log))
    finally:
        keeper.close()


def _create(command: Command, create: Sequence[str]) -> None:
    program, *rest = command.argv
    kept = [word for word in rest if not word.startswith(_OPTION)]
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
    """Make both caches. A failure is told and is no failure of the set-up: servers only start more slowly."""
    from devstack.kafka import Kafka
    from devstack.opensearch import OpenSearch

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
