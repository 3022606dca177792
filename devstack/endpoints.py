"""Where the servers are, and which of them run already and are only named in the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cdc.errors import StackError

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


def given_addresses(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Services that the environment names. They are used and never started, stopped or killed."""
    return {service: value for service, name in VARIABLES.items() if (value := environ.get(name))}
