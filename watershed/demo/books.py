"""The books of the shop, kept from its events alone, as another team would keep them: by a plain consumer that knows
neither tables nor capture, and that may receive an event again at any time.

They open with the totals that SQL returns before the first event. Orders that are placed, cancelled and shipped from
then on are known from events. At the end the books must agree with SQL, to the cent.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cdc.model.errors import WatershedError

TOPIC: Final = "outbox.event.order"
COMPLAINTS_MAX: Final = 20
ANSWER_S_MAX: Final = 10.0
STOP_TIMEOUT_S: Final = 15.0

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


@dataclass(frozen=True, slots=True)
class BooksNow:
    """The totals of the books at one moment."""

    events: int
    repeated: int
    sales: Sales


@dataclass(frozen=True, slots=True)
class Balance:
    """The totals of the books, compared with SQL."""

    books: BooksNow
    sql: Sales
    problems: tuple[str, ...]


class Books:
    """Runs the consumer in a separate thread, from open() to stop()."""

    def __init__(self, bootstrap_servers: str, dsn: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._dsn = dsn
        self._ledger: Ledger | None = None
        self._read_to: dict[int, int] = {}  # partition → its end offset when the consumer last reached it
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._starts_over = threading.Event()
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name="books", daemon=True)

    def open(self) -> None:
        """Reads the opening balance and starts the consumer. Must be called before the first event."""
        self._ledger = Ledger(sales_by_sql(self._dsn))
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def start_over(self) -> None:
        """Reads the topic again from its beginning, as after a crash in which the consumer lost its offsets but not its
        books.
        """
        self._starts_over.set()

    def check(self) -> None:
        """Raises WatershedError if the consumer has failed."""
        if self._errors:
            raise WatershedError(f"the consumer of events failed: {self._errors[0]}") from self._errors[0]

    def now(self) -> BooksNow | None:
        """Returns the present totals; None before open()."""
        with self._lock:
            ledger = self._ledger
            return None if ledger is None else BooksNow(ledger.events, ledger.repeated, ledger.sales)

    def balance(self) -> Balance:
        """Returns the comparison with SQL. The books must be open."""
        sql = sales_by_sql(self._dsn)
        with self._lock:
            ledger = self._ledger
            assert ledger is not None, "they were opened"
            problems = (*differences(ledger.sales, sql), *ledger.complaints)
            return Balance(BooksNow(ledger.events, ledger.repeated, ledger.sales), sql, problems)

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Returns whether everything below these offsets, by partition, was read."""
        with self._lock:
            return not self._starts_over.is_set() and all(self._read_to.get(p, 0) >= end for p, end in ends.items())

    def ends(self) -> dict[int, int]:
        """Returns the topic's present end offsets by partition; {} while the topic does not exist."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap_servers})
        topic = admin.list_topics(timeout=ANSWER_S_MAX).topics.get(TOPIC)
        if topic is None:
            return {}
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = admin.list_offsets({TopicPartition(TOPIC, number): latest for number in topic.partitions})
        return {partition.partition: future.result(ANSWER_S_MAX).offset for partition, future in asked.items()}

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._lock:
                    self._read_to.clear()
                    self._starts_over.clear()
                self._consume()
        except Exception as error:  # noqa: BLE001 - handed to check(), in the thread that can report it
            self._errors.append(error)

    def _consume(self) -> None:
        """Consumes until start_over() or stop() is called."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "books",  # required by the client; no offsets are committed
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "topic.metadata.refresh.interval.ms": 1000,  # the topic is created by the first event
            }
        )
        consumer.subscribe([TOPIC])
        try:
            while not (self._stopping.is_set() or self._starts_over.is_set()):
                message = consumer.poll(0.2)
                if message is not None:
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Message) -> None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            assert partition is not None and offset is not None
            with self._lock:
                self._read_to[partition] = offset
        elif error is not None and error.fatal():
            raise KafkaException(error)
        elif error is None:  # other errors are temporary: the topic does not exist yet, brokers do not answer
            headers: Any = message.headers() or []
            with self._lock:
                assert self._ledger is not None, "the thread begins with open books"
                self._ledger.take((message.key() or b"").decode("utf-8", "replace"), headers, message.value())
