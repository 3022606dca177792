"""Books that are kept from events: each counted once, whatever comes, and nothing that is wrong passed over."""

import json
from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from cdc.config.settings import KafkaConfig
from watershed.demo import books as module
from watershed.demo.books import COMPLAINTS_MAX, Books, Ledger, Sales

OPENING = Sales(10, Decimal("100.00"), 0)


class Events:
    """Events, and a ledger that counts them."""

    def __init__(self) -> None:
        self.ledger = Ledger(OPENING)

    def publish(self, kind: str | None, order: int, payload: object, identity: str | None = None) -> str:
        """The event's id."""
        identity = str(uuid4()) if identity is None else identity
        headers = [("id", identity.encode()), *([("eventType", kind.encode())] if kind else [])]
        value = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.ledger.count(str(order), headers, value)
        return identity

    def place(self, order: int, total: str, identity: str | None = None) -> str:
        return self.publish("OrderPlaced", order, {"total": total}, identity)

    def cancel(self, order: int, total: str) -> str:
        return self.publish("OrderCancelled", order, {"total": total})


def test_revenue_is_exact() -> None:
    events = Events()
    for order, total in enumerate(["9999999999.99", "0.01", "0.10", "0.20", "-0.01"], start=11):
        events.place(order, total)
    events.cancel(11, "9999999999.99")
    events.publish("OrderShipped", 12, {})
    assert events.ledger.sales == Sales(14, Decimal("100.30"), 1)
    assert (events.ledger.events, events.ledger.complaints) == (7, [])


def test_an_event_that_comes_again_is_not_counted_again() -> None:
    events = Events()
    identity = events.place(11, "5.00")
    events.place(11, "5.00", identity)
    assert events.ledger.sales == Sales(11, Decimal("105.00"), 0)
    assert (events.ledger.events, events.ledger.repeated, events.ledger.complaints) == (1, 1, [])


def test_an_order_may_be_cancelled_and_placed_again_but_not_placed_twice() -> None:
    events = Events()
    events.cancel(3, "7.00")  # it was placed before the books were opened
    events.place(3, "8.00")
    assert events.ledger.complaints == []
    identity = events.place(3, "9.00")
    assert events.ledger.sales == Sales(10, Decimal("101.00"), 0)
    assert events.ledger.complaints == [f"event {identity} of order 3: OrderPlaced, although it already was"]
    events.cancel(3, "8.00")
    events.cancel(3, "8.00")
    assert len(events.ledger.complaints) == 2


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"7", b"null", {}, {"total": None}, {"total": 7.5}, {"total": "x"}, {"total": "NaN"}, b"[" * 99999],
)
def test_an_event_without_a_total_is_a_complaint_and_not_counted(payload: object) -> None:
    events = Events()
    identity = events.publish("OrderPlaced", 11, payload)
    assert events.ledger.complaints == [f"event {identity} of order 11: OrderPlaced has no total"]
    assert (events.ledger.sales, events.ledger.events) == (OPENING, 0)


def test_events_without_id_or_of_another_type_are_complaints() -> None:
    events = Events()
    events.publish("OrderPlaced", 11, {"total": "1"}, identity="")
    events.publish("OrderLost", 12, {"total": "1"}, identity="a")
    events.publish(None, 13, {"total": "1"}, identity="b")
    events.ledger.count("14", [], None)
    assert events.ledger.complaints == [
        "event without id of order 11: it has no id",
        "event a of order 12: its type is OrderLost",
        "event b of order 13: its type is None",
        "event without id of order 14: it has no id",
    ]
    assert events.ledger.sales == OPENING


def test_complaints_are_bounded() -> None:
    ledger = Ledger(OPENING)
    for order in range(COMPLAINTS_MAX + 10):
        ledger.count(str(order), [], None)
    assert len(ledger.complaints) == COMPLAINTS_MAX


def test_what_differs_from_sql_is_named() -> None:
    assert Ledger(OPENING).problems(Sales(10, Decimal("100.0"), 0)) == []
    ledger = Ledger(Sales(1234, Decimal("1234.50"), 1))
    ledger.count("14", [], None)
    assert ledger.problems(Sales(1235, Decimal("1234.51"), 1)) == [
        "orders: 1,234 by events, 1,235 in SQL",
        "revenue: 1,234.50 by events, 1,234.51 in SQL",
        "event without id of order 14: it has no id",
    ]


def test_a_consumer_that_starts_over_counts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = [("id", b"1"), ("eventType", b"OrderPlaced")]
    event = SimpleNamespace(key=lambda: b"11", headers=lambda: headers, value=lambda: b'{"total": "5.00"}')
    opened: list[str] = []

    class Tail:
        def __init__(self, _kafka: KafkaConfig, topic: str) -> None:
            opened.append(topic)
            self._unread = [event]

        def read(self) -> Iterator[Any]:
            while self._unread:
                yield self._unread.pop()

        def close(self) -> None:
            pass

    monkeypatch.setattr(module, "TopicTail", Tail)
    monkeypatch.setattr(module, "sales_by_sql", lambda _dsn: OPENING)
    books = Books(KafkaConfig(bootstrap_servers="127.0.0.1:1"), "")
    books.read()
    books.start_over()
    assert books.balance() == OPENING
    assert len(opened) == 2
    assert (books.ledger.sales, books.ledger.repeated) == (Sales(11, Decimal("105.00"), 0), 1)
