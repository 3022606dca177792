"""The books of the shop, kept from its events alone, as another team would keep them: by a plain consumer that knows
neither tables nor capture, and that may receive an event again at any time.

They open with the totals that SQL returns before the first event. Orders that are placed, cancelled and shipped from
then on are known from events. At the end the books must agree with SQL, to the cent.
"""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import psycopg

from cdc.config.settings import KafkaConfig
from watershed.demo.stores import TopicTail

TOPIC: Final = "outbox.event.order"
COMPLAINTS_MAX: Final = 20

# The opening balance, and the final totals to compare with. The outbox table is not pruned while the demo runs.
_SALES = "SELECT count(*), coalesce(sum(total), 0), (SELECT count(*) FROM cdc.outbox) FROM orders"


class Sales(NamedTuple):
    """The shop's total sales."""

    orders: int
    revenue: Decimal  # of these orders
    shipped: int  # number of shipments


def sales_by_sql(dsn: str) -> Sales:
    """Returns the totals of the tables at one point in time."""
    with psycopg.connect(dsn) as connection:
        (row,) = connection.execute(_SALES).fetchall()
    return Sales(*row)


class Ledger:
    """Counts each event once, by its id. It keeps all ids in memory; a consumer that runs for longer would keep them in
    a table, in the transaction of the event's effect.
    """

    def __init__(self, opening: Sales) -> None:
        self.sales = opening
        self.events = 0  # counted
        self.repeated = 0  # received again
        self.complaints: list[str] = []  # about events that can't be counted
        self._seen: set[str] = set()
        self._is_open: dict[str, bool] = {}  # order known from events → False if it was cancelled

    def count(self, order: str, headers: Sequence[tuple[str, bytes | None]], payload: bytes | None) -> None:
        """Counts an event: a record's key, headers and value."""
        named = {name: (value or b"").decode("utf-8", "replace") for name, value in headers}
        identity = named.get("id", "")
        if identity in self._seen:
            self.repeated += 1
            return
        if identity:
            self._seen.add(identity)
        try:
            self._count(order, identity, named.get("eventType"), payload)
            self.events += 1
        except ValueError as error:
            if len(self.complaints) < COMPLAINTS_MAX:
                self.complaints.append(f"event {identity or 'without id'} of order {order}: {error}")

    def __str__(self) -> str:
        return f"{self.events:,} events: revenue {self.sales.revenue:,} in {self.sales.orders:,} orders"

    def problems(self, sql: Sales) -> list[str]:
        """Returns a description of each difference to the totals by SQL, and the complaints."""
        pairs = zip(Sales._fields, self.sales, sql, strict=True)
        differences = [
            f"{name}: {ours:,} by events, {theirs:,} in SQL" for name, ours, theirs in pairs if ours != theirs
        ]
        return differences + self.complaints

    def _count(self, order: str, identity: str, kind: str | None, payload: bytes | None) -> None:
        """Raises ValueError, with the reason, for an event that can't be counted."""
        orders, revenue, shipped = self.sales
        if not identity:
            raise ValueError("it has no id")
        if kind == "OrderShipped":
            self.sales = Sales(orders, revenue, shipped + 1)
            return
        if kind not in ("OrderPlaced", "OrderCancelled"):
            raise ValueError(f"its type is {kind}")
        try:
            text = json.loads(payload or b"")["total"]  # text: most readers would read a JSON number as a double
            total = Decimal(text if isinstance(text, str) else "NaN")
        except (TypeError, KeyError, ValueError, ArithmeticError, RecursionError):
            total = Decimal("NaN")
        if not total.is_finite():
            raise ValueError(f"{kind} has no total")
        is_placed = kind == "OrderPlaced"
        if self._is_open.get(order) is is_placed:
            raise ValueError(f"{kind}, although it already was")
        self._is_open[order] = is_placed
        sign = 1 if is_placed else -1
        self.sales = Sales(orders + sign, revenue + sign * total, shipped)


class Books:
    """The consumer of events. For one thread."""

    def __init__(self, kafka: KafkaConfig, dsn: str) -> None:
        """Reads the opening balance, so no event may precede it."""
        self._kafka = kafka
        self._dsn = dsn
        self._tail = TopicTail(kafka, TOPIC)
        self.ledger = Ledger(sales_by_sql(dsn))

    def start_over(self) -> None:
        """Reads from the beginning again, as after a crash in which the consumer lost its offsets but not its books."""
        self.close()
        self._tail = TopicTail(self._kafka, TOPIC)

    def close(self) -> None:
        self._tail.close()

    def read(self) -> None:
        """Counts the events up to the topic's present end."""
        for message in self._tail.read():
            headers: Any = message.headers() or []
            self.ledger.count((message.key() or b"").decode("utf-8", "replace"), headers, message.value())

    def balance(self) -> Sales:
        """Counts all events, and returns the totals by SQL, with which the books must agree."""
        self.read()
        return sales_by_sql(self._dsn)
