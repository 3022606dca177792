"""One client of the shop: an endless, reproducible sequence of transactions. Pure; `watershed.demo.workload` runs them.

Clients share no customer, order or product that they change, so they never wait for or undo each other, and each
client's sequence depends only on the seed. A client knows what it has committed, and plans the next transaction from
that.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from watershed.demo import rows
from watershed.demo.rows import Stock, Values

# Above the integers that a double can represent: a pipeline that reads numbers as floating point loses these keys.
MOVED_CUSTOMER_BASE = 2**53 + 1
MOVED_LINE_STEP = 100
PRICE_RISE_PRODUCTS = 50


class Statement(NamedTuple):
    """SQL with its values, and the number of rows that it changes when it is committed, cascades included."""

    text: str
    values: Values = ()
    rows: int = 0


Statements = tuple[Statement, ...]


class Transaction(NamedTuple):
    """A transaction that ends with COMMIT or ROLLBACK."""

    kind: str
    statements: Statements
    commits: bool = True

    @property
    def rows(self) -> int:
        """The number of row changes that it commits."""
        return sum(statement.rows for statement in self.statements) if self.commits else 0


@dataclass(slots=True)
class _Order:
    customer: int
    lines: list[int]


def insert(table: str, values: Values) -> Statement:
    """Returns the statement for a row whose values are in the order of shop.sql."""
    return Statement(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(values))})", values, 1)


def update(table: str, key: dict[str, Any], row_count: int = 1, **values: Any) -> Statement:
    changes = ", ".join(f"{name} = %s" for name in values)
    return Statement(f"UPDATE {table} SET {changes} WHERE {_where(key)}", (*values.values(), *key.values()), row_count)


def delete(table: str, key: dict[str, Any], row_count: int = 1) -> Statement:
    return Statement(f"DELETE FROM {table} WHERE {_where(key)}", tuple(key.values()), row_count)


def _where(key: dict[str, Any]) -> str:
    return " AND ".join(f"{name} = %s" for name in key)


def event(kind: str, order: int) -> Statement:
    """Publishes an event from the order's row, so it follows the row's insert and precedes its delete. OrderShipped
    goes through the outbox table, the others are messages: both become records of the same topic, in commit order.
    """
    if kind == "OrderShipped":
        return Statement(
            "INSERT INTO cdc.outbox (aggregatetype, aggregateid, type, payload)"
            " SELECT 'order', id, 'OrderShipped', jsonb_build_object('shipped_at', now()) FROM orders WHERE id = %s",
            (order,),
        )
    return Statement(
        "SELECT cdc.publish('order', id::text, %s, jsonb_build_object('total', total::text)) FROM orders WHERE id = %s",
        (kind, order),
    )


class Shopper:
    """Plans one client's transactions. `next()` counts each one as done, so every one must be run."""

    def __init__(self, stock: Stock, client: int, client_count: int) -> None:
        self._rng = random.Random(f"{stock.seed}/client/{client}")
        self._product_count = stock.product_count
        self._products = list(range(client, stock.product_count, client_count))
        self._step = client_count
        self._next_order = stock.order_count + 1 + client
        self._next_customer = stock.customer_count + 1 + client
        self._next_moved = MOVED_CUSTOMER_BASE + client
        self._customers = [one for one in range(1, stock.customer_count + 1) if one % client_count == client]
        self._orders: dict[int, _Order] = {}  # from the oldest to the newest
        for number in range(1, stock.order_count + 1):
            customer = stock.customer_of(number)
            if customer % client_count == client:
                self._orders[number] = _Order(customer, list(range(1, stock.lines_of(number) + 1)))

    def next(self) -> Transaction:
        """Returns the next transaction."""
        plan = self._rng.choices(_PLANS, _WEIGHTS)[0] if self._orders else Shopper._new_order
        kind = plan.__name__.strip("_").replace("_", " ")
        return Transaction(kind, plan(self), commits=plan is not Shopper._roll_back)

    # ---- plans: each updates the client's model of the shop, and returns statements.

    def _new_order(self) -> Statements:
        number, self._next_order = self._next_order, self._next_order + self._step
        customer = self._any_customer()
        lines = list(range(1, self._rng.randrange(1, 5) + 1))
        self._orders[number] = _Order(customer, lines)
        return (
            insert("orders", rows.order(self._rng, number, customer)),
            event("OrderPlaced", number),
            *(self._new_line(number, line) for line in lines),
            update("customers", {"id": customer}, credit=rows.money(self._rng), seen_at=rows.local_moment(self._rng)),
        )

    def _advance_order(self) -> Statements:
        number, status = self._any_order(), self._rng.choice(rows.STATUSES)
        return (
            update("orders", {"id": number}, status=status, paid_at=rows.local_moment(self._rng)),
            *([event("OrderShipped", number)] if status == "shipped" else []),
            self._stock_product(),
        )

    def _edit_customer(self) -> Statements:
        rng = self._rng
        contact = {"phone": rows.maybe(rng, "+44 20 7946 0000"), "loyal": rng.random() < 0.5, "name": rows.text(rng)}
        taste = {"profile": rows.maybe(rng, rows.document(rng)), "interests": rows.texts(rng)}
        return (update("customers", {"id": self._any_customer()}, **rng.choice((contact, taste))),)

    def _edit_product(self) -> Statements:
        rng = self._rng
        item = {"price": rows.price(rng), "weight_kg": rows.maybe(rng, rows.double(rng)), "colors": rows.texts(rng)}
        text = {"description": rows.maybe(rng, rows.text(rng, 12)), "attributes": rows.document(rng)}
        return (update("products", self._any_product(), **rng.choice((item, text))),)

    def _new_customer(self) -> Statements:
        number, self._next_customer = self._next_customer, self._next_customer + self._step
        self._customers.append(number)
        return (insert("customers", rows.customer(self._rng, number)),)

    def _remove_order(self) -> Statements:
        """Deletes the oldest order; the foreign key deletes its lines."""
        number = next(iter(self._orders))
        lines = self._orders.pop(number).lines
        return event("OrderCancelled", number), delete("orders", {"id": number}, 1 + len(lines))

    def _replace_order(self) -> Statements:
        """Deletes and creates the same keys in one transaction."""
        number = next(iter(self._orders))
        customer = self._orders[number].customer
        removed = self._remove_order()
        self._orders[number] = _Order(customer, [1])
        placed = insert("orders", rows.order(self._rng, number, customer)), event("OrderPlaced", number)
        return *removed, *placed, self._new_line(number, 1)

    def _edit_lines(self) -> Statements:
        """Changes an order's lines, deletes one of them, and adds another one."""
        number = self._any_order()
        lines = self._orders[number].lines
        statements = [update("order_lines", self._line(number, line), quantity=line % 9 + 1) for line in lines]
        added = max(lines) + 1
        if len(lines) > 1:
            gone = lines.pop(self._rng.randrange(len(lines)))
            statements.append(delete("order_lines", self._line(number, gone)))
        lines.append(added)
        return (*statements, self._new_line(number, added))

    def _move_line(self) -> Statements:
        """Changes a key: one part of the composite key."""
        number = self._any_order()
        lines = self._orders[number].lines
        place = self._rng.randrange(len(lines))
        moved = max(lines) + MOVED_LINE_STEP
        key, lines[place] = self._line(number, lines[place]), moved
        return (update("order_lines", key, line_no=moved, discount=0.5),)

    def _move_customer(self) -> Statements:
        """Changes a key; the foreign key updates the customer's orders."""
        old = self._any_customer()
        new, self._next_moved = self._next_moved, self._next_moved + self._step
        self._customers[self._customers.index(old)] = new
        orders = [order for order in self._orders.values() if order.customer == old]
        for order in orders:
            order.customer = new
        return (update("customers", {"id": old}, 1 + len(orders), id=new),)

    def _change_of_mind(self) -> Statements:
        """Rolls back a part of the work to a savepoint, and commits the rest."""
        order = next(iter(self._orders))
        return (
            update("customers", {"id": self._any_customer()}, credit=rows.money(self._rng)),
            Statement("SAVEPOINT try"),
            insert("customers", rows.customer(self._rng, self._next_customer))._replace(rows=0),
            update("products", self._any_product(), 0, title="undone", stock=-1),
            event("OrderCancelled", order),
            event("OrderShipped", order),
            UNDO,
            self._stock_product(),
        )

    def _roll_back(self) -> Statements:
        """Rolls back all changes. None of them may ever be visible anywhere."""
        number = self._next_customer
        return (
            insert("customers", rows.customer(self._rng, number)),
            insert("orders", rows.order(self._rng, self._next_order, number)),
            event("OrderPlaced", self._next_order),
            event("OrderShipped", self._next_order),
            update("products", self._any_product(), title="rolled back", stock=-2),
        )

    def _raise_prices(self) -> Statements:
        """Changes many rows by one statement."""
        count = min(PRICE_RISE_PRODUCTS, len(self._products))
        ids = [rows.product_id(number) for number in self._rng.sample(self._products, count)]
        text = "UPDATE products SET price = round(mod(price, 1000) * 1.05 + 0.01, 2) WHERE id = ANY(%s)"
        return (Statement(text, (ids,), count),)

    # ---- parts of plans

    def _any_customer(self) -> int:
        return self._rng.choice(self._customers)

    def _any_order(self) -> int:
        return self._rng.choice(list(self._orders))

    def _any_product(self) -> dict[str, Any]:
        return {"id": rows.product_id(self._rng.choice(self._products))}

    def _stock_product(self) -> Statement:
        return update("products", self._any_product(), stock=rows.integer(self._rng))

    def _new_line(self, order: int, line: int) -> Statement:
        return insert("order_lines", rows.order_line(self._rng, order, line, self._product_count))

    def _line(self, order: int, line: int) -> dict[str, int]:
        return {"order_id": order, "line_no": line}


UNDO = Statement("ROLLBACK TO SAVEPOINT try")

# The frequency of each plan, of 100 transactions.
_MIX: dict[Callable[[Shopper], Statements], float] = {
    Shopper._new_order: 24,
    Shopper._advance_order: 20,
    Shopper._edit_customer: 13,
    Shopper._edit_product: 8,
    Shopper._new_customer: 7,
    Shopper._remove_order: 12,
    Shopper._replace_order: 2,
    Shopper._edit_lines: 4,
    Shopper._move_line: 3.5,
    Shopper._move_customer: 1.5,
    Shopper._change_of_mind: 2,
    Shopper._roll_back: 2.5,
    Shopper._raise_prices: 0.5,
}
_PLANS = tuple(_MIX)
_WEIGHTS = tuple(_MIX.values())
