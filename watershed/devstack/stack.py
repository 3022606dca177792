"""The stack: any of PostgreSQL, Kafka, OpenSearch and Redis, native, in one folder.

    with Stack(folder) as stack:
        stack.start("postgres", "kafka")
        stack.endpoints.dsn, stack.endpoints.bootstrap_servers
        stack.kill("kafka"); stack.restart("kafka")

Servers of an owned stack end with the process that created it, however it ends. Those of a detached stack run until any
process calls `stop()`. `open_stack` opens one, or one in containers if the environment requests it.
"""

import os
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from cdc.model.errors import StackError
from spark_jobs.jars.resolver import default_cache, resolve_sets
from watershed.devstack import kafka, opensearch, postgres, redis
from watershed.devstack.endpoints import DEFAULT_PORTS, SERVICES, VARIABLES, Endpoints, ServerStack, given_addresses
from watershed.devstack.instance import (
    PortClaims,
    ServerInstance,
    choose_ports,
    is_free,
    make_home,
    servers_home,
    unprivileged_account,
)
from watershed.devstack.keeper import Keeper
from watershed.devstack.processes import Process, identify, runs, send, wait_until_gone, with_descendants
from watershed.devstack.server import Server, wait_until_ready
from watershed.devstack.state import STATE_FILE, FolderLock, StackState, new_state, read_state, take_lock

STOP_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class ServerStatus:
    service: str
    state: str  # running, stopped, died, given
    address: str | None
    pid: int | None
    log: Path | None
    superuser: str | None = None  # PostgreSQL's superuser, with its address


