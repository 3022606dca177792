"""The stores that the conformance cases run against. A new sink is one function and one line in STORES."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest
import redis
from msgspec import structs
from opensearchpy import OpenSearch
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr
from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import URL

from cdc.config.store_shapes import CacheShape, SearchShape, SqlShape
from cdc.config.stores import CacheConfig, SearchConfig, SqlConfig, StoreConfig
from cdc.model.events import TableId
from docs.examples.jsonlines.jsonlines_store import JsonLinesConfig, JsonLinesSink
from sinks.cache.sink import CacheSink
from sinks.contract import Change, Sink
from sinks.search.sink import SearchSink
from sinks.sql.sink import SqlSink
from tests.conformance.warehouse_store import (
    warehouse,
    warehouse_by_statements,
    warehouse_in_postgresql,
    warehouse_in_rest,
)
from tests.support.elasticsearch import elasticsearch_face
from tests.support.redis_cluster import cluster_client

if TYPE_CHECKING:
    pass


class Store(Protocol):
    """A store on the real server, empty at first, and what a test does to it behind the sink's back."""

    nested_arrays: bool  # takes arrays of more than one dimension; else it refuses such a row
    exact_json: bool  # rows() gives the record's JSON values, not Python values of the column's type
    tells_stale: bool  # apply() tells stale changes from written ones
    has_slots: bool  # it can hold a generation beside the one that readers see
    history_count: int  # random histories that it stands in about ten seconds
    writer_count: int  # that write at once
    batch_rows: int  # of the big batch
    batch_memory_bytes_max: int | None  # Python memory to apply the big batch; None where it is the JVM's

    def open(self, slot: str | None = None) -> Sink:
        """Another Sink object on this store. The test closes it. `slot`: that of a generation that readers do not
        see."""

    def rename(self, names: Mapping[str, str]) -> None:
        """Let the shapes of the sinks that are opened from now on name columns as a mapping has renamed them."""

    def delete_table(self, table: TableId) -> None:
        """Delete the table's object, whatever the sink made for it."""

    def delete_all(self) -> None:
        """Delete everything of this store."""

    def unholdable(self, change: Change) -> tuple[Change, str] | None:
        """The change of CUSTOMERS with a value that this store refuses, and the column; None if it takes all."""


class SearchStore:
    nested_arrays = True
    exact_json = True
    tells_stale = True
    has_slots = True
    history_count = 12
    writer_count = 3
    batch_rows = 5_000
    batch_memory_bytes_max: int | None = 32 * 1024 * 1024

    def __init__(
        self, url: str, prefix: str, shapes: dict[str, SearchShape] | None = None, face: str | None = None
    ) -> None:
        """`face`: the address that the sink gets, if another one: of a front in this process, whose memory counts."""
        if face is not None:
            self.batch_memory_bytes_max = None
        self._shapes = shapes or {}
        self._config = SearchConfig(url=SecretStr(face or url), shapes=self._shapes)
        self._prefix = prefix
        self._client = OpenSearch(url, timeout=60)

    @property
    def section(self) -> tuple[StoreConfig, str]:
        """With the topic prefix, for a sink in another process."""
        return self._config, self._prefix

    def open(self, slot: str | None = None) -> Sink:
        return SearchSink.open(self._config, self._prefix, slot=slot)

    def delete_table(self, table: TableId) -> None:
        is_shaped = bool(self._config.shapes)
        name = f"own.{table.name}.rows" if is_shaped else f"{table.schema}.{table.name}.documents"
        self._client.indices.delete(index=f"{self._prefix}.{name}")

    def delete_all(self) -> None:
        self._client.indices.delete(index=f"{self._prefix}.*")

    def unholdable(self, change: Change) -> tuple[Change, str] | None:
        assert change.row is not None
        return structs.replace(change, row=change.row | {"is_active": "sesame"}), "is_active"

    def rename(self, names: Mapping[str, str]) -> None:
        shapes = {
            pattern: SearchShape.model_validate_json(_renamed(shape.model_dump_json(by_alias=True), names))
            for pattern, shape in self._shapes.items()
        }
        self._config = SearchConfig(url=self._config.url, shapes=shapes)

    def close(self) -> None:
        self.delete_all()
        self._client.close()


