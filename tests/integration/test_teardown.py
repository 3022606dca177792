"""`cdc teardown --stores` removes what the sinks have made, and nothing that others made: seen by plain clients."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
import redis as redis_client
from opensearchpy import OpenSearch
from pyiceberg.catalog.sql import SqlCatalog

from cdc.config.config_file import load_config
from cdc.model.events import TableId, TableSchema
from cdc.model.topics import Topics
from cdc.postgres.catalog import read_table, schema_of
from cdc.postgres.connection import connect
from sinks.contract import Change
from sinks.registry import make_sink
from sinks.warehouse.properties import DELETED_KEYS, GENERATION
from tests.conformance.stores import url_of
from tests.conftest import PostgresServer, new_database
from tests.support.captured import Captured
from tests.support.forked import run

ITEMS: Final = TableId("public", "items")
OTHERS: Final = "someone"


@dataclass
class Stores:
    """Stores that sinks have filled, and things in them that are somebody else's."""

    items: Captured
    search: OpenSearch
    cache: redis_client.Redis
    sql: psycopg.Connection
    folder: Path

    def teardown(self, *words: str, code: int = 0) -> str:
        done = run(["teardown", *words, "--config", str(self.items.config())], deadline_s=120.0)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def left(self) -> dict[str, list[str]]:
        """The names of everything that a plain client finds of this test."""
        name, found = self.items.name, self.search.indices.get(index=f"*{self.items.name}*", expand_wildcards="all")
        tables = self.sql.execute(
            "SELECT schemaname || '.' || tablename FROM pg_tables"
            " WHERE schemaname !~ '^(pg_|information_schema)' ORDER BY 1"
        ).fetchall()
        with closing(self.catalog()) as catalog:
            lake = [".".join(one) for ns in catalog.list_namespaces() for one in self._tables(catalog, ns)]
        files = sorted({path.parent.name for path in (self.folder / "tables").rglob("*.parquet")})
        return {
            "search": sorted(found),
            "cache": sorted(key.decode() for key in self.cache.scan_iter(f"*{name}*")),
            "sql": [row[0] for row in tables],
            "warehouse": sorted(lake),
            "files": files,
        }

    def catalog(self) -> SqlCatalog:
        return SqlCatalog(
            "watershed", uri=f"sqlite:///{self.folder}/catalog.db", warehouse=f"file://{self.folder}/tables"
        )

    def _tables(self, catalog: SqlCatalog, namespace: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield from catalog.list_tables(namespace)
        for inner in catalog.list_namespaces(namespace):
            yield from self._tables(catalog, inner)


@pytest.fixture
def stores(items: Captured, postgres: PostgresServer, opensearch: str, redis: str, tmp_path: Path) -> Iterator[Stores]:
    with new_database(postgres) as dsn:
        name = items.name
        items.settings = {
            "sinks": {
                "search": {"url": opensearch},
                "cache": {
                    "url": redis,
                    "shapes": {"*": {"key": f"item:{name}:{{id}}", "lookups": [f"{name}@{{name}}"]}},
                },
                "sql": {"url": url_of(dsn)},
                "warehouse": {"catalog_uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "location": f"{tmp_path}/tables"},
            }
        }
        search, cache = OpenSearch([opensearch]), redis_client.Redis.from_url(redis)
        with search, cache, psycopg.connect(dsn, autocommit=True) as sql:
            made = Stores(items, search, cache, sql, tmp_path)
            _fill(made)
            yield made
            search.indices.delete(index=f"*{name}*", ignore_unavailable=True)
            for key in cache.scan_iter(f"*{name}*"):
                cache.delete(key)


def _fill(stores: Stores) -> None:
    config = load_config(stores.items.config())
    with connect(config.source) as connection:
        schema = schema_of(read_table(connection, ITEMS, None), None, Topics(config.topics.prefix))
    changes = [Change(ITEMS, {"id": n}, n, {"id": n, "name": f"n{n}"}, schema.version) for n in range(1, 4)]
    changes.append(Change(ITEMS, {"id": 9}, 9, None, None))
    for name in ("search", "cache", "sql"):
        with closing(make_sink(name, config.sinks[name], config.topics.prefix)) as sink:
            sink.begin_generation(1)
            sink.prepare(schema)
            sink.apply(changes)
            sink.make_readable([ITEMS])
    prefix = config.topics.prefix
    stores.search.indices.create(index=f"{prefix}.public.{OTHERS}")
    stores.cache.set(f"{prefix}.{OTHERS}", "x")
    stores.sql.execute(f"CREATE TABLE public.{OTHERS} (x int)".encode())
    _fill_warehouse(stores, prefix, schema)


def _fill_warehouse(stores: Stores, prefix: str, schema: TableSchema) -> None:
    """Tables as the sink names and marks them, and another one beside them."""
    rows = pa.table({"id": pa.array([1], pa.int32())})
    with closing(stores.catalog()) as catalog:
        kept = f"{prefix}__g1"  # a generation that a rebuild has left
        for namespace in ((prefix,), (prefix, "public"), (prefix, "public__deleted"), (kept,), (kept, "public")):
            catalog.create_namespace(namespace)
        marks: dict[tuple[str, ...], dict[str, str]] = {
            (prefix, "public", "items"): {GENERATION: "1"},
            (prefix, "public__deleted", "items"): {DELETED_KEYS: "1"},
            (kept, "public", "items"): {GENERATION: "1"},
            (prefix, "public", OTHERS): {},
        }
        for name, properties in marks.items():
            catalog.create_table(name, rows.schema, properties=properties).append(rows)
    assert schema.key == ("id",)


def test_stores_are_emptied_of_what_is_ours_alone(stores: Stores) -> None:
    name, before = stores.items.name, stores.left()
    assert f"{name}.public.items.documents" in before["search"]
    assert f"item:{name}:1" in before["cache"]
    assert f"{name}@n1" in before["cache"]
    assert "public.items" in before["sql"]

    reported = json.loads(stores.teardown("--stores", "--dry-run", "--json"))
    assert (reported["is_complete"], reported["is_dry_run"]) == (True, True)
    steps: dict[str, Any] = {step["what"]: step["outcome"] for step in reported["steps"]}
    assert steps[f"replication slot {name}"] == "is not there"
    assert "3 rows of public.items would be removed" in steps["store of sink cache"]
    for sink, thing in (("search", f"{name}.public.items.documents"), ("sql", "public.items"), ("warehouse", "items")):
        assert thing in steps[f"store of sink {sink}"], steps
    stores.teardown("--stores", code=1)
    assert stores.left() == before, "neither a dry run nor an unanswered question removes anything"

    stores.sql.execute("CREATE VIEW public.of_items AS SELECT * FROM public.items")
    message = stores.teardown("--stores", "--yes", code=6)
    assert "error: store of sink sql: " in message
    assert "next: drop what depends on the sink's tables, such as views" in message
    only_others = {
        "search": [f"{name}.public.{OTHERS}"],
        "cache": [f"{name}.{OTHERS}"],
        "sql": [f"public.{OTHERS}"],
        "warehouse": [f"{name}.public.{OTHERS}"],
        "files": ["data"],
    }
    assert stores.left() == only_others | {"sql": before["sql"]}, "what can't be emptied stays whole"

    stores.sql.execute("DROP VIEW public.of_items")
    again = json.loads(stores.teardown("--stores", "--yes", "--json"))
    nothing = "holds nothing that Watershed created"
    outcomes = [step["outcome"] for step in again["steps"][2:]]
    assert (outcomes[:2], outcomes[3], "public.items" in outcomes[2]) == ([nothing, nothing], nothing, True)
    assert stores.left() == only_others