class Stack:
    """Servers in a folder. Thread-safe; calls wait for each other."""

    def __init__(
        self,
        folder: Path,
        *,
        postgres_version: int = 18,
        detached: bool = False,
        temporary: bool = False,
        cache: Path | None = None,
        progress: Console | None = None,
        given: Mapping[str, str] | None = None,
        default_ports: bool = False,
    ) -> None:
        """`temporary`: the folder is deleted at the end, also if the owner is killed. `given`: addresses of services
        that run already, by default those in the environment. `default_ports`: servers get the ports where clients
        expect them, instead of free ones.
        """
        self.folder = folder.absolute()
        self._postgres_version = postgres_version
        self._detached = detached
        self._temporary = temporary
        self._cache = cache or default_cache()
        self._progress = progress
        self._given = dict(given_addresses() if given is None else given)
        self._default_ports = default_ports
        self._calls = threading.RLock()
        self._writes = threading.Lock()
        self._folder_lock: FolderLock | None = None
        self._claims = PortClaims()
        self._keeper: Keeper | None = None
        self._state: StackState | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._detached:
            self.stop()

    def start(self, *services: str) -> Endpoints:
        """Starts the named services (all by default) that do not run yet, at the same time, and returns when each
        answers. Raises StackError after stopping the services that this call started.
        """
        wanted = [_server(name, self._postgres_version) for name in services or SERVICES if name not in self._given]
        with self._calls:
            if wanted:
                try:
                    self._launch(wanted, self._open())
                finally:
                    if self._detached:
                        self._close()
            return self.endpoints

    def kill(self, service: str) -> None:
        """Sends SIGKILL to the server and its descendants, and returns when they have ended. Data and ports stay."""
        with self._calls:
            family = with_descendants(self._process(service))
            for member in family:
                send(member, signal.SIGKILL)
            _await_end(service, family)

    def restart(self, service: str) -> Endpoints:
        """Stops the server if it runs, starts it again with the same ports and data, and waits until it answers."""
        with self._calls:
            self._open()
            self._stop_servers([self._ours(service)])
            return self.start(service)

    def stop(self) -> None:
        """Ends all servers. Data and ports stay, unless the stack is temporary."""
        with self._calls:
            try:
                if self._state or (self.folder / STATE_FILE).exists():
                    self._stop_servers(list(self._open().servers))
            finally:
                self._close()  # also ends the keeper, which erases temporary folders

    def erase(self) -> None:
        """Deletes the files of a stopped stack."""
        for folder in {servers_home(self.folder), self.folder}:
            shutil.rmtree(folder, ignore_errors=True)

    def pid(self, service: str) -> int:
        """Returns the pid of the server's main process. Raises StackError if it does not run."""
        return self._process(service).pid

    @property
    def endpoints(self) -> Endpoints:
        """The addresses of given services and of those that run."""
        places = {name: self._instance(name) for name in SERVICES if name not in self._given and self._running(name)}
        addresses = self._given | {name: _address(name, instance) for name, instance in places.items()}
        return Endpoints(addresses, postgres.superuser_dsn(places["postgres"]) if "postgres" in places else None)

    def status(self) -> list[ServerStatus]:
        return [self._status(service) for service in SERVICES]

    def _status(self, service: str) -> ServerStatus:
        if service in self._given:
            return ServerStatus(service, "given", None, None, None)  # no address: it may hold a password
        state = self._known()
        if state is None or service not in state.ports:
            return ServerStatus(service, "stopped", None, None, None)
        instance = self._instance(service)
        if process := self._running(service):
            superuser = postgres.superuser_dsn(instance) if service == "postgres" else None
            return ServerStatus(service, "running", _address(service, instance), process.pid, instance.log, superuser)
        return ServerStatus(service, "died" if service in state.servers else "stopped", None, None, instance.log)

    def _launch(self, wanted: Iterable[Server], state: StackState) -> None:
        starting = [server for server in wanted if not self._running(server.name)]
        if not starting:
            return
        make_home(self.folder, state.identity)
        resolve_sets(sorted({name for s in starting for name in s.jar_sets}), self._cache, self._progress)
        self._assign_ports(state, starting)
        self._keeper = self._keeper or self._new_keeper()
        try:
            self._start_all(starting, state)
        except BaseException:
            self._stop_servers([server.name for server in starting])
            raise
        if self._detached:
            self._keeper.release()
            self._keeper = None

    def _start_all(self, servers: Iterable[Server], state: StackState) -> None:
        """Starts each server in a thread. The first failure, or Ctrl-C, ends the other waits."""
        abandoned = threading.Event()
        with ThreadPoolExecutor(len(SERVICES)) as pool:
            try:
                for started in as_completed([pool.submit(self._start, s, state, abandoned) for s in servers]):
                    started.result()
            except BaseException:
                abandoned.set()
                raise

    def _start(self, server: Server, state: StackState, abandoned: threading.Event) -> None:
        instance = self._instance(server.name)
        for port in instance.ports.values():
            if not is_free(port):
                raise StackError(
                    f"port {port}, which belongs to {server.title} in this stack, is used by another process",
                    "end that process, or "
                    + ("leave out --default-ports" if self._default_ports else "use another --folder for the stack")
                    + ": then free ports are chosen",
                )
        command = server.prepare(instance)
        if abandoned.is_set():
            return
        log_start = instance.log.stat().st_size if instance.log.exists() else 0
        assert self._keeper
        keeper = self._keeper
        pid = keeper.spawn(command, bound=not self._detached)
        if process := identify(pid):
            with self._writes:
                state.servers[server.name] = process
                state.write(self.folder)
        wait_until_ready(server, instance, pid, log_start, lambda: keeper.exit_code(pid), abandoned.is_set)

    def _stop_servers(self, services: Iterable[str]) -> None:
        running = {name: process for name in services if (process := self._running(name))}
        families = {name: with_descendants(process) for name, process in running.items()}
        for name, process in running.items():
            send(process, _server(name, self._postgres_version).stop_signal)
        for name, family in families.items():
            if not wait_until_gone(family, STOP_TIMEOUT_S):
                for member in family:
                    send(member, signal.SIGKILL)
                _await_end(name, family)
        if self._state:
            for name in services:
                self._state.servers.pop(name, None)
            self._state.write(self.folder)

    def _assign_ports(self, state: StackState, servers: Iterable[Server]) -> None:
        """Chooses ports once and stores them, so that clients find a server at the same address after a restart. Raises
        StackError if a server has others than the default ones that are asked for."""
        for server in servers:
            if self._default_ports:
                self._take_default_ports(state, server)
            if server.name not in state.ports:
                taken = [port for ports in state.ports.values() for port in ports.values()]
                chosen = choose_ports(len(server.port_names), self._claims, taken)
                state.ports[server.name] = dict(zip(server.port_names, chosen, strict=True))
            for port in state.ports[server.name].values():
                self._claims.claim(port)  # a port of an earlier run: the start reports another process that uses it
        state.write(self.folder)

    def _take_default_ports(self, state: StackState, server: Server) -> None:
        ports = DEFAULT_PORTS[server.name]
        if state.ports.setdefault(server.name, dict(ports)) != ports:
            others = ", ".join(str(port) for port in state.ports[server.name].values())
            raise StackError(
                f"{server.title} in {self.folder} was started on port {others}, and keeps it",
                "leave out --default-ports, or use another --folder; `cdc stack down --erase` deletes this one's data",
            )

    def _open(self) -> StackState:
        """Locks the folder for this process. Raises StackError while another process has it."""
        if self._state is None:
            self._folder_lock = take_lock(self.folder)
            try:
                self._state = self._checked(read_state(self.folder) or new_state())
            except BaseException:
                self._close()
                raise
        return self._state

    def _checked(self, state: StackState) -> StackState:
        running = [name for name, process in state.servers.items() if runs(process)]
        if running and not self._detached:
            raise StackError(
                f"servers started with `cdc stack up` run in {self.folder}: {', '.join(running)}",
                "`cdc stack down`, or use another folder",
            )
        if "postgres" in running and state.postgres_version != self._postgres_version:
            raise StackError(
                f"PostgreSQL {state.postgres_version} runs in {self.folder}, not {self._postgres_version}",
                "`cdc stack down` first",
            )
        state.postgres_version = self._postgres_version
        return state

    def _new_keeper(self) -> Keeper:
        assert self._folder_lock
        # The keeper also holds the lock: if this process is killed, the folder is free when the servers have ended.
        keeper = Keeper(self._folder_lock.descriptor)
        if self._temporary:
            for folder in {servers_home(self.folder), self.folder}:
                keeper.erase_at_end(folder)
        return keeper

    def _close(self) -> None:
        if self._keeper:
            self._keeper.close()
            self._keeper = None
        self._state = None
        self._claims.release()
        if self._folder_lock:
            self._folder_lock.release()
            self._folder_lock = None

    def _known(self) -> StackState | None:
        return self._state or read_state(self.folder)

    def _running(self, service: str) -> Process | None:
        state = self._known()
        process = state.servers.get(service) if state else None
        return process if process and runs(process) else None

    def _process(self, service: str) -> Process:
        process = self._running(self._ours(service))
        if process is None:
            raise StackError(f"{service} is not running", "start it first")
        return process

    def _ours(self, service: str) -> str:
        if service in self._given:
            raise StackError(
                f"{service} is named by {VARIABLES[service]}, and does not belong to the stack",
                f"unset {VARIABLES[service]} to start one",
            )
        return service

    def _instance(self, service: str) -> ServerInstance:
        state = self._known()
        assert state
        return ServerInstance(
            folder=servers_home(self.folder) / service,
            ports=state.ports[service],
            identity=state.identity,
            unprivileged=unprivileged_account(),
            cache=self._cache,
        )


