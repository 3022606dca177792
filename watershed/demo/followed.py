"""One order that the screen follows: it changes every two seconds, and is read in every place on its way."""

import json
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import psycopg
import redis
from confluent_kafka import Consumer, TopicPartition
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import EqualTo

from cdc.config.config_file import Config
from cdc.config.stores import CacheConfig, SearchConfig, WarehouseConfig
from cdc.kafka.client import client_settings
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from sinks.cache.keys import DOCUMENT_FIELD, CacheKeys
from sinks.reduction import document_id
from sinks.search.names import SearchNames
from sinks.warehouse.catalog import catalog_place
from watershed.demo import rows
from watershed.demo.shopper import Statement, delete, insert, update

# The shop's clients know nothing of this order and its customer, so neither is changed or deleted by them.
ORDER: Final = 10**12 + 1
CUSTOMER: Final = 10**12 + 1
PLACED_AT: Final = datetime(2026, 9, 1, 12, 30, tzinfo=UTC)  # after all other orders of the shop
UNIT_PRICE: Final = Decimal("25.00")
FOLLOWED_TOTAL: Final = Decimal("499.50")
CHANGE_INTERVAL_S: Final = 2.0
POLL_S: Final = 0.25
WAREHOUSE_INTERVAL_S: Final = 10.0  # a read costs about 0.2 s of processor
TIMEOUT_S: Final = 10
STOP_TIMEOUT_S: Final = 15.0
TABLE: Final = TableId("public", "orders")
PLACES: Final = ("row", "event", "search", "cache", "warehouse")


class Seen(NamedTuple):
    """The order's content in one place."""

    status: str
    note: str

    def __str__(self) -> str:
        return f"{self.status}, {self.note}"


Reader = Callable[[], Seen | None]


class FollowedNow(NamedTuple):
    """The order in every place at one moment."""

    places: dict[str, Seen | None]  # in the order of PLACES; None: it is not there

    def is_current(self, place: str) -> bool:
        """Returns whether the place has the row's content."""
        return self.places[place] is not None and self.places[place] == self.places["row"]


def creation() -> tuple[Statement, ...]:
    """The statements that insert the order, its customer and its lines."""
    customer = rows.customer(random.Random(0), CUSTOMER)
    first = (CUSTOMER, "ada@shop.example", "Ada", *customer[3:])
    order = (ORDER, CUSTOMER, rows.STATUSES[0], PLACED_AT, None, FOLLOWED_TOTAL, False, _note(0), None)
    lines = (insert("order_lines", _line(number, 1)) for number in (1, 2))
    return (insert("customers", first), insert("orders", order), *lines)


def change(number: int) -> tuple[Statement, ...]:
    """The statements of one change: another status, note and quantity, and a second line that comes and goes."""
    quantity = number % 9 + 1
    second = (
        delete("order_lines", {"order_id": ORDER, "line_no": 2})
        if number % 2
        else insert("order_lines", _line(2, quantity))
    )
    return (
        update("orders", {"id": ORDER}, status=rows.STATUSES[number % len(rows.STATUSES)], note=_note(number)),
        update("order_lines", {"order_id": ORDER, "line_no": 1}, quantity=quantity),
        second,
    )


def _note(number: int) -> str:
    return f"change {number}"


def _line(number: int, quantity: int) -> rows.Values:
    return (ORDER, number, rows.product_id(number), quantity, UNIT_PRICE, None, None, None)


