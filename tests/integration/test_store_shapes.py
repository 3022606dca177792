"""Two set-ups as teams have them, filled by `cdc sink run` and read by the stores' plain clients: a product search, and
a cache of users and sessions."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis as redis_client
from opensearchpy import OpenSearch

from tests.conftest import KafkaBroker
from tests.support.feed import Feed
from tests.support.sink_job import SinkJob, write_config

PRODUCTS = {
    "id": (20, "bigint"),
    "sku": (25, "text"),
    "name": (25, "text"),
    "price": (1700, "numeric(10,2)"),
    "attributes": (3802, "jsonb"),
    "variants": (3802, "jsonb"),
    "shop_at": (600, "point"),
}
USERS = {"id": (20, "bigint"), "email": (25, "text"), "name": (25, "text")}
SESSIONS = {"token": (2950, "uuid"), "user_id": (20, "bigint"), "is_admin": (16, "boolean")}
RIGHTS = {"user_id": (20, "bigint"), "role": (25, "text"), "until": (1082, "date")}
SEARCH_SHAPES: dict[str, Any] = {
    "public.products": {
        "alias": "{prefix}-products",
        "id": "{sku}",
        "mapping": {
            "name": {"analyzer": "product"},
            "variants": {
                "type": "nested",
                "properties": {"size": {"type": "keyword"}, "stock": {"type": "integer"}},
            },
        },
        "settings": {
            "number_of_shards": 2,
            "analysis": {
                "filter": {"words": {"type": "synonym", "synonyms": ["bike, bicycle"]}},
                "analyzer": {
                    "product": {
                        "type": "custom",
                        "tokenizer": "standard",
                        "filter": ["lowercase", "asciifolding", "words"],
                    }
                },
            },
        },
    }
}


def cache_shapes(name: str) -> dict[str, Any]:
    """Keys begin with a name of their own: the server is shared."""
    return {
        "public.users": {
            "key": f"{name}/user:{{id}}",
            "value": "json",
            "ttl_s": 3600,
            "lookups": [f"{name}/user:by_email:{{email}}"],
        },
        "public.sessions": {"key": f"{name}/session:{{token}}", "value": "columns", "ttl_s": 600},
        "public.rights": {
            "key": f"{name}/rights:{{user_id}}:{{role}}",
            "mode": "invalidate",
            "stream": f"{name}/invalidated",
        },
    }


@dataclass
class SetUp:
    """The job, what feeds its topics, and plain clients."""

    name: str
    feed: Feed
    job: SinkJob
    search: OpenSearch
    redis: Any

    def applied(self) -> None:
        """Wait until both stores show what was committed."""
        self.job.wait_applied(self.feed.progress(), "search", "cache")

    def found(self, query: dict[str, Any]) -> list[str]:
        hits = self.search.search(index=f"{self.name}-products", body={"query": query})["hits"]["hits"]
        return sorted(hit["_id"] for hit in hits)

    def get(self, key: str) -> Any:
        return self.redis.get(f"{self.name}/{key}")


@pytest.fixture(scope="module")
def set_up(
    kafka: KafkaBroker, opensearch: str, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SetUp]:
    name = f"t{secrets.token_hex(5)}"
    sinks = {
        "search": {"url": opensearch, "shapes": SEARCH_SHAPES, "exclude_tables": [f"public.{t}" for t in CACHED]},
        "cache": {"url": redis, "shapes": cache_shapes(name), "exclude_tables": ["public.products"]},
    }
    tables = ["public.products", *(f"public.{table}" for table in CACHED)]
    folder = tmp_path_factory.mktemp("shapes")
    config = write_config(folder, kafka.bootstrap_servers, name, sinks, tables)
    feed = Feed(kafka.bootstrap_servers, name)
    client = OpenSearch(opensearch, timeout=60)
    with SinkJob(config, "search", "cache") as job, redis_client.Redis.from_url(redis, decode_responses=True) as plain:
        yield SetUp(name, feed, job, client, plain)
    client.indices.delete(index=f"{name}*")
    client.close()


CACHED = ("users", "sessions", "rights")
ANN: dict[str, Any] = {"id": 42, "email": "ann@example.org", "name": "Ann"}
TOKEN = "123e4567-e89b-12d3-a456-426614174000"


def test_the_stores_are_filled(set_up: SetUp) -> None:
    feed = set_up.feed
    feed.add_table("products", PRODUCTS, ["sku"])
    for table, columns, key in (
        ("users", USERS, ["id"]),
        ("sessions", SESSIONS, ["token"]),
        ("rights", RIGHTS, ["user_id", "role"]),
    ):
        feed.add_table(table, columns, key)
    feed.begin()
    feed.upsert(
        "products",
        id=1,
        sku="b-1",
        name="Velo: a red Bicycle",
        price="499.90",
        attributes='{"color": "red", "frame": {"size": 56}}',
        variants='[{"size": "M", "stock": 0}, {"size": "L", "stock": 3}]',
        shop_at="(8.54,47.37)",
    )
    feed.upsert(
        "products",
        id=2,
        sku="h-1",
        name="Hélmet",
        price="89.00",
        attributes='{"color": "blue"}',
        variants='[{"size": "M", "stock": 5}]',
        shop_at="(2.35,48.86)",
    )
    feed.upsert(
        "products", id=3, sku="x-1", name="gone soon", price="1.00", attributes=None, variants=None, shop_at=None
    )
    feed.upsert("users", **ANN)
    feed.upsert("users", id=43, email="bob@example.org", name="Bob")
    feed.upsert("sessions", token=TOKEN, user_id=42, is_admin=False)
    feed.upsert("rights", user_id=42, role="editor", until=None)
    feed.delete("products", sku="x-1")
    feed.commit()
    set_up.applied()
    assert set_up.found({"match_all": {}}) == ["b-1", "h-1"]
    assert set_up.search.count(index=f"{set_up.name}-products")["count"] == 2


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"match": {"name": "bike"}}, ["b-1"]),
        ({"match": {"name": "helmet"}}, ["h-1"]),
        ({"term": {"attributes.color": "red"}}, ["b-1"]),
        ({"term": {"attributes.frame.size": "56"}}, ["b-1"]),
        ({"range": {"price": {"gt": 89, "lt": 499.901}}}, ["b-1"]),
        ({"geo_distance": {"distance": "10km", "shop_at": {"lat": 48.86, "lon": 2.35}}}, ["h-1"]),
    ],
)
def test_products_are_found(set_up: SetUp, query: dict[str, Any], found: list[str]) -> None:
    assert set_up.found(query) == found


def test_nested_values_belong_together(set_up: SetUp) -> None:
    """Size M is there and stock is there, but not of the same variant."""

    def variant(size: str) -> dict[str, Any]:
        filters = [{"term": {"variants.size": size}}, {"range": {"variants.stock": {"gt": 0}}}]
        return {"nested": {"path": "variants", "query": {"bool": {"filter": filters}}}}

    assert set_up.found(variant("L")) == ["b-1"]
    assert set_up.found(variant("M")) == ["h-1"]


def test_a_get_by_the_products_own_id_has_plain_values(set_up: SetUp) -> None:
    source = set_up.search.get(index=f"{set_up.name}-products", id="b-1")["_source"]
    assert source["price"] == 499.9 and source["attributes"] == {"color": "red", "frame": {"size": 56}}


def test_users_and_sessions_are_plain_values_that_expire(set_up: SetUp) -> None:
    assert json.loads(set_up.get("user:42")) == ANN
    assert set_up.get("user:by_email:ann@example.org") == "42"
    session = set_up.redis.hgetall(f"{set_up.name}/session:{TOKEN}")
    assert session == {"token": TOKEN, "user_id": "42", "is_admin": "false"}
    for key in ("user:42", "user:by_email:ann@example.org", f"session:{TOKEN}"):
        assert 0 < set_up.redis.ttl(f"{set_up.name}/{key}") <= 3600


def test_an_email_that_moves_to_another_user_is_found_there(set_up: SetUp) -> None:
    feed = set_up.feed
    feed.begin()
    feed.upsert("users", **ANN | {"email": "ann@example.com"})
    feed.upsert("users", id=43, email="ann@example.org", name="Bob")
    feed.commit()
    set_up.applied()
    assert set_up.get("user:by_email:ann@example.org") == "43"
    assert set_up.get("user:by_email:ann@example.com") == "42"
    assert set_up.get("user:by_email:bob@example.org") is None
    feed.begin()
    feed.delete("users", id=42)
    feed.commit()
    set_up.applied()
    assert set_up.get("user:42") is set_up.get("user:by_email:ann@example.com") is None


def test_what_applications_cached_of_an_invalidated_table_goes_with_its_change(set_up: SetUp) -> None:
    names = [f"{set_up.name}/rights:42:{role}" for role in ("editor", "reader")]
    set_up.redis.mset(dict.fromkeys(names, "cached by an application"))
    set_up.feed.begin()
    set_up.feed.upsert("rights", user_id=42, role="editor", until="2026-01-31")
    set_up.feed.commit()
    set_up.applied()
    assert [set_up.redis.exists(name) for name in names] == [0, 1]
    reported = [fields["key"] for _, fields in set_up.redis.xrange(f"{set_up.name}/invalidated")]
    assert reported == [names[0]] * 2, "one entry for each change"
    internal = [key for key in set_up.redis.scan_iter(count=1000) if key.startswith(f"{set_up.name}/")]
    expected = {names[1], *(f"{set_up.name}/{key}" for key in ("user:43", "user:by_email:ann@example.org"))}
    assert set(internal) == expected | {f"{set_up.name}/session:{TOKEN}", f"{set_up.name}/invalidated"}