class CacheStore:
    nested_arrays = True
    exact_json = True
    tells_stale = True
    has_slots = True
    history_count = 20
    writer_count = 4
    batch_rows = 5_000
    batch_memory_bytes_max: int | None = 32 * 1024 * 1024

    def __init__(self, url: str, prefix: str, shapes: dict[str, CacheShape] | None = None) -> None:
        self._shapes = shapes or {}
        self._config = CacheConfig(url=SecretStr(url), shapes=self._shapes)
        self._shaped = prefix  # what templates of `shapes` begin with
        # Characters that mean something in a SCAN pattern: keys of other prefixes must not be met.
        self._prefix = f"{prefix}[a-z]*"
        self._client: Any = redis.Redis.from_url(url) if not self._config.in_cluster else cluster_client(url)

    @property
    def section(self) -> tuple[StoreConfig, str]:
        """As SearchStore."""
        return self._config, self._prefix

    def open(self, slot: str | None = None) -> Sink:
        return CacheSink.open(self._config, self._prefix, slot=slot)

    def rename(self, names: Mapping[str, str]) -> None:
        shapes = {
            pattern: CacheShape.model_validate_json(_renamed(shape.model_dump_json(by_alias=True), names))
            for pattern, shape in self._shapes.items()
        }
        self._config = CacheConfig(url=self._config.url, shapes=shapes)

    def delete_table(self, table: TableId) -> None:
        name = f"{table.schema}.{table.name}"
        self._delete(f"{self._prefix}:{{{name}}}" if self._config.in_cluster else f"{self._prefix}:{name}")
        self._delete(f"{self._shaped}/{table.name}/")

    def delete_all(self) -> None:
        self._delete(self._prefix)
        self._delete(self._shaped)

    def unholdable(self, change: Change) -> tuple[Change, str] | None:
        del change
        return None

    def close(self) -> None:
        self.delete_all()
        self._client.close()

    def lookups(self, table: TableId) -> dict[str, str]:
        """Returns what the lookup keys of `cache-lookups` and `cache-cluster` hold, by the value that they name."""
        tag = f"{{{table}}}" if self._config.in_cluster else ""
        beginning = f"{self._shaped}/{table.name}/by/{tag}".encode()
        keys = [key for key in self._client.scan_iter(count=1000) if key.startswith(beginning)]
        held: list[Any] = []
        for start in range(0, len(keys), 1000):
            held += self._client.mget(keys[start : start + 1000])
        return {key[len(beginning) :].decode(): value.decode() for key, value in zip(keys, held, strict=True)}

    def _delete(self, beginning: str) -> None:
        keys = [key for key in self._client.scan_iter(count=1000) if key.startswith(beginning.encode())]
        if keys:
            self._client.delete(*keys)


class SqlStore:
    nested_arrays = True
    exact_json = False
    tells_stale = True
    has_slots = True
    history_count = 12
    writer_count = 4
    batch_rows = 5_000
    batch_memory_bytes_max: int | None = 32 * 1024 * 1024

    def __init__(self, url: str, shapes: dict[str, SqlShape] | None = None) -> None:
        self._url = url
        self._shapes = shapes or {}
        self._config = SqlConfig(url=SecretStr(url), shapes=self._shapes)
        self._is_sqlite = url.startswith("sqlite")
        self._engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    @property
    def section(self) -> tuple[StoreConfig, str]:
        """As SearchStore."""
        return self._config, "shop"

    def open(self, slot: str | None = None) -> Sink:
        return SqlSink.open(self._config, "shop", slot=slot or "")

    def rename(self, names: Mapping[str, str]) -> None:
        shapes = {
            pattern: shape.model_copy(
                update={
                    "types": {names.get(column, column): kind for column, kind in shape.types.items()},
                    "indexes": tuple(tuple(names.get(column, column) for column in one) for one in shape.indexes),
                }
            )
            for pattern, shape in self._shapes.items()
        }
        self._config = SqlConfig(url=SecretStr(self._url), shapes=shapes)

    def delete_table(self, table: TableId) -> None:
        place = f'"{table.schema}_{table.name}"' if self._is_sqlite else f'"{table.schema}"."{table.name}"'
        if self._shapes:
            place = f'"own"."rows of {table.name}"'
        with self._engine.begin() as connection:
            connection.exec_driver_sql(f"DROP TABLE {place}")

    def delete_all(self) -> None:
        with self._engine.begin() as connection:
            if self._is_sqlite:
                quoted = connection.dialect.identifier_preparer.quote_identifier
                for name in inspect(connection).get_table_names():
                    connection.exec_driver_sql(f"DROP TABLE {quoted(name)}")
                return
            for name in inspect(connection).get_schema_names():
                if name != "information_schema":
                    connection.exec_driver_sql(f'DROP SCHEMA "{name}" CASCADE')

    def unholdable(self, change: Change) -> tuple[Change, str] | None:
        assert change.row is not None
        return structs.replace(change, row=change.row | {"is_active": "sesame"}), "is_active"

    def close(self) -> None:
        self.delete_all()
        self._engine.dispose()


