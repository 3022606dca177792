"""A shop in memory: the rows that every base gets, random changes of them, and the nested documents that are right."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from cdc.model.events import TableId, pack_version
from sinks.contract import Change, Json
from tests.conformance.tables import NUMERIC_12_2, Table, table

ORDERS_PER_CUSTOMER: Final = 3
LINES_PER_ORDER: Final = 3
FILL_ROWS: Final = 5_000  # that are written together

CUSTOMERS: Final = table(
    "public", "customers", ("id",), {"id": "int8", "name": "text", "email": "text", "phone": "text"}
)
ORDERS: Final = table(
    "public",
    "orders",
    ("id",),
    {"id": "int8", "customer_id": "int8", "status": "text", "note": "text", "total": "numeric"},
    total=NUMERIC_12_2,
)
LINES: Final = table(
    "public",
    "order_lines",
    ("order_id", "line_no"),
    {"order_id": "int8", "line_no": "int4", "product_id": "uuid", "quantity": "int4", "unit_price": "numeric"},
    unit_price=NUMERIC_12_2,
)
TABLES: Final = (CUSTOMERS, ORDERS, LINES)

Row = dict[str, Json]
Document = dict[str, Any]  # numbers with a fraction are texts, as in records

# The changes of a round, in turn: a round of one change has another kind each time.
KINDS: Final = (
    "line changed",
    "order changed",
    "customer changed",
    "line added",
    "order moved",
    "line changed",
    "order changed",
    "line removed",
    "customer changed",
    "line changed",
)


class Round(NamedTuple):
    """Changes of distinct rows, and the customers whose documents they concern."""

    changes: list[Change]
    customers: frozenset[int]


class KeyedBase(Protocol):
    """A store of the shop's tables that computes documents."""

    def fill(self, batches: Iterator[list[Change]]) -> None:
        """Takes the rows at the beginning."""

    def write(self, changes: list[Change]) -> Any:
        """Writes the changes. Returns what `compute` needs. Both are measured."""

    def compute(self, written: Any) -> Any:
        """Returns the affected documents, in a form of its own."""

    def documents(self, computed: Any) -> dict[int, Document | None]:
        """The documents that `compute` has returned, by customer."""

    def run_if_due(self) -> None:
        """Does the store's maintenance, between two rounds and outside of the measurement."""

    def sizes(self) -> dict[str, float]:
        """Megabytes by name."""


class Shop:
    """The rows as they have to be. Two shops of the same size and seed make the same changes."""

    def __init__(self, customers: int, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._count = customers
        self._version = 0
        self._rows: dict[TableId, dict[tuple[Json, ...], Row]] = {one.id: {} for one in TABLES}
        self._orders: dict[int, set[int]] = {}  # by customer
        self._lines: dict[int, set[int]] = {}  # by order

    def fill(self) -> Iterator[list[Change]]:
        """Yields the upserts of all rows, some at a time."""
        rows = self._first_rows()
        while some := list(islice(rows, FILL_ROWS)):
            yield some

    def _first_rows(self) -> Iterator[Change]:
        orders = self._count * ORDERS_PER_CUSTOMER
        for number in range(1, self._count + 1):
            yield self._upsert(
                CUSTOMERS, {"id": number, "name": f"name {number}", "email": f"c{number}@example.org", "phone": None}
            )
        for number in range(1, orders + 1):
            customer = number % self._count + 1
            row: Row = {"id": number, "customer_id": customer, "status": "new", "note": None, "total": "10.00"}
            yield self._upsert(ORDERS, row)
        for number in range(1, orders + 1):
            for line in range(1, LINES_PER_ORDER + 1):
                yield self._upsert(LINES, self._line(number, line))

    def round(self, number: int, count: int) -> Round:
        """Changes `count` rows of the three tables. `number`: of the round."""
        found: dict[tuple[TableId, tuple[Json, ...]], Change] = {}
        customers: set[int] = set()
        for position in range(number, number + count):
            kind = KINDS[position % len(KINDS)]
            while (change := self._drawn(kind, found, customers)) is None:
                pass  # the row has been changed in this round, or there is none to remove
            found[change.table, tuple(change.key.values())] = change
        return Round(list(found.values()), frozenset(customers))

    def document(self, customer: int) -> Document:
        """The document of a customer, as its rows are now."""
        row = self._rows[CUSTOMERS.id][customer,]
        return row | {"orders": [self._order(order) for order in sorted(self._orders.get(customer, ()))]}

    def _order(self, number: int) -> Document:
        row = self._rows[ORDERS.id][number,]
        lines = [self._rows[LINES.id][number, line] for line in sorted(self._lines.get(number, ()))]
        return {name: row[name] for name in ("id", "status", "note", "total")} | {
            "lines": [
                {
                    "no": line["line_no"],
                    "product": line["product_id"],
                    "quantity": line["quantity"],
                    "price": line["unit_price"],
                }
                for line in lines
            ]
        }

    def _drawn(self, kind: str, found: Any, customers: set[int]) -> Change | None:
        """One change of a row that `found` has not, applied; the customers that it concerns are added."""
        customer, order = self._chance.randint(1, self._count), self._chance.randint(1, len(self._rows[ORDERS.id]))
        if kind == "customer changed":
            if (CUSTOMERS.id, (customer,)) in found:
                return None
            customers.add(customer)
            old = self._rows[CUSTOMERS.id][customer,]
            return self._upsert(CUSTOMERS, old | {"name": f"name {self._version}", "phone": f"+{self._version}"})
        if kind.startswith("order"):
            if (ORDERS.id, (order,)) in found:
                return None
            old = self._rows[ORDERS.id][order,]
            customers.add(old["customer_id"])
            if kind == "order changed":
                return self._upsert(ORDERS, old | {"status": "sent", "total": self._price()})
            customers.add(customer)
            return self._upsert(ORDERS, old | {"customer_id": customer, "note": f"of {old['customer_id']}"})
        lines = self._lines[order]
        line = max(lines, default=0) + 1 if kind == "line added" else max(lines, default=0)
        if line == 0 or (LINES.id, (order, line)) in found:
            return None
        customers.add(self._rows[ORDERS.id][order,]["customer_id"])
        if kind == "line removed":
            return self._delete_line(order, line)
        return self._upsert(LINES, self._line(order, line))

    def _line(self, order: int, number: int) -> Row:
        product = f"00000000-0000-4000-8000-{self._chance.randint(1, 100):012d}"
        return {
            "order_id": order,
            "line_no": number,
            "product_id": product,
            "quantity": self._chance.randint(1, 9),
            "unit_price": self._price(),
        }

    def _price(self) -> str:
        return f"{self._chance.randint(100, 99_999) / 100:.2f}"

    def _upsert(self, of: Table, row: Row) -> Change:
        key = tuple(row[name] for name in of.schema.key)
        old = self._rows[of.id].get(key)
        self._rows[of.id][key] = row
        if of is ORDERS:
            if old is not None:
                self._orders[old["customer_id"]].discard(row["id"])
            self._orders.setdefault(row["customer_id"], set()).add(row["id"])
            self._lines.setdefault(row["id"], set())
        elif of is LINES:
            self._lines[row["order_id"]].add(row["line_no"])
        self._version += 1
        return of.upsert(pack_version(1, self._version), **row)

    def _delete_line(self, order: int, line: int) -> Change:
        del self._rows[LINES.id][order, line]
        self._lines[order].discard(line)
        self._version += 1
        return LINES.delete(pack_version(1, self._version), order_id=order, line_no=line)
