"""A table for the search sink's own tests, and what cleans up after them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from opensearchpy import OpenSearch
from pydantic import SecretStr

from cdc.config.stores import SearchConfig
from cdc.model.events import Column, TableId, TableSchema
from sinks.contract import Change
from sinks.retries import Retries
from sinks.search.server import SearchServer
from sinks.search.sink import SearchSink

QUICK = Retries(attempt_count_max=3, delay_s_first=0.01)
TABLE = TableId("public", "products")
SCHEMA = TableSchema(
    table=TABLE,
    version=1,
    oid=16_400,
    columns=(
        Column("id", 20, -1, "bigint", False),
        Column("name", 25, -1, "text", True),
        Column("price", 1700, -1, "numeric", True),
        Column("added_at", 1184, -1, "timestamp with time zone", True),
        Column("is_active", 16, -1, "boolean", True),
        Column("tags", 1009, -1, "text[]", True),
        Column("token", 2950, -1, "uuid", True),
        Column("attributes", 3802, -1, "jsonb", True),
    ),
    key=("id",),
    topic="shop.public.products",
)


def upsert(key: int, version: int, **values: object) -> Change:
    row = {column.name: values.get(column.name) for column in SCHEMA.columns} | {"id": key}
    return Change(TABLE, {"id": key}, version, row, 1)


def delete(key: int, version: int) -> Change:
    return Change(TABLE, {"id": key}, version, None, 1)


@dataclass(frozen=True)
class Place:
    """A prefix of its own on the shared OpenSearch."""

    url: str
    prefix: str
    client: OpenSearch

    @property
    def alias(self) -> str:
        return f"{self.prefix}.public.products"

    def open(self, retries: Retries = QUICK) -> SearchSink:
        return SearchSink.open(SearchConfig(url=SecretStr(self.url)), self.prefix, retries)

    def server(self) -> SearchServer:
        return SearchServer(SearchConfig(url=SecretStr(self.url)), QUICK)

    def find(self, query: dict[str, object]) -> list[int]:
        """Ids that a reader finds."""
        hits = self.client.search(index=self.alias, body={"query": query, "size": 100})["hits"]["hits"]
        return sorted(hit["_source"]["id"] for hit in hits)


@pytest.fixture
def place(opensearch: str, unique: str) -> Iterator[Place]:
    client = OpenSearch(opensearch, timeout=60)
    yield Place(opensearch, unique, client)
    client.indices.delete(index=f"{unique}*")
    client.close()


@pytest.fixture
def sink(place: Place) -> Iterator[SearchSink]:
    made = place.open()
    made.begin_generation(1)
    made.prepare(SCHEMA)
    yield made
    made.close()