class JsonLinesStore:
    """The example of the documentation."""

    nested_arrays = True
    exact_json = True
    tells_stale = True
    has_slots = False
    history_count = 4
    writer_count = 2
    batch_rows = 300
    batch_memory_bytes_max: int | None = 64 * 1024 * 1024

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, slot: str | None = None) -> Sink:
        assert slot is None
        return JsonLinesSink.open(JsonLinesConfig(folder=str(self._folder)), "shop")

    def rename(self, names: Mapping[str, str]) -> None:
        """It has no shapes."""

    def delete_table(self, table: TableId) -> None:
        (self._folder / "shop" / f"{table.schema}.{table.name}.jsonl").unlink()

    def delete_all(self) -> None:
        for path in (self._folder / "shop").iterdir():
            path.unlink()

    def unholdable(self, change: Change) -> tuple[Change, str] | None:
        del change
        return None


def url_of(dsn: str) -> str:
    """A database's address as the SQL sink takes it."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    host = parts.get("host", "")
    query = {"host": host} if host.startswith("/") else {}
    return URL.create(
        "postgresql",
        parts.get("user"),
        parts.get("password"),
        None if query else host,
        int(parts["port"]) if "port" in parts else None,
        parts["dbname"],
        query,
    ).render_as_string(hide_password=False)


def _renamed(shapes: str, names: Mapping[str, str]) -> str:
    """Shapes as JSON, with other columns in templates and mappings."""
    for old, new in names.items():
        shapes = shapes.replace(f"{{{old}}}", f"{{{new}}}").replace(f'"{old}":{{', f'"{new}":{{')
    return shapes


@contextmanager
def _search(
    request: pytest.FixtureRequest, unique: str, shapes: dict[str, SearchShape] | None = None
) -> Iterator[Store]:
    store = SearchStore(request.getfixturevalue("opensearch"), unique, shapes)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _elasticsearch(request: pytest.FixtureRequest, unique: str) -> Iterator[Store]:
    """Elasticsearch's API in front of OpenSearch; fails a test whose requests Elasticsearch would refuse as such."""
    url = request.getfixturevalue("opensearch")
    with elasticsearch_face(url) as face:
        store = SearchStore(url, unique, face=face.url)
        try:
            yield store
        finally:
            store.close()
        assert face.violations == []


_NAMES: Final[dict[str, Any]] = {"alias": "{prefix}.own.{table}", "index": "{prefix}.own.{table}.rows"}
SEARCH_SHAPES: Final = {
    "public.customers": SearchShape(
        **_NAMES,
        id="customer-{id}",
        mapping={"name": {"analyzer": "own"}},
        settings={"number_of_shards": 2, "analysis": {"analyzer": {"own": {"type": "custom", "tokenizer": "letter"}}}},
    ),
    "public.order_lines": SearchShape(**_NAMES, id="{line_no}-{order_id}", routing="{order_id}"),
    "public.pairs": SearchShape(**_NAMES, id="{left}:{right}", routing="{right}", settings={"number_of_shards": 3}),
    "*": SearchShape(**_NAMES, json="text"),
}


@contextmanager
def _cache(
    request: pytest.FixtureRequest, unique: str, shapes: Callable[[str], dict[str, CacheShape]] | None = None
) -> Iterator[Store]:
    yield from _cache_at(request.getfixturevalue("redis"), unique, shapes)


