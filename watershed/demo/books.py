"""The books of the shop, kept from its events alone, as another team would keep them: by a plain consumer that knows
neither tables nor capture, and that may receive an event again at any time.

They open with the totals that SQL returns before the first event. Orders that are placed, cancelled and shipped from
then on are known from events. At the end the books must agree with SQL, to the cent.
"""

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import psycopg
from confluent_kafka import Message

from cdc.config.settings import KafkaConfig
from watershed.demo.topic_tail import TopicTail

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
        row = connection.execute(_SALES).fetchone()
    assert row is not None, "an aggregate is one row"
    return Sales(*row)


class Ledger:
    """Counts each event once, by its id. It keeps all ids in memory; a consumer that runs for longer would keep them in
    a table, in the transaction of the event's effect.
    """

    def __init__(self, opening: Sales) -> None:
        self.sales = opening
        self.events = 0  # counted
        self.repeated = 0  # received again
        self.complaints: list[str] = []
        self._seen: set[str] = set()
        self._is_open: dict[str, bool] = {}  # order known from events → False if it was cancelled

    def take(self, order: str, headers: Sequence[tuple[str, bytes | None]], payload: bytes | None) -> None:
        """Counts an event: a record's key, headers and value. An event that can't be counted becomes a complaint."""
        named = {name: (value or b"").decode("utf-8", "replace") for name, value in headers}
        identity, kind = named.get("id"), named.get("eventType")
        if not identity:
            self._complain(f"an event of order {order} has no id")
            return
        if identity in self._seen:
            self.repeated += 1
            return
        self._seen.add(identity)
        why_not = self._count(order, kind, payload)
        if why_not:
            self._complain(f"event {identity} of order {order}: {why_not}")
        else:
            self.events += 1

    def _count(self, order: str, kind: str | None, payload: bytes | None) -> str | None:
        """Counts an event. Returns the reason if it can't be counted."""
        orders, revenue, shipped = self.sales
        if kind == "OrderShipped":
            self.sales = Sales(orders, revenue, shipped + 1)
            return None
        if kind not in ("OrderPlaced", "OrderCancelled"):
            return f"its type is {kind}"
        total = _total(payload)
        if total is None:
            return f"{kind} has no total"
        is_placed = kind == "OrderPlaced"
        if self._is_open.get(order) is is_placed:
            return f"{kind}, although it already was"
        self._is_open[order] = is_placed
        sign = 1 if is_placed else -1
        self.sales = Sales(orders + sign, revenue + sign * total, shipped)
        return None

    def _complain(self, text: str) -> None:
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(text)


def _total(payload: bytes | None) -> Decimal | None:
    """Returns the total, a decimal as text; None if there is none. Most readers would read a JSON number as a
    double.
    """
    try:
        text = json.loads(payload or b"")["total"]
        total = Decimal(text) if isinstance(text, str) else None
    except (ValueError, TypeError, KeyError, InvalidOperation, RecursionError):
        return None
    return total if total is not None and total.is_finite() else None


def differences(events: Sales, sql: Sales) -> list[str]:
    """Returns a description of each difference between both totals."""
    return [
        f"{name}: {by_events:,} by events, {by_sql:,} in SQL"
        for name, by_events, by_sql in zip(Sales._fields, events, sql, strict=True)
        if by_events != by_sql
    ]


class Balance(NamedTuple):
    """The books' totals beside those of SQL."""

    ledger: Ledger
    sql: Sales
    problems: tuple[str, ...]


class Books:
    """The consumer of events. For one thread."""

    def __init__(self, kafka: KafkaConfig, dsn: str) -> None:
        self._dsn = dsn
        self._tail = TopicTail(kafka, TOPIC)
        self.ledger: Ledger | None = None

    def open(self) -> None:
        """Reads the opening balance. Must be called before the first event."""
        self.ledger = Ledger(sales_by_sql(self._dsn))

    def read(self) -> None:
        """Counts the events that have arrived."""
        if self.ledger is not None:
            self._count(self._tail.read(0.0))

    def start_over(self) -> None:
        """Reads the topic again from its beginning, as after a crash in which the consumer lost its offsets but not its
        books.
        """
        self._tail.start_over()

    def balance(self) -> Balance:
        """Reads the topic to its end, and returns the totals beside those of SQL. The books must be open."""
        self._count(self._tail.read_to_end())
        assert self.ledger is not None, "they were opened"
        sql = sales_by_sql(self._dsn)
        return Balance(self.ledger, sql, (*differences(self.ledger.sales, sql), *self.ledger.complaints))

    def close(self) -> None:
        self._tail.close()

    def _count(self, messages: Iterable[Message]) -> None:
        assert self.ledger is not None, "they were opened"
        for message in messages:
            headers: Any = message.headers() or []
            self.ledger.take((message.key() or b"").decode("utf-8", "replace"), headers, message.value())
