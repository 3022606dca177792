"""Columns that are dropped, and added with a constant, under four running stores: rows are published again only for
tables of which a store needs them, and every store has the source's rows, also one that is filled later."""

import json
import secrets
from collections.abc import Iterator
from typing import Any, Final

import pytest
from opensearchpy import OpenSearch
from psycopg import sql

from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

# Who holds them: the SQL store; this and the warehouse; all four.
SOME, MORE, ALL = "public.some", "public.more", "public.everywhere"
TABLES: Final = (SOME, MORE, ALL)
SINKS: Final = ("search", "cache", "sql", "warehouse")
LATE: Final = "late"
ROWS: Final = 50
SCHEMA: Final = "".join(
    f"CREATE TABLE {table} (id int PRIMARY KEY, gone text, name text DEFAULT 'n');"
    f"INSERT INTO {table} SELECT n, 'secret ' || n FROM generate_series(1, {ROWS}) AS n;"
    for table in TABLES
)
DROP: Final = "ALTER TABLE {} DROP COLUMN gone"
ADD: Final = """
ALTER TABLE {} ADD COLUMN level numeric(6,2) DEFAULT 7.50, ADD COLUMN tags text[] DEFAULT '{{"a%b",NULL}}',
  ADD COLUMN since timestamptz DEFAULT now(), ADD COLUMN later text
"""


@pytest.fixture
def captured(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, opensearch: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Captured]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("altered")
    with (
        new_database(postgres) as target,
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, SCHEMA, list(TABLES)) as made,
    ):
        made.settings = {
            "sinks": {
                "search": {"url": opensearch, "tables": [ALL]},
                "cache": {"url": redis, "tables": [ALL]},
                "sql": {"type": "sql", "url": url_of(target)},
                "warehouse": {
                    "tables": [MORE, ALL],
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
        # The test's own record of what happens names the columns.
        for table in TABLES:
            made.query(sql.SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(_identifier(table)))
        made.start()
        yield made
    with OpenSearch(opensearch) as client:
        client.indices.delete(index=f"{name}.*")


def _identifier(table: str) -> sql.Identifier:
    return sql.Identifier(*table.split("."))


def test_rows_are_published_again_only_where_a_store_needs_them(captured: Captured) -> None:
    def requests() -> dict[str, str]:
        """Returns why each table was read last, "" while it is being read."""
        return {table: "" if r["status"] == "running" else r["request"] for table, r in captured.snapshots().items()}

    def alter(statement: str) -> None:
        for table in TABLES:
            captured.query(sql.SQL(statement).format(_identifier(table)))

    def read(expected: dict[str, str]) -> None:
        """Until the tables were read for these reasons, and the stores have the rows."""
        eventually(lambda: requests() == expected, 90.0, lambda: str(requests()))
        captured.await_caught_up()
        job.wait_applied(captured.progress(), *SINKS)
        eventually(lambda: not owed(), 60.0, lambda: str(owed()))

    def owed() -> dict[str, Any]:
        return {sink: record.owed for sink in SINKS if (record := job.record(sink)) is not None and record.owed}

    def verified(*sinks: str) -> None:
        words = [word for sink in sinks for word in ("--sink", sink)]
        found = run(["verify", *words, "--json", "--config", str(captured.config())], deadline_s=240.0)
        assert found.returncode == 0, found.stdout + found.stderr

    checked = json.loads(captured.cdc("check", "--json"))["findings"]
    said = {one["message"] for one in checked if one["about"] == "snapshot.after_alter"}
    assert f"after DROP COLUMN in {SOME}, {MORE} no row is published again" in said
    assert f"after ADD COLUMN with a constant default in {SOME} no row is published again" in said

    with SinkJob(captured.config(), *SINKS) as job:
        eventually(lambda: all(map(requests().get, TABLES)), 90.0, lambda: str(requests()))
        first = requests()
        read(first)
        count = len(captured.changes())

        alter(DROP)
        captured.running().await_said("earlier records stay as they are", times=2)
        read(first | {ALL: "column gone was dropped"})
        verified(*SINKS)
        assert len(captured.changes()) == count + ROWS, "rows of one table"

        # Rows that are written before the catalog is looked at again announce the columns by the stream.
        alter(ADD)
        for table in TABLES:
            captured.query(sql.SQL("UPDATE {} SET level = NULL WHERE id = 1").format(_identifier(table)))
        why = "column level was added with a default"
        read(first | {MORE: why, ALL: why})
        verified(*SINKS)
        assert len(captured.changes()) == count + 3 * ROWS + 3, "rows of one table, then of two, and three changes"
        job.terminate()

    captured.settings["sinks"] = {
        LATE: {"type": "sql", "url": f"sqlite:///{captured.folder}/late.db", "own_schema": "late"}
    }
    with SinkJob(captured.config(), LATE) as job:
        job.wait_applied(captured.progress(), LATE)
        verified(LATE)
        job.terminate()
