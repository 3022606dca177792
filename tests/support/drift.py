"""Drift that somebody makes: rows of a store that are changed behind the back of its sink, beside a steady load."""

import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, LiteralString, Self

import psycopg
import redis as redis_client
from opensearchpy import OpenSearch
from psycopg import sql

from cdc.config.config_file import Config, load_config
from cdc.config.stores import CacheConfig, SearchConfig, SqlConfig, WarehouseConfig
from cdc.kafka.state_reader import read_position
from cdc.model.events import TableId, pack_version
from sinks.cache.keys import VERSION_DIGITS, CacheKeys, version_text
from sinks.search.contents import SearchContents
from sinks.search.names import SearchNames
from sinks.shaping.table import TableShape
from sinks.warehouse.catalog import catalog_place
from sinks.warehouse.engine import Conflict, Engine
from sinks.warehouse.naming import table_location
from sinks.warehouse.statements import full
from tests.support.captured import Captured
from tests.support.forked import run
from watershed.verify.model import DriftKind
from watershed.verify.verifier import read_schema_histories

GOODS: Final = "public.goods"
TABLE: Final = TableId("public", "goods")
SCHEMA: LiteralString = """
CREATE TABLE goods (id bigint PRIMARY KEY, name text NOT NULL, price numeric(12,2), seen timestamptz, note text);
"""
FILL: LiteralString = """
INSERT INTO goods SELECT n, 'name ' || n, n / 7.0, now(), repeat('ü', (n % 50)::int)
FROM generate_series(1, 2000) AS n
"""
KINDS: Final = (DriftKind.MISSING, DriftKind.EXTRA, DriftKind.STALE, DriftKind.WRONG, DriftKind.FUTURE)
CACHE_KINDS: Final = (*KINDS, DriftKind.LOOKUP)  # of a cache with the shapes below
OTHER: Final = 999  # a row that stays as it is, and that extra ones are made of
HOT: Final = 1_000  # rows from here on are changed by the load
STRANGERS: Final = 1_000_000  # ids that the source never has begin here
AHEAD: Final = 1_000_000_000  # versions


def shapes(prefix: str) -> dict[str, Any]:
    """The shapes of a cache in which each row has a lookup key."""
    return {GOODS: {"lookups": [_lookup(prefix, "{name}")]}}


def _lookup(prefix: str, name: str) -> str:
    return f"{prefix}/goods/{name}"


class Background(ABC):
    """A thread that works from entering to leaving."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(30.0)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_ended` is set."""


class Load(Background):
    """About `per_s` changes each second of `rows` rows that nobody else touches, from entering to leaving."""

    def __init__(self, dsn: str, per_s: int = 300, rows: int = 2 * HOT) -> None:
        super().__init__()
        self.changes = 0
        self._rows = rows
        self._dsn = dsn
        self._per_s = per_s

    def _run(self) -> None:
        dice, began = random.Random(23), time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(0.1):
                due = int((time.monotonic() - began) * self._per_s)
                while self.changes < due and not self._ended.is_set():
                    key = dice.randrange(HOT, HOT + self._rows)
                    if dice.random() < 0.1:
                        connection.execute("DELETE FROM goods WHERE id = %s", (key,))
                    else:
                        connection.execute(
                            "INSERT INTO goods VALUES (%s, %s, %s, now(), '') ON CONFLICT (id) DO UPDATE "
                            "SET name = excluded.name, price = excluded.price, seen = now()",
                            (key, f"load {self.changes}", dice.randrange(10_000) / 100),
                        )
                    self.changes += 1


def chosen(store: str, count: int, stores: Sequence[str]) -> dict[DriftKind, list[int]]:
    """For each kind of difference the ids of its rows, others for each store."""
    first = 101 + stores.index(store) * 200
    kinds = CACHE_KINDS if store == "cache" else KINDS
    ids = {kind: list(range(first + at * count, first + (at + 1) * count)) for at, kind in enumerate(kinds)}
    ids[DriftKind.EXTRA] = [STRANGERS + key for key in ids[DriftKind.EXTRA]]
    return ids


