"""Rows that their values route to one of two caches: moves, a killed job, rows without a route, another condition."""

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
CREATE TABLE orders (id bigint PRIMARY KEY, price numeric(12,2), pieces integer, body text);
ALTER TABLE orders ALTER body SET STORAGE EXTERNAL
"""
FILL: Final = """
INSERT INTO orders SELECT n, n * 1.25, 1 + n % 5, repeat('body ' || n, 1000) FROM generate_series(1, 60) AS n
"""
SMALL: Final[LiteralString] = "price / pieces < 10 AND left(body, 4) = 'body'"
LARGE: Final[LiteralString] = "price / pieces >= 10 AND left(body, 4) = 'body'"


@pytest.fixture
def orders(
    postgres: PostgresServer, kafka: KafkaBroker, redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Captured]:
    name, folder = f"t{secrets.token_hex(5)}", tmp_path_factory.mktemp("routing")
    with (
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, folder, ORDERS, ["public.orders"]) as made,
    ):
        made.settings = {
            "sinks": {
                sink: {
                    "type": "cache",
                    "url": redis,
                    "key_prefix": f"{name}-{sink}",
                    "mapping": {"public.orders": {"where": where, "exclude": ["body"]}},
                }
                for sink, where in (("small", SMALL), ("large", LARGE))
            },
            "spark": {"checkpoint_location": str(folder / "checkpoints"), "options": INTERPRETED},
        }
        made.query(FILL)
        made.start()
        yield made


def test_rows_are_in_the_sink_of_their_values(orders: Captured, redis: str) -> None:
    def held(sink: str) -> dict[int, str]:
        with redis_client.Redis.from_url(redis, decode_responses=True) as client:
            beginning = f"{orders.name}-{sink}:public.orders:"
            keys = [key for key in client.scan_iter(f"{beginning}*", count=1000) if key != beginning]
            rows = [json.loads(str(row)) for key in keys if (row := client.hget(key, "doc")) is not None]
        return {row["id"]: row["price"] for row in rows}

    def both() -> tuple[dict[int, str], dict[int, str]]:
        return held("small"), held("large")

    def wanted(small: LiteralString = SMALL) -> tuple[dict[int, str], dict[int, str]]:
        select: LiteralString = "SELECT id, price::text FROM orders WHERE "
        return dict(orders.query(select + small)), dict(orders.query(select + LARGE))

    def verdicts(key: int) -> dict[str, str]:
        words = ["get", "public.orders", str(key), "--json", "--config", str(orders.config())]
        stores: list[dict[str, Any]] = json.loads(run(words, deadline_s=120.0).stdout)["stores"]
        return {store["sink"]: store["verdict"] for store in stores}

    def letters() -> set[tuple[str, int, str]]:
        found = json.loads(orders.cdc("dlq", "list", "--json"))["dead_letters"]
        return {(one["sink"], one["key"]["id"], one["reason"]) for one in found}

    def is_equal() -> bool:
        return run(["verify", "--config", str(orders.config())], deadline_s=120.0).returncode == 0

    assert {one["where"] for one in json.loads(orders.cdc("check", "--json"))["sinks"]} == {SMALL, LARGE}
    with SinkJob(orders.config(), "small", "large") as job:
        becomes(both, wanted(), "each row in its sink")
        assert all(wanted()), "both have rows"
        # Rows move both ways; the large value that the conditions read is in none of these changes.
        orders.query("UPDATE orders SET price = 1000 - price WHERE id % 3 = 0")
        becomes(both, wanted(), "moved rows")
        assert verdicts(3) == {"small": Verdict.EXCLUDED, "large": Verdict.EQUAL}
        assert is_equal()
        # A row whose condition has no value is a dead letter of both sinks; a value closes them.
        before = both()
        orders.query("UPDATE orders SET pieces = 0 WHERE id = 3")
        reason = "the condition can't be decided: division by zero"
        becomes(letters, {("small", 3, reason), ("large", 3, reason)}, "dead letters")
        assert both() == before, "the row stays as it was"
        assert verdicts(3) == {"small": Verdict.DIFFERS, "large": Verdict.DIFFERS}
        orders.query("UPDATE orders SET pieces = 1, price = 2 WHERE id = 3")
        becomes(letters, set(), "a value closes them")
        becomes(both, wanted(), "the row moves")
        job.kill()
    orders.query("UPDATE orders SET price = 1000 - price WHERE id % 2 = 0")
    orders.query("DELETE FROM orders WHERE id % 7 = 0")
    orders.query("UPDATE orders SET body = 'other' WHERE id = 1")  # it has no route now
    with SinkJob(orders.config(), "small", "large") as job:
        becomes(both, wanted(), "what moved while no job ran")
        assert 1 not in {**held("small"), **held("large")}
        assert verdicts(1) == {"small": Verdict.EXCLUDED, "large": Verdict.EXCLUDED}
        assert is_equal()
        job.terminate()

    # Another condition: its sink is built again, and the other one is not.
    changed: LiteralString = "price / pieces < 10 AND left(body, 4) = 'body' AND id % 2 = 0"
    orders.settings["sinks"]["small"]["mapping"]["public.orders"]["where"] = changed
    findings = [one["message"] for one in json.loads(orders.cdc("check", "--json"))["findings"]]
    assert sum("builds public.orders again (its mapping has changed)" in message for message in findings) == 1
    with SinkJob(orders.config(), "small", "large") as job:
        job.wait_said("mapping changed")
        becomes(both, wanted(changed), "rows of the condition of now")
        assert is_equal()
        job.terminate()
