"""A column of one of six tables gets another name in four stores: only this table is built again, the objects of the
others stay what they are, and readers see changes of all six meanwhile."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pytest
import redis as redis_client
from opensearchpy import OpenSearch
from psycopg import sql

from cdc.config.config_file import load_config
from cdc.kafka.compacted import read_latest
from cdc.model.events import TableId
from cdc.model.job_records import RebuildRecord
from cdc.model.topics import Topics
from sinks.warehouse.catalog import CatalogPlace
from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.sink_job import SinkJob, sink_record
from tests.support.waiting import eventually

pytestmark = [pytest.mark.whole, pytest.mark.long]

NAMES: Final = tuple(f"t{number}" for number in range(1, 7))
CHANGED: Final = "t6"
ROWS: Final = 10_000  # of the changed table: its build takes some seconds
SINKS: Final = ("search", "cache", "sql", "warehouse")
SCHEMA: Final = "".join(
    f"CREATE TABLE {name} (id int PRIMARY KEY, n bigint NOT NULL DEFAULT 0, note text);" for name in NAMES
)
FILL: Final = "INSERT INTO {} SELECT i, 0, 'note ' || i FROM generate_series(1, {}) AS i"
COUNT_UP: Final = "UPDATE {} SET n = n + 1 WHERE id = 1"


@dataclass
class Stores:
    """Six tables under capture, and four stores of them."""

    captured: Captured
    search: str
    cache: str
    target: str
    place: CatalogPlace

    def row(self, sink: str, table: str) -> dict[str, Any]:
        """Returns row 1 as readers see it."""
        match sink:
            case "search":
                with OpenSearch(self.search) as client:
                    body = {"query": {"ids": {"values": ["1"]}}}
                    hits = client.search(index=f"{self.captured.name}.public.{table}", body=body)["hits"]["hits"]
                return {} if not hits else dict(hits[0]["_source"])
            case "cache":
                with redis_client.Redis.from_url(self.cache, decode_responses=True) as client:
                    return dict(json.loads(str(client.hget(f"{self.captured.name}:public.{table}:1", "doc") or "{}")))
            case "sql":
                with psycopg.connect(self.target) as connection:
                    query = sql.SQL("SELECT to_jsonb(r) FROM public.{} AS r WHERE id = 1")
                    found = connection.execute(query.format(sql.Identifier(table))).fetchone()
                return {} if found is None else dict(found[0])
            case _:
                with self.place.opened() as catalog:
                    held = catalog.load_table(self.place.place(TableId("public", table)).rows)
                    found_rows = held.scan(row_filter="id = 1").to_arrow().to_pylist()
                return {} if not found_rows else dict(found_rows[0])

    def count(self, sink: str, table: str) -> int:
        match sink:
            case "search":
                with OpenSearch(self.search) as client:
                    return int(client.count(index=f"{self.captured.name}.public.{table}")["count"])
            case "cache":
                with redis_client.Redis.from_url(self.cache) as client:
                    versions: Any = client.hgetall(f"{self.captured.name}:public.{table}:")
                return sum(not key.startswith(b"\0") for key in versions)
            case "sql":
                with psycopg.connect(self.target) as connection:
                    query = sql.SQL("SELECT count(*) FROM public.{}").format(sql.Identifier(table))
                    return int((connection.execute(query).fetchone() or (0,))[0])
            case _:
                with self.place.opened() as catalog:
                    held = catalog.load_table(self.place.place(TableId("public", table)).rows)
                    return int(held.scan(selected_fields=("id",)).to_arrow().num_rows)

    def identity(self, sink: str, table: str) -> str:
        """Returns what identifies the object that readers see."""
        match sink:
            case "search":
                with OpenSearch(self.search) as client:
                    (found,) = client.indices.get(index=f"{self.captured.name}.public.{table}").values()
                return str(found["settings"]["index"]["uuid"])
            case "sql":
                with psycopg.connect(self.target) as connection:
                    found_oid = connection.execute("SELECT to_regclass(%s)::oid", (f"public.{table}",)).fetchone()
                return str(found_oid)
            case _:
                with self.place.opened() as catalog:
                    name = self.place.place(TableId("public", table)).rows
                    return str(catalog.load_table(name).metadata.table_uuid)

    def indexes(self) -> set[str]:
        with OpenSearch(self.search) as client:
            return set(client.indices.get(index=f"{self.captured.name}.public.*", params={"allow_no_indices": "true"}))

    def is_whole(self, sink: str) -> bool:
        try:
            return all(self.count(sink, name) == (ROWS if name == CHANGED else 20) for name in NAMES)
        except Exception:  # noqa: BLE001 - each store's client has an error of its own for a table that is not there yet
            return False

    def request(self, sink: str) -> RebuildRecord | None:
        topic = Topics(self.captured.name).progress
        kafka = load_config(self.captured.folder / "watershed.yml").kafka
        value = read_latest(kafka, topic).get(RebuildRecord.key_of(sink))
        return None if value is None else RebuildRecord.decode(value, sink)

    def generation(self, sink: str) -> int:
        record = sink_record(load_config(self.captured.folder / "watershed.yml"), sink)
        return 0 if record is None else record.generation


@pytest.fixture(scope="module")
def stores(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, opensearch: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stores]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("mapping")
    tables = [f"public.{table}" for table in NAMES]
    with (
        new_database(postgres) as target,
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, SCHEMA, tables) as captured,
    ):
        captured.settings = {
            "sinks": {
                "search": {"url": opensearch},
                "cache": {"url": redis},
                "sql": {"type": "sql", "url": url_of(target)},
                "warehouse": {
                    "catalog_uri": f"jdbc:sqlite:{folder}/warehouse/catalog.db",
                    "location": f"{folder}/warehouse/tables",
                },
            },
            "spark": {
                "checkpoint_location": str(folder / "checkpoints"),
                "warehouse_trigger_ms": 500,
                "options": INTERPRETED,
            },
        }
        for table in NAMES:
            rows = ROWS if table == CHANGED else 20
            captured.query(sql.SQL(FILL).format(sql.Identifier(table), sql.Literal(rows)))
        captured.query("ANALYZE")
        captured.start()
        place = CatalogPlace(folder / "warehouse/catalog.db", (folder / "warehouse/tables").as_uri(), name)
        yield Stores(captured, opensearch, redis, target, place)
    with OpenSearch(opensearch) as client:
        client.indices.delete(index=f"{name}.*")


@pytest.mark.parametrize("sink", SINKS)
def test_one_table_is_built_again_and_readers_see_changes_of_all_six_meanwhile(stores: Stores, sink: str) -> None:
    captured, is_swapped = stores.captured, sink != "cache"
    with SinkJob(captured.config(), sink) as job:
        eventually(lambda: stores.is_whole(sink), 240.0, "the store is filled")
        captured.await_caught_up()
        job.wait_applied(captured.progress(), sink)
    before = {name: stores.identity(sink, name) for name in NAMES} if is_swapped else {}
    generation, indexes = stores.generation(sink), stores.indexes()
    captured.settings["sinks"][sink]["mapping"] = {f"public.{CHANGED}": {"rename": {"note": "remark"}}}

    (said,) = builds(captured)
    assert said.startswith("builds public.t6 again (its mapping has changed)") and "5 other tables stay" in said
    meanwhile = "kept up to date" if is_swapped else "each row is written again where it is"
    assert meanwhile in said and f"about {ROWS:,} rows" in said and ("as much again" in said) == is_swapped

    written = stores.row(sink, CHANGED)["n"]
    fresh = 0  # changes that readers of the changed table saw before it was built again
    with SinkJob(captured.config(), sink) as job:

        def look() -> bool:
            """Writes to the changed table and to another one, and waits until readers see both."""
            nonlocal written, fresh
            for name in (CHANGED, "t1"):
                captured.query(sql.SQL(COUNT_UP).format(sql.Identifier(name)))
            written += 1
            is_done = (one := stores.request(sink)) is not None and one.status == "done"
            seen: list[dict[str, Any]] = []

            def is_fresh() -> bool:
                seen[:] = [stores.row(sink, name) for name in (CHANGED, "t1")]
                return all(row.get("n", -1) >= written for row in seen)

            eventually(is_fresh, 120.0, lambda: f"readers see write {written}: {seen}")
            fresh += "note" in seen[0]
            return is_done

        eventually(look, 240.0, lambda: f"the table is built: {stores.request(sink)}")
        captured.await_caught_up()
        job.wait_applied(captured.progress(), sink)
        row, request = stores.row(sink, CHANGED), stores.request(sink)
        assert (row["remark"], row["n"], "note" in row) == ("note 1", written, False)
        assert stores.row(sink, "t1")["note"] == "note 1" and stores.is_whole(sink)
        assert request is not None and request.tables == (f"public.{CHANGED}",)
        assert stores.generation(sink) > generation
        code, _ = job.terminate()
        assert (code, "Traceback" in job.said()) == (0, False), job.said()
    if is_swapped:
        assert fresh > 0
        assert [name for name in NAMES if before[name] != stores.identity(sink, name)] == [CHANGED]
    count = 1 if sink == "search" else 0
    assert (len(stores.indexes() - indexes), len(indexes - stores.indexes())) == (count, count)
    assert builds(captured) == []


def builds(captured: Captured) -> list[str]:
    """What `cdc check` says of tables that will be built."""
    findings = json.loads(captured.cdc("check", "--json"))["findings"]
    return [one["message"] for one in findings if one["message"].startswith("builds")]
