"""One order that the screen follows: it changes every second, and is read in every place on its way. The time from a
commit until a reader of a place sees the change is the freshness of the place.
"""

import json
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import psycopg

from cdc.config.config_file import Config
from cdc.model.topics import Topics
from watershed.demo import rows
from watershed.demo.charts import Spread
from watershed.demo.shopper import Statements, delete, insert, update
from watershed.demo.stores import (
    ORDERS,
    TopicTail,
    cache_client,
    cached_order,
    order_key,
    orders_alias,
    search_client,
    searched_order,
    warehouse_order,
)
from watershed.demo.workload import require_success, run_statements
from watershed.devstack.endpoints import Endpoints
from watershed.verify.verifier import read_schema_histories

# The shop's clients know nothing of this order and its customer, so neither is changed or deleted by them.
ORDER: Final = 10**12 + 1
CUSTOMER: Final = 10**12 + 1
PLACED_AT: Final = datetime(2026, 9, 1, 12, 30, tzinfo=UTC)  # after all other orders of the shop
UNIT_PRICE: Final = Decimal("25.00")
FOLLOWED_TOTAL: Final = Decimal("499.50")
CHANGE_INTERVAL_S: Final = 1.0
POLL_S: Final = 0.05  # the resolution of freshness; a shorter one would put load on the stores
PLACES: Final = ("row", "event", "search", "cache", "warehouse")
NOTE: Final = "change "
_KEY: Final = json.dumps({"id": ORDER}, separators=(",", ":")).encode()


class Seen(NamedTuple):
    """The order's content in one place."""

    status: str
    note: str

    @property
    def number(self) -> int:
        """The number of the change; 0 for a note that the demo did not write."""
        number = self.note.removeprefix(NOTE)
        return int(number) if number.isdecimal() else 0

    def __str__(self) -> str:
        return f"{self.status}, {self.note}"


def creation() -> Statements:
    """The statements that insert the order, its customer and its lines."""
    customer = rows.customer(random.Random(0), CUSTOMER)
    first = (CUSTOMER, "ada@shop.example", "Ada", *customer[3:])
    order = (ORDER, CUSTOMER, rows.STATUSES[0], PLACED_AT, None, FOLLOWED_TOTAL, False, f"{NOTE}0", None)
    lines = (insert("order_lines", _line(number, 1)) for number in (1, 2))
    return (insert("customers", first), insert("orders", order), *lines)


def change(number: int) -> Statements:
    """The statements of one change: another status, note and quantity, and a second line that comes and goes."""
    quantity = number % 9 + 1
    second = {"order_id": ORDER, "line_no": 2}
    return (
        update("orders", {"id": ORDER}, status=rows.STATUSES[number % len(rows.STATUSES)], note=f"{NOTE}{number}"),
        update("order_lines", {"order_id": ORDER, "line_no": 1}, quantity=quantity),
        delete("order_lines", second) if number % 2 else insert("order_lines", _line(2, quantity)),
    )


def _line(number: int, quantity: int) -> rows.Values:
    return (ORDER, number, rows.product_id(number), quantity, UNIT_PRICE, None, None, None)


class Freshness:
    """How long the changes took until each place showed them. Thread-safe; times are seconds of one clock."""

    def __init__(self) -> None:
        self._committed: list[float] = []  # change 1 first
        self._readable: dict[str, list[float | None]] = {}  # None: not timed

    def commit(self, at: float) -> None:
        self._committed.append(at)

    def see(self, place: str, number: int, at: float) -> None:
        """Records that a place shows this change, and so the changes before it. Changes that a place without the order
        gets with the order are not timed.
        """
        readable = self._readable.setdefault(place, [None] * number)
        readable.extend([at] * (min(number, len(self._committed)) - len(readable)))

    def spread(self, place: str, since: float = float("-inf")) -> Spread:
        """Returns the spread over the changes that were committed since then."""
        timed = zip(self._committed, self._readable.get(place, ()), strict=False)
        return Spread.of(max(0.0, at - committed) for committed, at in timed if at is not None and committed >= since)


class FollowedOrder:
    """Reads the order in every place in a separate thread, from start() to stop(). Its other methods are for the thread
    of the caller, who changes the order, and reads the warehouse, which costs about 0.2 s of processor.
    """

    def __init__(self, config: Config, endpoints: Endpoints) -> None:
        self._config = config
        self._endpoints = endpoints
        self.freshness = Freshness()
        self.places: dict[str, Seen | None] = dict.fromkeys(PLACES)
        self._number = 0
        self._change_at = 0.0  # monotonic seconds
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "followed order")
        self._reading: Future[None] | None = None  # not started

    def start(self) -> None:
        """Begins to read the order, which capture has published."""
        self._schema_history = read_schema_histories(self._config)[ORDERS]
        self._reading = self._thread.submit(self._read)

    def check(self) -> None:
        """Raises WatershedError if the order could not be read."""
        if self._reading:
            require_success(self._reading, "the followed order")

    def stop(self) -> None:
        self._stopping.set()
        self._thread.shutdown()

    def change_when_due(self) -> None:
        """Commits the next change if CHANGE_INTERVAL_S has passed since the last one."""
        now = time.monotonic()
        if now >= self._change_at:
            self._change_at = now + CHANGE_INTERVAL_S
            self._number += 1
            with psycopg.connect(self._endpoints.dsn, autocommit=True) as connection:
                run_statements(connection, change(self._number))
            self.freshness.commit(time.monotonic())

    def read_warehouse(self) -> None:
        if self._reading:
            self._see("warehouse", warehouse_order(self._config, self._schema_history, ORDER))

    # ---- the thread

    def _read(self) -> None:
        search, alias = search_client(self._endpoints.opensearch_url), orders_alias(self._config)
        cache, key = cache_client(self._endpoints.redis_url), order_key(self._config, ORDER)
        query = "SELECT status::text, note FROM orders WHERE id = %s"
        with (
            closing(TopicTail(self._config.kafka, Topics(self._config.topics.prefix).table(ORDERS))) as tail,
            psycopg.connect(self._endpoints.dsn, autocommit=True) as connection,
        ):
            while not self._stopping.wait(POLL_S):
                row = connection.execute(query, (ORDER,)).fetchone()
                self.places["row"] = None if row is None else Seen(*row)
                for message in tail.read():
                    if (message.key() or b"") == _KEY and (value := message.value()):
                        self._see("event", json.loads(value)["after"])
                self._see("search", searched_order(search, alias, ORDER))
                self._see("cache", cached_order(cache, key))

    def _see(self, place: str, row: Any) -> None:
        self.places[place] = seen = None if row is None else Seen(str(row["status"]), str(row["note"]))
        if seen is not None:
            self.freshness.see(place, seen.number, time.monotonic())