class FollowedOrder:
    """Changes the order from start() to rest(), and reads it in every place until stop(), in a separate thread."""

    def __init__(self, config: Config, dsn: str) -> None:
        self._config = config
        self._dsn = dsn
        self.changed_rows = 0
        self._number = 0
        self._places: dict[str, Seen | None] = dict.fromkeys(PLACES)
        self._resting = threading.Event()
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name="followed order", daemon=True)

    def create(self) -> int:
        """Inserts the order. Returns the number of rows."""
        statements = creation()
        with psycopg.connect(self._dsn) as connection:
            for statement in statements:
                connection.execute(statement.text.encode(), statement.values)
        return len(statements)

    def start(self) -> None:
        self._thread.start()

    def rest(self) -> None:
        """Ends the changes. When it returns, the last one is committed."""
        self._resting.set()
        with self._changing:
            pass

    def stop(self) -> None:
        self.rest()
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def check(self) -> None:
        """Raises WatershedError if the thread has failed."""
        if self._errors:
            raise WatershedError(f"the demo can't follow its order: {self._errors[0]}") from self._errors[0]

    def now(self) -> FollowedNow | None:
        """Returns the order as it was read last; None before its row was read."""
        places = dict(self._places)
        return FollowedNow(places) if places["row"] is not None else None

    # ---- the thread

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001 - handed to check(), in the thread that can report it
            if not self._stopping.is_set():
                self._errors.append(error)

    def _follow(self) -> None:
        readers = {"search": _search_reader(self._config), "cache": _cache_reader(self._config)}
        warehouse = _warehouse_reader(self._config)
        consumer = self._consumer()
        change_at = warehouse_at = time.monotonic()
        try:
            with psycopg.connect(self._dsn, autocommit=True, application_name="followed order") as connection:
                while not self._stopping.is_set():
                    now = time.monotonic()
                    if now >= change_at:
                        change_at = now + CHANGE_INTERVAL_S
                        self._change(connection)
                    self._take(consumer, POLL_S)
                    self._places["row"] = _row(connection)
                    for place, read in readers.items():
                        self._places[place] = read()
                    if now >= warehouse_at:
                        self._places["warehouse"] = warehouse()
                        warehouse_at = time.monotonic() + WAREHOUSE_INTERVAL_S
        finally:
            consumer.close()

    def _change(self, connection: psycopg.Connection) -> None:
        with self._changing:
            if self._resting.is_set():
                return
            self._number += 1
            with connection.transaction():
                for statement in change(self._number):
                    self.changed_rows += connection.execute(statement.text.encode(), statement.values).rowcount

    def _consumer(self) -> Consumer:
        consumer = Consumer(
            client_settings(
                self._config.kafka,
                **{
                    "group.id": "watershed-demo-followed",  # required by the client; nothing is committed
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",
                    "fetch.wait.max.ms": 50,
                },
            )
        )
        topic = Topics(self._config.topics.prefix).table(TABLE)
        partitions = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, one), TIMEOUT_S)[1] for one in partitions]
        consumer.assign([TopicPartition(topic, one, end) for one, end in zip(partitions, ends, strict=True)])
        return consumer

    def _take(self, consumer: Consumer, wait_s: float) -> None:
        """Reads the topic for this time, or until 500 records were read."""
        for message in consumer.consume(500, wait_s):
            key, value = message.key(), message.value()
            if message.error() is None and key and value and _is_ours(key):
                self._places["event"] = _seen(json.loads(value).get("after"))


def _is_ours(key: bytes) -> bool:
    return str(ORDER).encode() in key and json.loads(key) == {"id": ORDER}


def _seen(row: Any) -> Seen | None:
    return None if row is None else Seen(str(row["status"]), str(row["note"]))


def _row(connection: psycopg.Connection) -> Seen | None:
    found = connection.execute("SELECT status::text, note FROM orders WHERE id = %s", (ORDER,)).fetchone()
    return None if found is None else Seen(*found)


def _search_reader(config: Config) -> Reader:
    section = config.sinks["search"]
    assert isinstance(section, SearchConfig), "the demo has a search index"
    client = OpenSearch([section.url.get_secret_value()], timeout=TIMEOUT_S)
    alias = SearchNames(section.index_prefix or config.topics.prefix).alias(TABLE)

    def read() -> Seen | None:
        return _seen(document(client, alias, {"id": ORDER}))

    return read


def document(client: OpenSearch, alias: str, key: dict[str, int]) -> Any:
    """Returns a document as a search finds it; None where there is none, or the index is busy or down."""
    query = {"query": {"ids": {"values": [document_id(key)]}}}
    try:
        hits = client.search(index=alias, body=query, params={"ignore_unavailable": "true"})["hits"]["hits"]
    except TransportError:
        return None
    return hits[0]["_source"] if hits and "id" in hits[0]["_source"] else None


def _cache_reader(config: Config) -> Reader:
    section = config.sinks["cache"]
    assert isinstance(section, CacheConfig), "the demo has a cache"
    client = redis.Redis.from_url(section.url.get_secret_value(), socket_timeout=TIMEOUT_S)
    key = CacheKeys(section.key_prefix or config.topics.prefix).table(TABLE) + document_id({"id": ORDER})

    def read() -> Seen | None:
        try:
            found: Any = client.hget(key, DOCUMENT_FIELD)
        except (redis.ConnectionError, redis.TimeoutError):
            return None
        return None if found is None else _seen(json.loads(found))

    return read


def _warehouse_reader(config: Config) -> Reader:
    section = config.sinks["warehouse"]
    assert isinstance(section, WarehouseConfig), "the demo has a warehouse"
    where = catalog_place(section, config.topics.prefix)
    name = where.place(TABLE).rows

    def read() -> Seen | None:
        if not where.is_there():
            return None
        try:
            with where.opened() as catalog:
                scan = catalog.load_table(name).scan(
                    EqualTo(term="id", value=ORDER), selected_fields=("status", "note")
                )
                found = scan.to_arrow().to_pylist()
        except (NoSuchNamespaceError, NoSuchTableError, OSError):  # not created yet, or its files were just replaced
            return None
        return _seen(found[0]) if found else None

    return read
