"""One order that the screen follows: it changes every second, and is read in every place on its way. The time from a
commit until a reader of a place sees the change is the freshness of the place.
"""

import json
import random
import threading
import time
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
    search_section,
    searched_order,
    warehouse_order,
)
from watershed.demo.workload import Worker, run_statements
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
        self._readable: dict[str, list[float]] = {}

    def commit(self, at: float) -> None:
        self._committed.append(at)

    def see(self, place: str, number: int, at: float) -> None:
        """Records that a place shows this change, and so the changes before it."""
        readable = self._readable.setdefault(place, [])
        readable.extend([at] * (min(number, len(self._committed)) - len(readable)))

    def spread(self, place: str, since: float = float("-inf"), until: float = float("inf")) -> Spread:
        """Returns the spread over the changes that were committed in this span."""
        timed = zip(self._committed, self._readable.get(place, ()), strict=False)
        return Spread.of(max(0.0, at - committed) for committed, at in timed if since <= committed < until)


class FollowedOrder:
    """Changes the order from start() to rest(), and reads it in every place until stop(), in a separate thread. The
    warehouse is read by `read_warehouse`, which costs about 0.2 s of processor.
    """

    def __init__(self, config: Config, dsn: str) -> None:
        self._config = config
        self._dsn = dsn
        self.freshness = Freshness()
        self.places: dict[str, Seen | None] = dict.fromkeys(PLACES)
        self._number = 0
        self._resting = threading.Event()
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._worker = Worker("the followed order", self._follow)
        self.check = self._worker.check

    def start(self) -> None:
        """Begins to change the order, which capture has published."""
        self._schema_history = read_schema_histories(self._config)[ORDERS]
        self._worker.start()

    def rest(self) -> None:
        """Ends the changes. When it returns, the last one is committed."""
        self._resting.set()
        with self._changing:
            pass

    def stop(self) -> None:
        self._resting.set()
        self._stopping.set()
        self._worker.end()

    def read_warehouse(self) -> None:
        """Reads the order in the warehouse. For a thread of the caller, while the order is followed."""
        if self._worker.ident is not None:
            self._see("warehouse", warehouse_order(self._config, self._schema_history, ORDER))

    # ---- the thread

    def _follow(self) -> None:
        search, alias = search_client(search_section(self._config)), orders_alias(self._config)
        cache, key = cache_client(self._config), order_key(self._config, ORDER)
        change_at = time.monotonic()
        with (
            closing(TopicTail(self._config.kafka, Topics(self._config.topics.prefix).table(ORDERS))) as tail,
            psycopg.connect(self._dsn, autocommit=True, application_name="followed order") as connection,
        ):
            while not self._stopping.is_set():
                if time.monotonic() >= change_at:
                    change_at = time.monotonic() + CHANGE_INTERVAL_S
                    self._change(connection)
                query = "SELECT status::text AS status, note FROM orders WHERE id = %s"
                row = connection.execute(query, (ORDER,)).fetchone()
                self.places["row"] = None if row is None else Seen(*row)
                for message in tail.read(POLL_S):
                    if (message.key() or b"") == _KEY and (value := message.value()):
                        self._see("event", json.loads(value)["after"])
                self._see("search", searched_order(search, alias, ORDER))
                self._see("cache", cached_order(cache, key))

    def _change(self, connection: psycopg.Connection) -> None:
        with self._changing:
            if not self._resting.is_set():
                self._number += 1
                run_statements(connection, change(self._number))
                self.freshness.commit(time.monotonic())

    def _see(self, place: str, row: Any) -> None:
        self.places[place] = seen = None if row is None else Seen(str(row["status"]), str(row["note"]))
        if seen is not None:
            self.freshness.see(place, seen.number, time.monotonic())
