"""Computed columns of a running sink: rows without a value, unchanged large values, altered inputs, another expression.

The expected values are PostgreSQL's own.
"""

import json
import secrets
from collections.abc import Iterator
from typing import Any, Final, LiteralString

import pytest
import redis as redis_client

from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.integration.test_shaped_sinks import becomes
from tests.support.captured import Captured, under_capture
from tests.support.forked import run
from tests.support.sink_job import SinkJob
from watershed.verify.one_key import Verdict

pytestmark = pytest.mark.long

ORDERS: Final = """
CREATE TABLE orders (id bigint PRIMARY KEY, price numeric(12,2), quantity integer, body text);
ALTER TABLE orders ALTER body SET STORAGE EXTERNAL
"""
FILL: Final = """
INSERT INTO orders
SELECT n, n * 1.25, n % 5 + (n <> 5)::int, repeat('body ' || n, 1000) FROM generate_series(1, 40) AS n
"""
TOTALS: Final = {"total": "price * quantity", "each": "price / quantity", "head": "upper(left(body, 6))"}
SQL: Final[LiteralString] = (
    "SELECT id, (price * quantity)::text, (price / nullif(quantity, 0))::text, upper(left(body, 6)) FROM orders"
)


@pytest.fixture
def orders(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Captured]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("computed")
    with (
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, ORDERS, ["public.orders"]) as made,
    ):
        made.settings = {
            "sinks": {"cache": {"url": redis, "mapping": {"public.orders": {"computed": TOTALS, "exclude": ["body"]}}}},
            "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
        }
        made.query(FILL)
        made.start()
        yield made


def test_computed_columns_live_with_their_table(orders: Captured, redis: str) -> None:
    def documents() -> dict[int, tuple[Any, ...]]:
        with redis_client.Redis.from_url(redis, decode_responses=True) as client:
            beginning = f"{orders.name}:public.orders:"
            keys = [key for key in client.scan_iter(f"{beginning}*", count=1000) if key != beginning]
            rows = [json.loads(str(held)) for key in keys if (held := client.hget(key, "doc")) is not None]
        return {row["id"]: (row["total"], row["each"], row["head"]) for row in rows}

    def wanted(statement: LiteralString = SQL) -> dict[int, tuple[Any, ...]]:
        return {key: tuple(values) for key, *values in orders.query(statement)}

    def letters() -> dict[int, str]:
        found = json.loads(orders.cdc("dlq", "list", "--json"))["dead_letters"]
        return {one["key"]["id"]: one["reason"] for one in found}

    def verdict(key: int) -> str:
        words = ["get", "public.orders", str(key), "--json", "--config", str(orders.config())]
        (store,) = json.loads(run(words, deadline_s=120.0).stdout)["stores"]
        return str(store["verdict"])

    def without(key: int) -> dict[int, tuple[Any, ...]]:
        return {one: values for one, values in wanted().items() if one != key}

    (planned,) = json.loads(orders.cdc("check", "--json"))["sinks"]
    assert set(planned["columns"]) == {"id", "price", "quantity", *TOTALS}
    with SinkJob(orders.config(), "cache") as job:
        # One row divides by zero: it is a dead letter, and all others are there.
        becomes(letters, {5: "computed column each: division by zero"}, "the dead letter")
        becomes(documents, without(5), "the other rows")
        assert (verdict(4), verdict(5)) == (Verdict.EQUAL, Verdict.DIFFERS)
        orders.query("UPDATE orders SET quantity = 7 WHERE id = 5")
        becomes(letters, {}, "a value closes it")
        becomes(documents, wanted(), "all rows")
        # The large value is in none of these changes.
        orders.query("UPDATE orders SET price = price + 1 WHERE id % 2 = 0")
        becomes(documents, wanted(), "rows with an unchanged large value")
        orders.query("UPDATE orders SET body = 'ß' || body WHERE id < 4")
        becomes(documents, wanted(), "rows with another large value")
        assert run(["verify", "--config", str(orders.config())], deadline_s=120.0).returncode == 0

        # Other types of inputs: what was out of range has a value afterwards.
        orders.query("UPDATE orders SET quantity = 2147483647 WHERE id = 8")
        orders.query("ALTER TABLE orders ALTER quantity TYPE bigint, ALTER price TYPE numeric(14,4)")
        orders.query("UPDATE orders SET quantity = 3000000000 WHERE id = 9")
        becomes(documents, wanted(), "rows after a change of types")
        assert run(["verify", "--config", str(orders.config())], deadline_s=120.0).returncode == 0

        # A column that the expressions read gets another name: an error names it, and the rows stay.
        before = documents()
        orders.query("ALTER TABLE orders RENAME quantity TO pieces")
        orders.query("ALTER TABLE orders DISABLE TRIGGER USER")  # the test's own, which names the column
        orders.query("UPDATE orders SET pieces = 1 WHERE id = 1")
        missing = "mapping of public.orders: computed column each: table public.orders has no column quantity"
        job.wait_said(missing)
        assert documents() == before
        refused = orders.run_once("check")
        assert refused.returncode == 1 and missing in " ".join((refused.stdout + refused.stderr).split())
        job.terminate()

    computed = {"total": "price * pieces", "each": "price / nullif(pieces, 0)", "head": TOTALS["head"]}
    orders.settings["sinks"]["cache"]["mapping"]["public.orders"]["computed"] = computed
    changed: LiteralString = (
        "SELECT id, (price * pieces)::text, (price / nullif(pieces, 0))::text, upper(left(body, 6)) FROM orders"
    )
    planned_again = json.loads(orders.cdc("check", "--json"))["findings"]
    assert any("builds public.orders again (its mapping has changed)" in one["message"] for one in planned_again)
    with SinkJob(orders.config(), "cache") as job:
        job.wait_said("mapping changed")
        becomes(documents, wanted(changed), "rows of the expression of now")
        assert run(["verify", "--config", str(orders.config())], deadline_s=120.0).returncode == 0
        job.terminate()
