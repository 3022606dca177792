"""The stack's servers in containers, if `WATERSHED_STACK=docker` requests it and a Docker engine answers.

For tests: testcontainers' own watcher removes the containers when this process ends. The host's ports are
chosen here, so that a server keeps its address after a restart.
"""

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from cdc.model.errors import StackError
from watershed.devstack import kafka, opensearch, postgres, redis
from watershed.devstack.endpoints import SERVICES, Endpoints
from watershed.devstack.instance import HOST, PortClaims, choose_ports
from watershed.devstack.server import POLL_S

START_TIMEOUT_S = 180.0  # an image may have to be pulled before


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    port: int
    address: str  # with {port} for the host's port
    answers: Callable[[str], object]  # takes the address; true when the server is ready, may raise anything before
    environment: Mapping[str, str] = field(default_factory=dict)  # values may have {port}
    command: tuple[str, ...] = ()


def images(postgres_version: int) -> dict[str, Image]:
    """Returns the images of the services."""
    return {
        "postgres": _postgres(postgres_version),
        "kafka": _kafka(),
        "opensearch": _opensearch(),
        "redis": _redis(),
    }


def _postgres(version: int) -> Image:
    ours = {"unix_socket_directories", "dynamic_shared_memory_type"}  # settings for a server outside of a container
    settings = [word for k, v in postgres.SETTINGS.items() if k not in ours for word in ("-c", f"{k}={v}")]
    return Image(
        f"postgres:{version}",
        5432,
        f"postgresql://{postgres.ROLE}@{HOST}:{{port}}/{postgres.DATABASE}",  # the image makes the role a superuser
        postgres.connects,
        {
            "POSTGRES_HOST_AUTH_METHOD": "trust",
            "POSTGRES_USER": postgres.ROLE,
            "POSTGRES_DB": postgres.DATABASE,
        },
        ("postgres", *settings),
    )


def _kafka() -> Image:
    settings = kafka.SETTINGS | {
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{{port}}",
    }
    environment = {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()}
    return Image("apache/kafka:4.3.1", 9092, f"{HOST}:{{port}}", kafka.has_brokers, environment)


def _opensearch() -> Image:
    environment = {
        "discovery.type": "single-node",
        "DISABLE_SECURITY_PLUGIN": "true",
        "DISABLE_INSTALL_DEMO_CONFIG": "true",
        "action.auto_create_index": "false",
        "OPENSEARCH_JAVA_OPTS": "-Xms512m -Xmx512m",
    }
    image = f"opensearchproject/opensearch:{opensearch.VERSION}"
    return Image(image, 9200, f"http://{HOST}:{{port}}", opensearch.is_healthy, environment)


def _redis() -> Image:
    command = ("redis-server", "--save", "", "--appendonly", "yes", "--appendfsync", "no")
    return Image("redis:7", 6379, f"redis://{HOST}:{{port}}/0", redis.server_pid, command=command)


class DockerStack:
    """Runs `Servers` in containers, one for each service."""

    def __init__(self, given: Mapping[str, str], images: Mapping[str, Image]) -> None:
        self._given = dict(given)
        self._images = images
        self._containers: dict[str, Any] = {}  # the library is imported when it is needed, so it has no types here
        self._addresses: dict[str, str] = {}
        self._claims = PortClaims()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *services: str) -> Endpoints:
        for service in services or SERVICES:
            if service in self._given or service in self._addresses:
                continue
            if service not in self._containers:
                self._run(service)
            self._await(service)
        return self.endpoints

    def kill(self, service: str) -> None:
        self._container(service).get_wrapped_container().kill()
        self._addresses.pop(service, None)

    def restart(self, service: str) -> Endpoints:
        self._container(service).get_wrapped_container().restart()
        self._await(service)
        return self.endpoints

    def stop(self) -> None:
        while self._containers:
            _, container = self._containers.popitem()
            container.stop()
        self._addresses.clear()
        self._claims.release()

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(self._given | self._addresses)

    def _run(self, service: str) -> None:
        image = self._images[service]
        (port,) = choose_ports(1, self._claims)
        container = _library().DockerContainer(image.name).with_bind_ports(image.port, port)
        for name, value in image.environment.items():
            container.with_env(name, value.format(port=port))
        if image.command:
            container.with_command(list(image.command))
        self._containers[service] = container
        try:
            container.start()
        except Exception as error:  # the library lets through whatever the engine's client raises
            raise StackError(
                f"the container {image.name} can't be started: {error}", "check that `docker info` answers"
            ) from error

    def _await(self, service: str) -> None:
        image, container = self._images[service], self._container(service)
        address = image.address.format(port=container.get_exposed_port(image.port))
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(image, address):
            if time.monotonic() > deadline:
                raise StackError(f"{image.name} does not answer on {address}", "see `docker logs` of its container")
            time.sleep(POLL_S)
        self._addresses[service] = address

    def _container(self, service: str) -> Any:
        if service not in self._containers:
            raise StackError(f"{service} is not running in a container of this stack", "start it first")
        return self._containers[service]


def _answers(image: Image, address: str) -> bool:
    try:
        return bool(image.answers(address))
    except Exception:  # noqa: BLE001 - any failure of a client's library means "not ready"
        return False


def _library() -> Any:
    try:
        return importlib.import_module("testcontainers.core.container")
    except ImportError as error:
        raise StackError("the package testcontainers is not installed", "pip install 'testcontainers>=4,<5'") from error