def _server(name: str, postgres_version: int) -> Server:
    match name:
        case "postgres":
            return postgres.Postgres(postgres_version)
        case "kafka":
            return kafka.Kafka()
        case "opensearch":
            return opensearch.OpenSearch()
        case "redis":
            return redis.Redis()
        case other:
            raise StackError(f"the stack has no {other!r}", f"choose from {', '.join(SERVICES)}")


def _address(service: str, instance: ServerInstance) -> str:
    match service:
        case "postgres":
            return postgres.dsn(instance)
        case "kafka":
            return kafka.bootstrap_servers(instance)
        case "opensearch":
            return opensearch.url(instance)
        case _:
            return redis.url(instance)


def _await_end(service: str, family: list[Process]) -> None:
    if not wait_until_gone(family):
        raise StackError(
            f"{service} (process {family[0].pid}) does not end, not even by SIGKILL", "check whether its disk hangs"
        )


KIND_VARIABLE = "WATERSHED_STACK"  # native (default) or docker


@contextmanager
def open_stack(
    folder: Path,
    *,
    postgres_version: int = 18,
    temporary: bool = False,
    progress: Console | None = None,
    given: Mapping[str, str] | None = None,
) -> Iterator[ServerStack]:
    """Yields servers that end with this block, and with this process however it ends. `given`: addresses of servers
    that run already, by default those that the environment names. Raises StackError.
    """
    addresses = given_addresses() if given is None else given
    match os.environ.get(KIND_VARIABLE, "native"):
        case "native":
            with Stack(
                folder, postgres_version=postgres_version, temporary=temporary, progress=progress, given=addresses
            ) as stack:
                yield stack
        case "docker":
            from watershed.devstack.docker import DockerStack, images

            with DockerStack(addresses, images(postgres_version)) as containers:
                yield containers
        case other:
            raise StackError(f"{KIND_VARIABLE} is {other!r}", "set it to native or docker, or unset it")