@contextmanager
def _cache_cluster(
    request: pytest.FixtureRequest, unique: str, shapes: Callable[[str], dict[str, CacheShape]]
) -> Iterator[Store]:
    yield from _cache_at(request.getfixturevalue("redis_cluster").url, unique, shapes)


def _cache_at(url: str, unique: str, shapes: Callable[[str], dict[str, CacheShape]] | None) -> Iterator[Store]:
    store = CacheStore(url, unique, shapes(unique) if shapes else None)
    try:
        yield store
    finally:
        store.close()


def _json_shapes(unique: str) -> dict[str, CacheShape]:
    """Plain JSON under the default keys, with values of type json and jsonb in it as they are."""
    del unique
    return {"*": CacheShape(value="json", json="object")}


def _column_shapes(unique: str) -> dict[str, CacheShape]:
    """A field for each column, under keys of the users' choice where there is a template."""
    keys = {
        "customers": "{id}",
        "order_lines": "{order_id}-{line_no}",  # numbers with a minus
        "labels": "{name}",
        "pairs": "{left}:{right}/end",
        "measures": "{of} {at}",
    }
    named = {
        f"public.{name}": CacheShape(key=f"{unique}/{name}/{key}", value="columns", ttl_s=86_400)
        for name, key in keys.items()
    }
    return named | {"*": CacheShape(value="columns")}


def _lookup_shapes(unique: str, tag: str = "") -> dict[str, CacheShape]:
    """`tag`: goes before the values, with the table's name in the place of TABLE."""
    templates = {"customers": ("{id}", "{token}"), "order_lines": ("{line_no}:{order_id}", "{remark}")}
    shapes = {}
    for name, (key, lookup) in templates.items():
        tagged = tag.replace("TABLE", f"public.{name}")
        lookups = (f"{unique}/{name}/by/{tagged}{lookup}",)
        shapes[f"public.{name}"] = CacheShape(key=f"{unique}/{name}/key/{tagged}{key}", lookups=lookups)
    return shapes


@contextmanager
def _sql(request: pytest.FixtureRequest, unique: str, shapes: dict[str, SqlShape] | None = None) -> Iterator[Store]:
    with closing(SqlStore(request.getfixturevalue("sql_database"), shapes)) as store:
        yield store


@contextmanager
def _sqlite(request: pytest.FixtureRequest, unique: str) -> Iterator[Store]:
    folder: Path = request.getfixturevalue("tmp_path")
    with closing(SqlStore(f"sqlite:///{folder}/{unique}.db")) as store:
        yield store


@contextmanager
def _jsonlines(request: pytest.FixtureRequest, unique: str) -> Iterator[Store]:
    folder: Path = request.getfixturevalue("tmp_path")
    yield JsonLinesStore(folder / unique)


_SQL_SHAPES: Final = {
    "public.customers": SqlShape(
        table="own.rows of {table}",
        types={"visits": "bigint", "name": "varchar", "token": "text"},
        indexes=(("name", "visits"), ("level",)),
    ),
    "*": SqlShape(table="own.rows of {table}"),
}


# Sink → its store. `unique` is a name that no other test has; fixtures of servers come through `request`.
STORES: Final[dict[str, Callable[[pytest.FixtureRequest, str], AbstractContextManager[Store]]]] = {
    "search": _search,
    "search-shaped": partial(_search, shapes=SEARCH_SHAPES),
    "search-elasticsearch": _elasticsearch,
    "cache": _cache,
    "cache-json": partial(_cache, shapes=_json_shapes),
    "cache-columns": partial(_cache, shapes=_column_shapes),
    "cache-lookups": partial(_cache, shapes=_lookup_shapes),
    "cache-cluster": partial(_cache_cluster, shapes=partial(_lookup_shapes, tag="{{TABLE}}")),
    "sql": _sql,
    "sql-shaped": partial(_sql, shapes=_SQL_SHAPES),
    "sql-sqlite": _sqlite,
    "jsonlines": _jsonlines,
    "warehouse": warehouse,
    "warehouse-statements": warehouse_by_statements,
    "warehouse-rest": warehouse_in_rest,
    "warehouse-postgresql": warehouse_in_postgresql,
}
# Their cases differ from another store's in one part only, which `test_warehouse_catalogs.py` covers in each run.
LONG: Final = frozenset({"warehouse-statements", "warehouse-rest", "warehouse-postgresql", "cache-cluster"})
