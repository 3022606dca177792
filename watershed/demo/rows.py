"""The shop's rows, drawn from a seed. Each column has difficult values of its kind: quotes, backslashes, line ends,
other alphabets, the texts `NULL` and `\\N`, empty and null, the ends of number ranges.
"""

import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

Values = tuple[Any, ...]

# In the order in which they are filled. Every function below gives a row's values in the order of shop.sql.
TABLES = ("customers", "products", "orders", "order_lines")
STATUSES = ("new", "paid", "packed", "shipped", "returned")

_START = datetime(2026, 1, 1, tzinfo=UTC)
_WORDS = (
    "amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbour", "island", "juniper", "kelp", "lagoon",
    "meadow", "nectar", "ocean", "prairie", "quartz", "river", "summit", "tundra", "upland", "valley", "willow", "zinc",
)  # fmt: skip
_HARD = (
    "", "NULL", "null", "\\N", "\\.", "tab\there", "line\nbreak", "carriage\rreturn", "back\\slash", "it's \"quoted\"",
    "{curly,braces}", "[1,2]", " blanks around ", "naïve café ☕", "数据流", "поток данных", "🌊🌊", "<b>&amp;</b>",
    "a,b;c", "%s $1 ?", "\u00e9 or e\u0301",
)  # fmt: skip
_DOUBLES = (
    0.1 + 0.2, 1e-7, 123456789.125, 2.5e15, 1 / 3, -0.75, 1.7976931348623157e308, 5e-324, 0.0, -0.0,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
_DECIMALS = ("0.00", "0.01", "-0.01", "9999999999.99", "-9999999999.99", "1000000.00", "19.90")
_INTEGERS = (0, -1, 2147483647, -2147483648, 42)


def product_id(number: int) -> UUID:
    """Returns the id of a product. The same number gives the same product, so the workload needs no list of them."""
    return UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835 + 0x5EED) & (1 << 128) - 1, version=4)


def text(rng: random.Random, words: int = 3) -> str:
    """Returns ordinary words, and one time in eight a text that breaks naive code."""
    return rng.choice(_HARD) if rng.random() < 0.125 else " ".join(rng.choices(_WORDS, k=words))


def maybe(rng: random.Random, value: Any) -> Any:
    """Returns the value, or None one time in five."""
    return None if rng.random() < 0.2 else value


def money(rng: random.Random) -> Decimal:
    return Decimal(rng.choice(_DECIMALS)) if rng.random() < 0.1 else Decimal(rng.randrange(100_00)) / 100


def price(rng: random.Random) -> Decimal:
    return Decimal(rng.randrange(1, 500_00)) / 100


def double(rng: random.Random) -> float:
    return rng.choice(_DOUBLES) if rng.random() < 0.2 else rng.uniform(0, 50)


def integer(rng: random.Random) -> int:
    return rng.choice(_INTEGERS) if rng.random() < 0.1 else rng.randrange(1000)


def moment(rng: random.Random) -> datetime:
    """Returns a timestamp with time zone; whole seconds, milliseconds and microseconds all occur."""
    digits = rng.choice((1, 1000, 1_000_000))
    return _START + timedelta(microseconds=rng.randrange(20_000_000_000_000) // digits * digits)


def local_moment(rng: random.Random) -> datetime:
    return moment(rng).replace(tzinfo=None)


def day(rng: random.Random) -> date:
    return date(1900, 1, 1) + timedelta(days=rng.randrange(60_000))


def texts(rng: random.Random) -> list[str | None]:
    return [maybe(rng, text(rng, 1)) for _ in range(rng.randrange(4))]


def integers(rng: random.Random) -> list[int | None]:
    return [maybe(rng, integer(rng)) for _ in range(rng.randrange(4))]


def document(rng: random.Random) -> str:
    """Returns JSON as text; jsonb stores it in its own form."""
    return json.dumps(
        {
            "level": rng.randrange(5),
            "ratio": round(rng.random(), 6),
            text(rng, 1): [text(rng, 2), None, True],
            "nested": {"big": 2**53 + rng.randrange(1000), "price": f"{money(rng)}"},
        },
        ensure_ascii=rng.random() < 0.5,
    )


def customer(rng: random.Random, number: int) -> Values:
    return (
        number, f"c{number}@shop.example", text(rng), maybe(rng, f"+49 30 {rng.randrange(10**7)}"),
        maybe(rng, day(rng)), rng.random() < 0.3, money(rng), texts(rng), maybe(rng, document(rng)), moment(rng),
        maybe(rng, local_moment(rng)),
    )  # fmt: skip


def product(rng: random.Random, number: int) -> Values:
    return (
        product_id(number), f"SKU-{number:06}", text(rng), maybe(rng, text(rng, 12)), price(rng),
        maybe(rng, double(rng)), integer(rng), maybe(rng, texts(rng)), integers(rng), document(rng),
        rng.random() < 0.9, maybe(rng, day(rng)), maybe(rng, local_moment(rng)),
    )  # fmt: skip


def order(rng: random.Random, number: int, customer_id: int) -> Values:
    return (
        number, customer_id, rng.choice(STATUSES), moment(rng), maybe(rng, day(rng)), price(rng),
        rng.choice((True, False, None)), maybe(rng, text(rng, 5)), maybe(rng, local_moment(rng)),
    )  # fmt: skip


def order_line(rng: random.Random, order_id: int, line_no: int, product_count: int) -> Values:
    return (
        order_id, line_no, product_id(rng.randrange(product_count)), rng.randrange(1, 20), price(rng),
        maybe(rng, double(rng)), maybe(rng, integers(rng)), maybe(rng, document(rng)),
    )  # fmt: skip


class Stock:
    """The rows that exist before the workload starts: `total` rows over the four tables, from a seed."""

    def __init__(self, seed: int, total: int) -> None:
        self.seed = seed
        self.customer_count = total // 5
        self.product_count = total // 25
        self.order_count = total * 6 // 25
        self.line_count = total - self.customer_count - self.product_count - self.order_count

    def customer_of(self, order_id: int) -> int:
        """Returns the customer of an order. Customers and orders are numbered from 1. One customer in five has no
        order.
        """
        return random.Random(self.seed * 1_000_003 + order_id).randrange(self.customer_count * 4 // 5) + 1

    def lines_of(self, order_id: int) -> int:
        """Returns the number of an order's lines. Lines are spread evenly, so that the total is exact."""
        return order_id * self.line_count // self.order_count - (order_id - 1) * self.line_count // self.order_count

    def rows(self, table: str) -> Iterator[Values]:
        """Returns a table's rows, in key order except for products."""
        rng, orders = random.Random(f"{self.seed}/{table}"), range(1, self.order_count + 1)
        made: dict[str, Iterator[Values]] = {
            "customers": (customer(rng, number) for number in range(1, self.customer_count + 1)),
            "products": (product(rng, number) for number in range(self.product_count)),
            "orders": (order(rng, number, self.customer_of(number)) for number in orders),
            "order_lines": (
                order_line(rng, number, line, self.product_count)
                for number in orders
                for line in range(1, self.lines_of(number) + 1)
            ),
        }
        return made[table]
