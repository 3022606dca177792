"""A client's transactions: reproducible, of every kind, and its own rows only."""

from collections import Counter
from functools import cache
from typing import Any

import pytest

from watershed.demo.rows import Stock
from watershed.demo.shopper import MOVED_CUSTOMER_BASE, Shopper, Transaction, delete, insert, update

STOCK = Stock(11, 2000)


@cache
def plan(client: int = 0, count: int = 3000, stock: Stock = STOCK) -> list[Transaction]:
    shopper = Shopper(stock, client, 3)
    return [shopper.next() for _ in range(count)]


def test_a_seed_and_a_client_give_the_same_transactions() -> None:
    again = Shopper(STOCK, 0, 3)
    assert plan() == [again.next() for _ in range(3000)]


def test_other_seeds_and_clients_give_others() -> None:
    assert plan(0) != plan(1)
    assert plan(0) != plan(0, stock=Stock(12, 2000))


def test_every_kind_of_transaction_occurs() -> None:
    kinds = Counter(transaction.kind for transaction in plan())
    assert set(kinds) == {
        "new order", "advance order", "edit customer", "edit product", "new customer", "remove order", "replace order",
        "edit lines", "move line", "move customer", "change of mind", "roll back", "raise prices",
    }  # fmt: skip


def test_what_is_rolled_back_changes_no_rows() -> None:
    rolled_back = [transaction for transaction in plan() if not transaction.commits]
    assert rolled_back and all(transaction.rows == 0 and transaction.statements for transaction in rolled_back)


def test_what_is_undone_to_a_savepoint_is_not_counted() -> None:
    change = next(transaction for transaction in plan() if transaction.kind == "change of mind")
    texts = [statement.text for statement in change.statements]
    assert "SAVEPOINT try" in texts and "ROLLBACK TO SAVEPOINT try" in texts
    between = change.statements[texts.index("SAVEPOINT try") + 1 : texts.index("ROLLBACK TO SAVEPOINT try")]
    assert between and all(statement.rows == 0 for statement in between)
    assert change.rows == 2


def test_events_say_what_becomes_of_orders() -> None:
    published: dict[str, set[tuple[str, ...]]] = {}
    for transaction in plan():
        if transaction.commits and transaction.kind != "change of mind":
            kinds = tuple(
                statement.values[0] if statement.text.startswith("SELECT cdc.publish") else "OrderShipped"
                for statement in transaction.statements
                if "cdc." in statement.text
            )
            published.setdefault(transaction.kind, set()).add(kinds)
    assert {kind: events for kind, events in published.items() if events != {()}} == {
        "new order": {("OrderPlaced",)},
        "advance order": {(), ("OrderShipped",)},
        "remove order": {("OrderCancelled",)},
        "replace order": {("OrderCancelled", "OrderPlaced")},
    }


def test_what_is_undone_has_events_too() -> None:
    for kind, count in (("change of mind", 2), ("roll back", 2)):
        transaction = next(transaction for transaction in plan() if transaction.kind == kind)
        assert sum("cdc." in statement.text for statement in transaction.statements) == count


def keys_written(transactions: list[Transaction], table: str) -> set[Any]:
    """First key value of every statement that creates, changes or deletes a row of the table."""
    keys: set[Any] = set()
    for transaction in transactions:
        for statement in transaction.statements:
            if statement.text.startswith((f"UPDATE {table} SET", f"DELETE FROM {table} ")):
                where = statement.text.partition(" WHERE ")[2].count("%s")
                keys.add(statement.values[-where] if "ANY" not in statement.text else tuple(statement.values[0]))
            elif statement.text.startswith(f"INSERT INTO {table} "):
                keys.add(statement.values[0])
    return keys


@pytest.mark.parametrize("table", ["customers", "orders", "order_lines"])
def test_clients_share_no_rows_that_they_change(table: str) -> None:
    first, second, third = (keys_written(plan(client), table) for client in range(3))
    assert first and second and third
    assert not first & second and not second & third and not first & third


def test_moved_customers_get_keys_that_a_double_cannot_hold() -> None:
    moved = [transaction for transaction in plan() if transaction.kind == "move customer"]
    new = [transaction.statements[0].values[0] for transaction in moved]
    assert all(number >= MOVED_CUSTOMER_BASE for number in new)
    assert len(set(new)) == len(new)


def test_statements_have_placeholders_for_their_values() -> None:
    assert update("orders", {"id": 1}, status="new") == (
        "UPDATE orders SET status = %s WHERE id = %s",
        ("new", 1),
        1,
    )
    assert delete("order_lines", {"order_id": 1, "line_no": 2}) == (
        "DELETE FROM order_lines WHERE order_id = %s AND line_no = %s",
        (1, 2),
        1,
    )
    assert insert("saved_searches", (1, "dear", "new", 5)).text == "INSERT INTO saved_searches VALUES (%s, %s, %s, %s)"
