"""An application that writes its database and a cache one after the other, without a log: the usual alternative.
At the end its cache is compared with the database.

It has two servers, which often work on the same order at the same time, as when a customer edits an order while its
payment arrives. Each commits the row and then writes the hash `naive:orders`. Nothing is wrong with either write, but
two writers may reach the cache in another order than the database, and a process that ends between both leaves the old
value. `python -m watershed.demo.naive DSN REDIS_URL` runs it until SIGTERM.
"""

import random
import signal
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import psycopg
import redis

from cdc.config.config_file import Config
from watershed.demo import rows
from watershed.demo.shopper import insert
from watershed.demo.stores import cache_client, cached_order, order_key
from watershed.demo.workload import run_statements

# The shop's clients know nothing of these orders and their customer.
FIRST_ORDER: Final = 2 * 10**12
ORDER_COUNT: Final = 100
CUSTOMER: Final = 2 * 10**12
SERVER_COUNT: Final = 2
REQUEST_INTERVAL_S: Final = 0.2  # of each server
HASH: Final = "naive:orders"
PLACED_AT: Final = datetime(2026, 9, 1, tzinfo=UTC)


def create(dsn: str, redis_url: str) -> None:
    """Inserts the orders, and writes the hash from them."""
    customer = (CUSTOMER, "naive@shop.example", "Naive", *rows.customer(random.Random(0), CUSTOMER)[3:])
    numbers = range(FIRST_ORDER, FIRST_ORDER + ORDER_COUNT)
    orders = [(number, CUSTOMER, "new", PLACED_AT, None, Decimal("1.00"), False, "", None) for number in numbers]
    statements = (insert("customers", customer), *(insert("orders", order) for order in orders))
    with psycopg.connect(dsn) as connection:
        run_statements(connection, statements)
    with redis.Redis.from_url(redis_url) as client:
        client.delete(HASH)
        client.hset(HASH, mapping=dict.fromkeys(numbers, ""))


def serve(dsn: str, redis_url: str, server: int, seed: float, is_ending: threading.Event) -> None:
    """Answers requests: each writes the database, and then the cache. Servers with one seed get requests for the same
    orders at the same times.
    """
    chosen = random.Random(seed)
    due, number = time.monotonic(), 0
    with psycopg.connect(dsn, autocommit=True) as connection, redis.Redis.from_url(redis_url) as client:
        while not is_ending.wait(max(0.0, due - time.monotonic())):
            due = max(due, time.monotonic() - 1) + REQUEST_INTERVAL_S
            number += 1
            order, note = FIRST_ORDER + chosen.randrange(ORDER_COUNT), f"request {number} of server {server}"
            connection.execute("UPDATE orders SET note = %s WHERE id = %s", (note, order))
            client.hset(HASH, str(order), note)


class Drift(NamedTuple):
    """The orders of the application that differ from PostgreSQL in its own cache, and in the one kept from the log."""

    orders: int
    naive: int
    kept: int


def drift(config: Config, dsn: str, redis_url: str) -> Drift:
    """Compares both caches with the rows. The application has ended, and the sink has applied everything."""
    with psycopg.connect(dsn) as connection:
        query = "SELECT id::text, note FROM orders WHERE customer_id = %s"
        notes: dict[str, str] = dict(connection.execute(query, (CUSTOMER,)).fetchall())
    with cache_client(redis_url) as client:
        naive: Any = client.hgetall(HASH)
        documents = {number: cached_order(client, order_key(config, int(number))) for number in notes}
    kept = {number: document["note"] for number, document in documents.items() if document is not None}
    return Drift(len(notes), differing(notes, naive), differing(notes, kept))


def differing(notes: Mapping[str, str], cache: Mapping[str, str]) -> int:
    """Returns the number of orders whose note is missing or different in the cache."""
    return sum(cache.get(number) != note for number, note in notes.items())


def main(dsn: str, redis_url: str) -> None:
    is_ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_ending.set())
    seed = time.time()
    with ThreadPoolExecutor(SERVER_COUNT) as servers:
        list(servers.map(lambda number: serve(dsn, redis_url, number, seed, is_ending), range(SERVER_COUNT)))


if __name__ == "__main__":
    main(*sys.argv[1:])
