"""The worked set-up of a warehouse: a table of each mode, read by PyIceberg and by DuckDB, a job that is killed."""

import json
import secrets
from collections.abc import Iterator
from random import Random

import pytest

from tests.conftest import KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually
from tests.support.warehouse_setup import SCHEMA, TABLES, TRIGGERS, change, duck, iceberg, settings, unlike

pytestmark = pytest.mark.long  # units, histories and the warehouse's own conformance show the modes in CI

DEADLINE_S = 120.0
FILL = "INSERT INTO customers SELECT n, 'a', NULL FROM generate_series(1000, 1019) AS n"


@pytest.fixture
def shop(postgres: PostgresServer, kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captured]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("modes")
    with (
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, SCHEMA, list(TABLES)) as made,
    ):
        made.settings = settings(folder)
        made.query(FILL)
        made.query(TRIGGERS)
        made.start()
        yield made


def becomes_equal(shop: Captured) -> None:
    seen: list[str | None] = []

    def is_equal() -> bool:
        seen[:] = [unlike(shop)]
        return seen == [None]

    eventually(is_equal, DEADLINE_S, lambda: f"the warehouse is as the source: {seen}")


def test_each_mode_holds_what_the_source_says(shop: Captured) -> None:
    shop.await_caught_up()
    reported = json.loads(shop.cdc("check", "--json"))["sinks"]
    assert {one["table"]: one["layout"] for one in reported} == {
        "public.orders": "partitioned by day(created_at), sorted by customer_id, id desc",
        "public.customers": "as history, partitioned by bucket(4, id)",
        "public.events": "as changelog, partitioned by day(committed_at)",
    }
    random = Random(17)
    with shop.connect() as connection:
        change(connection, random, 100)
        with SinkJob(shop.config(), "lake") as job:
            job.wait_said("sink starts")
            change(connection, random, 100)
            job.kill()
        change(connection, random, 50)
        with SinkJob(shop.config(), "lake") as job:
            becomes_equal(shop)
            history = iceberg(shop)["customers"].num_rows
            # Rows that are read again are those that the history has.
            shop.cdc("snapshot", "start", "--table", "public.customers")
            shop.await_caught_up()
            job.wait_applied(shop.log_end(), "lake")
            assert iceberg(shop)["customers"].num_rows == history
            change(connection, random, 50)
            shop.await_caught_up()
            done = [json.loads(line) for line in shop.cdc("warehouse", "maintain", "--json").splitlines()]
            becomes_equal(shop)
            assert iceberg(shop)["orders"].column_names == ["id", "customer_id", "amount", "created_at", "ws_version"]

            # A table that is emptied: rows go, intervals end, the log has a row for all of them.
            shop.query("ALTER TABLE customers DISABLE TRIGGER note; TRUNCATE orders, customers, events")
            shop.await_caught_up()
            job.wait_applied(shop.log_end(), "lake")
            code, _ = job.terminate()
            assert (code, "Traceback" in job.said()) == (0, False), job.said()
    assert {one["table"].removeprefix(f"{shop.name}.") for one in done} == {*TABLES, "public__deleted.orders"}
    assert any(one["rewritten_files"] for one in done), done
    tables = iceberg(shop)
    assert tables["orders"].num_rows == 0
    assert duck(tables, "SELECT count(*) FROM customers WHERE is_current OR valid_to IS NULL") == [(0,)]
    assert duck(tables, "SELECT operation FROM events ORDER BY ws_version DESC LIMIT 1") == [("t",)]
