"""Where the servers are, and which of them run already and are only named in the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cdc.model.errors import StackError

# Service → the variable that names one that runs already.
VARIABLES = {
    "postgres": "WATERSHED_DSN",
    "kafka": "WATERSHED_KAFKA",
    "opensearch": "WATERSHED_OPENSEARCH",
    "redis": "WATERSHED_REDIS",
}
SERVICES = tuple(VARIABLES)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of the services that run; asking for another raises StackError."""

    addresses: Mapping[str, str]
    superuser: str | None = None  # the native PostgreSQL's superuser

    @property
    def dsn(self) -> str:
        """A role that owns its database and may replicate; given by the environment, whatever role that names."""
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


class Servers(Protocol):
    """What a stack can do, native or in containers."""

    def start(self, *services: str) -> Endpoints:
        """Start what is named (all, if nothing is) and does not run yet; return when each answers. Raises
        StackError."""

    def kill(self, service: str) -> None:
        """SIGKILL; returns when it is gone. Data and address stay. Raises StackError if it is not ours or is down."""

    def restart(self, service: str) -> Endpoints:
        """Stop it if it runs, start it on the same address and data, and wait until it answers."""

    def stop(self) -> None:
        """End all servers."""

    @property
    def endpoints(self) -> Endpoints:
        """Addresses of what is given and of what runs."""


def given_addresses(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Services that the environment names. They are used and never started, stopped or killed."""
    return {service: value for service, name in VARIABLES.items() if (value := environ.get(name))}