def inject(store: str, config: Config, ids: Mapping[DriftKind, Sequence[int]], engine: Callable[[], Engine]) -> None:
    """Change the store's rows. Names of stale and wrong rows differ; of the future ones every second."""
    position = read_position(config)
    assert position is not None
    old = pack_version(position.epoch, 1)
    ahead = pack_version(position.epoch, position.seq + AHEAD)
    match config.sinks[store]:
        case SearchConfig() as section:
            _search(section, config, ids, old, ahead)
        case CacheConfig() as section:
            _cache(section, config, ids, old, ahead)
        case WarehouseConfig() as section:
            _warehouse(section, config, ids, old, ahead, engine())
        case SqlConfig() as section:
            _sql(section, config, ids, old, ahead)


def _search(
    section: SearchConfig, config: Config, ids: Mapping[DriftKind, Sequence[int]], old: int, ahead: int
) -> None:
    index = SearchNames(config.topics.prefix).alias(TABLE)
    contents = SearchContents.open(section, config.topics.prefix, "search")
    contents.attach(TableShape("search", section, read_schema_histories(config)[TABLE]).schema)
    with OpenSearch([section.url.get_secret_value()]) as client:

        def put(key: int, version: int, **changed: Any) -> None:
            wanted = [{"_index": index, "_id": str(number)} for number in (key, OTHER)]
            found: Any = [one.get("_source") for one in client.mget(body={"docs": wanted})["docs"]]
            body = (found[0] or found[1] | {"id": key}) | changed | {"ws_version": version, "ws_deleted": False}
            kind: Any = {"version": version, "version_type": "external_gte"}
            client.index(index=index, id=str(key), body=body, params=kind)

        keys = [{"id": key} for key in (*ids[DriftKind.STALE], *ids[DriftKind.WRONG])]
        held = {key["id"]: found for key, found in zip(keys, contents.held(TABLE, keys), strict=True) if found}
        for key in ids[DriftKind.MISSING]:
            client.delete(index=index, id=str(key))
        for key in ids[DriftKind.EXTRA]:
            put(key, old)
        for key in ids[DriftKind.WRONG]:
            put(key, held[key].version, name="wrong")
        for key in ids[DriftKind.FUTURE]:
            put(key, ahead + key, **({"name": "ahead"} if key % 2 else {}))
        stale = {key: dict(held[key].row or {}) for key in ids[DriftKind.STALE]}
        contents.remove(TABLE, [({"id": key}, held[key].version) for key in stale])
        for key, row in stale.items():
            put(key, old, **row | {"name": "stale"})
        client.indices.refresh(index=index)
    contents.close()


def _cache(section: CacheConfig, config: Config, ids: Mapping[DriftKind, Sequence[int]], old: int, ahead: int) -> None:
    versions = CacheKeys(config.topics.prefix).table(TABLE)
    with redis_client.Redis.from_url(section.url.get_secret_value(), decode_responses=True) as client:

        def put(key: int, version: int | None, **changed: Any) -> None:
            known: Any = client.hget(f"{versions}{key}", "doc")
            other: Any = client.hget(f"{versions}{OTHER}", "doc")
            row = json.loads(known) if known else json.loads(other) | {"id": key}
            document = json.dumps(row | changed, ensure_ascii=False)
            client.hset(f"{versions}{key}", mapping={"v": version_text(version or 0), "doc": document})
            if version is not None:
                entry: Any = client.hget(versions, str(key)) or ""
                client.hset(versions, str(key), version_text(version) + entry[VERSION_DIGITS:])

        for key in ids[DriftKind.MISSING]:
            client.delete(f"{versions}{key}")
        for key in ids[DriftKind.EXTRA]:
            put(key, old if key % 2 else None)  # or a key of which the sink knows nothing
        for key in ids[DriftKind.STALE]:
            put(key, old, name="stale")
        for key in ids[DriftKind.WRONG]:
            held: Any = client.hget(versions, str(key))
            put(key, int(held[:VERSION_DIGITS]), name="wrong")
        for key in ids[DriftKind.FUTURE]:
            put(key, ahead + key, **({"name": "ahead"} if key % 2 else {}))

        for key in ids[DriftKind.LOOKUP]:
            name = _lookup(config.topics.prefix, f"name {key}")
            match key % 3:
                case 0:
                    client.delete(name)
                case 1:
                    client.set(name, str(OTHER))
                case _:
                    client.set(_lookup(config.topics.prefix, f"stray {key}"), str(key))


