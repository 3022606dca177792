"""The addresses of the servers, including those that run already and are named in the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cdc.model.errors import StackError

# Service → the environment variable with the address of a server that runs already.
VARIABLES = {
    "postgres": "WATERSHED_DSN",
    "kafka": "WATERSHED_KAFKA",
    "opensearch": "WATERSHED_OPENSEARCH",
    "redis": "WATERSHED_REDIS",
}
SERVICES = tuple(VARIABLES)
# Service → port's name → the port where clients expect it.
DEFAULT_PORTS = {
    "postgres": {"postgres": 5432},
    "kafka": {"kafka": 9092, "controller": 9093},
    "opensearch": {"http": 9200, "transport": 9300},
    "redis": {"redis": 6379},
}


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of the services that run; the address of any other raises StackError."""

    addresses: Mapping[str, str]
    superuser: str | None = None  # the DSN of the native PostgreSQL's superuser

    @property
    def dsn(self) -> str:
        """The DSN of a role that owns its database and may replicate, or the DSN from the environment."""
        return self._address("postgres")

    @property
    def superuser_dsn(self) -> str:
        return self.superuser or self.dsn

    @property
    def bootstrap_servers(self) -> str:
        return self._address("kafka")

    @property
    def opensearch_url(self) -> str:
        return self._address("opensearch")

    @property
    def redis_url(self) -> str:
        return self._address("redis")

    def _address(self, service: str) -> str:
        if service not in self.addresses:
            raise StackError(f"{service} is not running", f"start it, or name one in {VARIABLES[service]}")
        return self.addresses[service]


class ServerStack(Protocol):
    """The interface of a stack, native or in containers."""

    def start(self, *services: str) -> Endpoints:
        """Starts the named services (all by default) that do not run yet, and returns when each answers. Raises
        StackError.
        """

    def kill(self, service: str) -> None:
        """Sends SIGKILL, and returns when the server has ended. Data and address stay. Raises StackError for a server
        that the stack did not start, or that does not run.
        """

    def restart(self, service: str) -> Endpoints:
        """Stops the server if it runs, starts it with the same address and data, and waits until it answers."""

    def stop(self) -> None:
        """Ends all servers."""

    @property
    def endpoints(self) -> Endpoints:
        """The addresses of given services and of those that run."""


def given_addresses(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the addresses of services that the environment names. Those are never started, stopped or killed."""
    return {service: value for service, name in VARIABLES.items() if (value := environ.get(name))}
