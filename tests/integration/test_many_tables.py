"""200 tables that are created one after the other, under load, while capture and sinks run: all arrive everywhere, and
no process is started again."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.sink_job import SinkJob
from tests.support.stores import sinks_section
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

TABLES = int(os.environ.get("WATERSHED_TABLES", "200"))
STORES = tuple(os.environ.get("WATERSHED_STORES", "search cache sql").split())
ROWS = 20


@contextmanager
def load(dsn: str) -> Iterator[list[str]]:
    """Somebody writes to `items` and to tables of the list, which grows."""
    ended, names = threading.Event(), ["items"]

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            number = 1_000
            while not ended.wait(0.01):
                number += 1
                for name in {names[0], names[-1], names[number % len(names)]}:
                    insert = "INSERT INTO {} VALUES (%s, 'load') ON CONFLICT (id) DO UPDATE SET name = 'again'"
                    connection.execute(sql.SQL(insert).format(sql.Identifier(name)), [number])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield names
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def many(
    postgres: PostgresServer, kafka: KafkaBroker, opensearch: str, redis: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    schema = "CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (1, 'old')"
    with (
        new_database(postgres) as target,
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, unique, tmp_path, schema, ["public.items"]) as made,
    ):
        sections = sinks_section(tmp_path, opensearch, redis) | {"sql": {"url": url_of(target)}}
        made.settings = {
            "source": {"tables": ["public.*"], "exclude_tables": ["public.secret*"]},
            "topics": {"partitions": 1},
            "sinks": {name: section for name, section in sections.items() if name in STORES},
            "spark": {"checkpoint_location": str(tmp_path / "checkpoints"), "options": INTERPRETED},
        }
        yield made


def test_all_tables_arrive_in_all_stores_without_a_restart(many: Captured) -> None:
    capture = many.start(is_forked=False)
    many.await_caught_up()
    with SinkJob(many.config(), *STORES, log_level="info") as job:
        job.wait_applied(many.progress(), *STORES)
        began = time.monotonic()
        with load(many.dsn) as names, many.connect() as connection:
            for number in range(TABLES):
                name = f"made_{number:03}"
                with connection.transaction():
                    connection.execute(
                        sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, name text)").format(sql.Identifier(name))
                    )
                    fill = "INSERT INTO {} SELECT n, 'with it' FROM generate_series(1, %s) AS n"
                    connection.execute(sql.SQL(fill).format(sql.Identifier(name)), [ROWS])
                names.append(name)
            connection.execute("CREATE TABLE secret (id int PRIMARY KEY)")
            created_s = time.monotonic() - began
            wanted = {f"public.{name}" for name in names}
            eventually(lambda: many.states().keys() == wanted, 300.0, lambda: f"{wanted - many.states().keys()} join")
            joined_s = time.monotonic() - began
        # One leaves by a file that is read again, one is renamed, one is dropped.
        many.settings["source"]["exclude_tables"].append("public.made_000")
        many.settings["sinks"]["cache"]["exclude_tables"] = ["public.made_003"]
        many.settings["sinks"]["sql"]["mapping"] = {"public.made_004": {"rename": {"name": "title"}}}
        said = many.cdc("reload")
        assert "public.made_000 leaves" in said
        job.wait_said("configuration read again")
        with many.connect() as connection:
            connection.execute("ALTER TABLE made_001 RENAME TO renamed")
            connection.execute("DROP TABLE made_002")
        wanted = wanted - {f"public.made_00{number}" for number in range(3)} | {"public.renamed"}
        eventually(lambda: many.states().keys() == wanted, 120.0, lambda: f"{wanted ^ many.states().keys()}")
        many.await_caught_up()
        job.wait_applied(many.progress(), *STORES, deadline_s=300.0)
        applied_s = time.monotonic() - began
        done = run(["verify", "--json", "--sink-timeout", "120", "--config", str(many.config())], deadline_s=600.0)
        verified_s = time.monotonic() - began
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads(done.stdout)
        assert (report["drift"], report["undecided"]) == (0, 0)
        compared = {(table["sink"], table["table"]) for table in report["tables"]}
        everything = {(store, table) for store in STORES for table in wanted}
        assert compared == everything - {("cache", "public.made_003")}
        assert job.said().count("the sink continues with its new configuration") == 2
        assert capture.said().count("source checked") == job.said().count("spark started") == 1
        assert "Traceback" not in capture.said() + job.said()
        sessions = capture.said().count("a session with other tables begins")
    print(
        f"{TABLES} tables in {created_s:.0f} s, all joined after {joined_s:.0f} s in {sessions} sessions, "
        f"applied after {applied_s:.0f} s, verified after {verified_s:.0f} s"
    )
