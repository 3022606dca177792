"""The shop's first rows: as many as asked for, the same for a seed, with the values that break naive code."""

import json
import random

import pytest

from watershed.demo import rows
from watershed.demo.rows import TABLES, Stock


@pytest.mark.parametrize("total", [50, 2000, 10_000, 1237])
def test_the_tables_have_as_many_rows_as_asked_for(total: int) -> None:
    stock = Stock(1, total)
    counts = {table: sum(1 for _ in stock.rows(table)) for table in TABLES}
    assert sum(counts.values()) == total
    assert all(counts.values())


def test_a_seed_gives_the_same_rows_and_another_seed_gives_others() -> None:
    first, same, other = Stock(7, 500), Stock(7, 500), Stock(8, 500)
    for table in TABLES:
        assert list(first.rows(table)) == list(same.rows(table))
    assert list(first.rows("customers")) != list(other.rows("customers"))


def test_keys_are_unique_and_references_exist() -> None:
    stock = Stock(3, 2000)
    customers = {values[0] for values in stock.rows("customers")}
    products = {values[0] for values in stock.rows("products")}
    orders = {values[0]: values[1] for values in stock.rows("orders")}
    lines = [values[:3] for values in stock.rows("order_lines")]
    assert (len(customers), len(products), len(orders)) == (
        stock.customer_count,
        stock.product_count,
        stock.order_count,
    )
    assert set(orders.values()) <= customers
    assert len({line[:2] for line in lines}) == stock.line_count
    assert {line[0] for line in lines} <= set(orders) and {line[2] for line in lines} <= products


def test_hard_values_occur() -> None:
    names = {values[2] for values in Stock(1, 10_000).rows("customers")}
    assert {"", "NULL", "\\N", "line\nbreak", "🌊🌊"} <= names
    columns = list(zip(*Stock(1, 5000).rows("products"), strict=True))
    nullable = [place for place, column in enumerate(columns) if None in column]
    assert nullable == [3, 5, 7, 11, 12], "description, weight_kg, colors, available_from, restocked_at"


def test_rows_stay_in_their_page() -> None:
    """A row of 2 kB would be stored out of line, and an update would leave the value out of the log."""
    for table in TABLES:
        assert max(len(repr(values)) for values in Stock(1, 5000).rows(table)) < 1500


def test_documents_are_json() -> None:
    rng = random.Random(1)
    for _ in range(200):
        assert isinstance(json.loads(rows.document(rng)), dict)