def _sql(section: SqlConfig, config: Config, ids: Mapping[DriftKind, Sequence[int]], old: int, ahead: int) -> None:
    versions = sql.Identifier(section.beginning(config.topics.prefix), f"versions:{GOODS}")
    listed = {kind: list(keys) for kind, keys in ids.items()}
    with psycopg.connect(section.url.get_secret_value()) as connection:  # one transaction
        connection.execute("DELETE FROM goods WHERE id = ANY(%s)", (listed[DriftKind.MISSING],))
        connection.execute("INSERT INTO goods SELECT unnest(%s::bigint[]), 'x', 1", (listed[DriftKind.EXTRA],))
        statement = sql.SQL("INSERT INTO {} SELECT k, %s FROM unnest(%s::bigint[]) AS k WHERE k %% 2 = 1")
        connection.execute(
            statement.format(versions), (old, listed[DriftKind.EXTRA])
        )  # of the others the sink knows nothing
        connection.execute("UPDATE goods SET name = 'stale' WHERE id = ANY(%s)", (listed[DriftKind.STALE],))
        connection.execute("UPDATE goods SET name = 'wrong' WHERE id = ANY(%s)", (listed[DriftKind.WRONG],))
        statement = sql.SQL("UPDATE {} SET version = %s WHERE k0 = ANY(%s)")
        connection.execute(statement.format(versions), (old, listed[DriftKind.STALE]))
        statement = sql.SQL("UPDATE {} SET version = %s + k0 WHERE k0 = ANY(%s)")
        connection.execute(statement.format(versions), (ahead, listed[DriftKind.FUTURE]))
        connection.execute(
            "UPDATE goods SET name = 'ahead' WHERE id = ANY(%s) AND id %% 2 = 1", (listed[DriftKind.FUTURE],)
        )


def _warehouse(
    section: WarehouseConfig,
    config: Config,
    ids: Mapping[DriftKind, Sequence[int]],
    old: int,
    ahead: int,
    engine: Engine,
) -> None:
    table = full(table_location(catalog_place(section, config.topics.prefix).namespace, TABLE).rows)

    def listed(kind: DriftKind) -> str:
        return ", ".join(map(str, ids[kind]))

    extra = ", ".join(f"({key}, 'x', 1.00, NULL, NULL, {old})" for key in ids[DriftKind.EXTRA])
    statements = [
        f"DELETE FROM {table} WHERE id IN ({listed(DriftKind.MISSING)})",
        f"INSERT INTO {table} (id, name, price, seen, note, ws_version) VALUES {extra}",
        f"UPDATE {table} SET name = 'stale', ws_version = {old} WHERE id IN ({listed(DriftKind.STALE)})",
        f"UPDATE {table} SET name = 'wrong' WHERE id IN ({listed(DriftKind.WRONG)})",
    ]
    if ids[DriftKind.FUTURE]:
        name = "CASE WHEN id % 2 = 1 THEN 'ahead' ELSE name END"
        statements.append(
            f"UPDATE {table} SET ws_version = {ahead} + id, name = {name} WHERE id IN ({listed(DriftKind.FUTURE)})"
        )
    for statement in statements:
        for attempt in range(20):
            try:
                engine.run(statement)
                break
            except Conflict:
                assert attempt < 19, statement


def command(captured: Captured, *words: str, deadline_s: float = 280.0) -> tuple[int, dict[str, Any]]:
    """`cdc verify` or `cdc repair` with --json: its exit code, and what it found."""
    done = run([*words, "--json", "--config", str(captured.config())], deadline_s=deadline_s)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def found(report: Mapping[str, Any], sink: str) -> dict[str, list[int]]:
    """Kind → ids of the rows that differ, rising."""
    by_kind: dict[str, list[int]] = {}
    for table in report["tables"]:
        assert not table["not_compared"], table["not_compared"]
        if table["sink"] == sink:
            for one in table["differences"]:
                # The key of a row, or a lookup key that ends with an id.
                key = one["key"]
                number = json.loads(key)["id"] if key.startswith("{") else int(key.rsplit(" ", 1)[1])
                by_kind.setdefault(one["kind"], []).append(number)
    return {kind: sorted(keys) for kind, keys in by_kind.items()}


def wanted(ids: Mapping[DriftKind, Sequence[int]]) -> dict[str, list[int]]:
    return {kind.value: sorted(keys) for kind, keys in ids.items() if keys}


def loaded(captured: Captured) -> Config:
    return load_config(captured.config())
