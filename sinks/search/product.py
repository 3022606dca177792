"""The product that answers, OpenSearch or Elasticsearch, with its version, and what differs between them. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from sinks.errors import RefusedError

# Major versions for which the sink is made, see docs/reference/search.md for which of them are tested on a server.
SUPPORTED: Final[Mapping[str, tuple[int, ...]]] = {"OpenSearch": (2, 3), "Elasticsearch": (8, 9)}
# The first versions whose points in time, by which the sink reads an index, have the form that it uses.
_FIRST: Final[Mapping[str, tuple[int, int]]] = {"OpenSearch": (2, 4), "Elasticsearch": (8, 0)}
# Elasticsearch still answers with the line that OpenSearch replaced when it began.
_ELASTICSEARCH_TAGLINE: Final = "You Know, for Search"


class Product(NamedTuple):
    """What answers at an address."""

    name: str
    number: str  # such as 3.8.0
    is_serverless: bool = False

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Self:
        """Returns the product that gave this answer to GET /."""
        version = info.get("version")
        version = version if isinstance(version, dict) else {}
        is_elasticsearch = info.get("tagline") == _ELASTICSEARCH_TAGLINE and version.get("distribution") is None
        return cls(
            "Elasticsearch" if is_elasticsearch else "OpenSearch",
            str(version.get("number", "")),
            version.get("build_flavor") == "serverless",
        )

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version; (0, 0) if the server names none."""
        parts = [int(part) for part in re.findall(r"[0-9]+", self.number)[:2]]
        return (parts[0], parts[1]) if len(parts) == 2 else (0, 0)

    @property
    def is_elasticsearch(self) -> bool:
        return self.name == "Elasticsearch"

    @property
    def is_supported(self) -> bool:
        return self.version[0] in SUPPORTED[self.name] and self.version >= _FIRST[self.name]

    def check(self) -> None:
        """Raises RefusedError for a product that lacks what the sink needs. A later version than those that are
        supported is no error."""
        if self.is_serverless:
            raise RefusedError(
                f"{self.name} Serverless is not supported: it has no statistics of shards, by which the sink notices "
                "that an index lost rows",
                "use a hosted or a self-managed cluster",
            )
        if self.number and self.version < _FIRST[self.name]:
            first = ".".join(map(str, _FIRST[self.name]))
            raise RefusedError(
                f"{self.name} {self.number} is not supported: the sink needs {first} or later",
                "update the cluster"
                if self.is_elasticsearch
                else "update the cluster; one that is newer hides its version: unset compatibility."
                "override_main_response_version",
            )

    def __str__(self) -> str:
        return f"{self.name} {self.number or 'of an unknown version'}"


def supported_versions() -> str:
    """Returns the products with their major versions, as a sentence names them."""
    return ", ".join(f"{name} {' and '.join(map(str, majors))}" for name, majors in SUPPORTED.items())
