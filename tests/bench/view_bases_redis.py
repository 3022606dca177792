"""A base in Redis: a hash for each row, and sets that lead from a customer to its orders, from an order to its lines.

Rows, guards and sets are kept by Python, in pipelines. One writer is assumed: the versions are compared before the
write, not in the store.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, LiteralString

import redis

from sinks.contract import Change
from tests.bench.view_bases_shop import CUSTOMERS, LINES, ORDERS, Document, Row

VERSION: Final = "v"  # a field of each hash
LETTERS: Final[dict[Any, LiteralString]] = {CUSTOMERS.id: "c", ORDERS.id: "o", LINES.id: "l"}
NUMBERS: Final = frozenset({"id", "customer_id", "order_id", "line_no", "quantity"})


class RedisBase:
    """Implements tests.bench.view_bases_shop.KeyedBase."""

    def __init__(self, url: str) -> None:
        """`url`: of an empty database."""
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)
        self._at_first = self._memory_mb()

    def fill(self, batches: Iterator[list[Change]]) -> None:
        for some in batches:
            self.write(some)

    def documents(self, computed: Any) -> dict[int, Document | None]:
        return dict(computed)

    def run_if_due(self) -> None:
        """There is nothing to do."""

    def sizes(self) -> dict[str, float]:
        return {"memory_mb": self._memory_mb() - self._at_first}

    def close(self) -> None:
        self._client.flushdb()
        self._client.close()

    def _memory_mb(self) -> float:
        return float(self._client.info("memory")["used_memory"]) / 1e6

    def write(self, changes: list[Change]) -> set[int]:
        """Writes rows and sets in one transaction of Redis. Returns the customers that the changes concern."""
        order_ids = list({_order_of(change) for change in changes} - {None})
        ask = self._client.pipeline(transaction=False)
        for change in changes:
            ask.hget(_key(change), VERSION)
        for number in order_ids:
            ask.hget(f"o:{number}", "customer_id")
        answers = ask.execute()
        versions, owners = answers[: len(changes)], dict(zip(order_ids, answers[len(changes) :], strict=True))
        customers = {int(owner) for owner in owners.values() if owner is not None}
        write = self._client.pipeline(transaction=True)
        for change, held in zip(changes, versions, strict=True):
            if held is not None and int(held) >= change.version:
                continue
            customers |= _add(write, change, owners)
        write.execute()
        return customers

    def compute(self, written: Any) -> dict[int, Document | None]:
        wanted = list(written)
        ask = self._client.pipeline(transaction=False)
        for customer in wanted:
            ask.hgetall(f"c:{customer}")
            ask.smembers(f"c:{customer}:orders")
        first = ask.execute()
        order_ids = [number for numbers in first[1::2] for number in numbers]
        for number in order_ids:
            ask.hgetall(f"o:{number}")
            ask.smembers(f"o:{number}:lines")
        second = ask.execute()
        line_keys = [
            f"l:{number}:{line}" for number, lines in zip(order_ids, second[1::2], strict=True) for line in lines
        ]
        for key in line_keys:
            ask.hgetall(key)
        lines_of: dict[str, list[Row]] = defaultdict(list)
        for line in ask.execute():
            lines_of[line["order_id"]].append(_typed(line))
        orders = dict(zip(order_ids, second[::2], strict=True))
        return {
            customer: _document(row, [_order(orders[number], lines_of[number]) for number in numbers])
            if "id" in row
            else None
            for customer, row, numbers in zip(wanted, first[::2], first[1::2], strict=True)
        }


def _key(change: Change) -> str:
    return ":".join((LETTERS[change.table], *map(str, change.key.values())))


def _order_of(change: Change) -> int | None:
    """The order whose customer a change concerns."""
    if change.table == CUSTOMERS.id:
        return None
    return int(change.key["id" if change.table == ORDERS.id else "order_id"])


def _add(write: Any, change: Change, owners: dict[Any, str | None]) -> set[int]:
    """Adds the commands of a change. Returns the customers that the new row leads to."""
    key, row = _key(change), change.row
    order = _order_of(change)
    write.delete(key)  # a field that is null now is not there
    if row is None:
        # What a deleted row leaves behind is its version, in a hash without other fields.
        write.hset(key, VERSION, change.version)
        if change.table == LINES.id:
            write.srem(f"o:{order}:lines", change.key["line_no"])
        return set()
    write.hset(key, mapping={VERSION: change.version} | {n: value for n, value in row.items() if value is not None})
    if change.table == LINES.id:
        write.sadd(f"o:{order}:lines", row["line_no"])
        return set()
    if change.table == ORDERS.id:
        if owners[order] not in (None, str(row["customer_id"])):
            write.srem(f"c:{owners[order]}:orders", order)
        write.sadd(f"c:{row['customer_id']}:orders", order)
        return {row["customer_id"]}
    return {row["id"]}


def _typed(row: dict[str, str]) -> Row:
    return {name: int(value) if name in NUMBERS else value for name, value in row.items()}


def _document(row: dict[str, str], orders: list[Document]) -> Document:
    """A nested document, its orders sorted."""
    plain = {"id": int(row["id"])} | {name: row.get(name) for name in ("name", "email", "phone")}
    return plain | {"orders": sorted(orders, key=lambda order: order["id"])}


def _order(row: dict[str, str], lines: list[Row]) -> Document:
    return {
        "id": int(row["id"]),
        "status": row.get("status"),
        "note": row.get("note"),
        "total": row.get("total"),
        "lines": [
            {
                "no": line["line_no"],
                "product": line.get("product_id"),
                "quantity": line.get("quantity"),
                "price": line.get("unit_price"),
            }
            for line in sorted(lines, key=lambda line: line["line_no"])
        ],
    }
