"""Tables under views, with random rows of them, and the recipes of the documentation as queries over them."""

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cdc.config.views import MINUTES
from sinks.contract import Json
from tests.conformance.tables import Table, table

PAGE: Final = Path(__file__).parents[2] / "docs/how-to/views-recipes.md"
_RECIPE: Final = re.compile(r"<!-- view: (\w+) key: ([\w, ]+) -->\n```sql\n(.*?)```", re.DOTALL)

CUSTOMERS: Final = table("public", "customers", ("id",), {"id": "int8", "name": "text", "region": "text"})
ORDERS: Final = table(
    "public", "orders", ("id",), {"id": "int8", "customer_id": "int8", "placed_at": "timestamptz", "note": "json"}
)
LINES: Final = table(
    "public", "lines", ("order_id", "no"), {"order_id": "int8", "no": "int4", "sku": "text", "price": "numeric"}
)
SHOP: Final = (CUSTOMERS, ORDERS, LINES)

RATES: Final = table(
    "public",
    "rates",
    ("country", "valid_from"),
    {"country": "text", "valid_from": "timestamptz", "rate": "numeric"},
)
PURCHASES: Final = table(
    "public", "purchases", ("id",), {"id": "int8", "country": "text", "at": "timestamptz", "amount": "numeric"}
)
USERS: Final = table("public", "users", ("id",), {"id": "int8", "name": "text"})
FOLLOWS: Final = table("public", "follows", ("user_id", "author_id"), {"user_id": "int8", "author_id": "int8"})
POSTS: Final = table(
    "public", "posts", ("id",), {"id": "int8", "author_id": "int8", "at": "timestamptz", "text": "text"}
)
SEARCHES: Final = table(
    "public",
    "searches",
    ("id",),
    {"id": "int8", "user_id": "int8", "at": "timestamptz", "words": "text", "due_at": "timestamptz"},
)
CLICKS: Final = table(
    "public", "clicks", ("id",), {"id": "int8", "user_id": "int8", "at": "timestamptz", "url": "text"}
)
PAYMENTS: Final = table(
    "public",
    "payments",
    ("id",),
    {
        "id": "int8",
        "customer_id": "int8",
        "at": "timestamptz",
        "status": "text",
        "amount": "numeric",
        "due_at": "timestamptz",
    },
)
READINGS: Final = table(
    "public",
    "readings",
    ("id",),
    {
        "id": "int8",
        "device_id": "int8",
        "measured_at": "timestamptz",
        "sent_at": "timestamptz",
        "received_at": "timestamptz",
        "value": "numeric",
    },
)
SAVED_SEARCHES: Final = table(
    "public",
    "saved_searches",
    ("id",),
    {"id": "int8", "category": "text", "price_max": "numeric", "words": "text", "filter": "text"},
)
DOCUMENTS: Final = table(
    "public",
    "documents",
    ("id",),
    {"id": "int8", "category": "text", "title": "text", "price": "numeric", "attributes": "jsonb"},
)
INVOICES: Final = table("public", "invoices", ("id",), {"id": "int8", "customer_id": "int8", "due_at": "timestamptz"})
RECEIPTS: Final = table("public", "receipts", ("id",), {"id": "int8", "invoice_id": "int8", "at": "timestamptz"})
TICKS: Final = table("public", "ticks", ("at",), {"at": "timestamptz"})
ACCOUNT_EVENTS: Final = table(
    "public",
    "account_events",
    ("account_id", "no"),
    {"account_id": "int8", "no": "int4", "kind": "text", "amount": "numeric", "owner": "text"},
)
ALL: Final = (
    *SHOP,
    RATES,
    PURCHASES,
    USERS,
    FOLLOWS,
    POSTS,
    SEARCHES,
    CLICKS,
    PAYMENTS,
    READINGS,
    SAVED_SEARCHES,
    DOCUMENTS,
    INVOICES,
    RECEIPTS,
    TICKS,
    ACCOUNT_EVENTS,
)


PAYER: Final = 100  # a key that no random row has


class Query(NamedTuple):
    """The query of a view."""

    text: str
    key: list[str]

    @property
    def tables(self) -> list[Table]:
        """The tables that it names."""
        return [one for one in ALL if re.search(rf"\b{one.id.name}\b", self.text)]


def recipes() -> Mapping[str, Query]:
    """The queries of the documentation's page, by name. Their clock is a captured table: its minutes pass at random."""
    text = PAGE.read_text().replace(str(MINUTES), TICKS.id.name)
    found = {name: Query(query, key.split(", ")) for name, key, query in _RECIPE.findall(text)}
    assert len(found) == PAGE.read_text().count("```sql"), "each query of the page has a name and a key"
    return found


def draw_key(chance: random.Random, kind: Table) -> dict[str, Json]:
    """A key among few, so that rows are changed and deleted often."""
    number = chance.randint(1, 8)
    if kind is LINES:
        return {"order_id": number, "no": chance.randint(1, 3)}
    if kind is RATES:
        return {"country": chance.choice(["DE", "Österreich"]), "valid_from": _moment(chance)}
    if kind is TICKS:
        return {"at": _moment(chance)}
    if kind is FOLLOWS:
        return {"user_id": number, "author_id": chance.randint(1, 4)}
    if kind is ACCOUNT_EVENTS:
        return {"account_id": chance.randint(1, 3), "no": chance.randint(1, 6)}
    if kind in (CLICKS, PAYMENTS, READINGS):
        return {"id": chance.randint(1, 24)}
    return {"id": number}


def draw_values(chance: random.Random, kind: Table) -> dict[str, Json]:
    """Values of the other columns. Few differ, so that rows meet; one in six is null."""
    values: dict[str, Json] = {}
    for name, typname in kind.types.items():
        if name not in kind.schema.key:
            value = _drawn(chance, kind, name, typname)
            values[name] = None if chance.random() < 0.16 else value
    return values


def _drawn(chance: random.Random, kind: Table, name: str, typname: str) -> Json:
    choices: dict[str, list[Any]] = {
        "name": ["n1", "n2", "n3"],
        "region": ["north", "söuth"],
        "note": ['{"a":1}', '{"a": 1}'],
        "sku": ["s0", "s1", "s2", "s3"],
        "country": ["DE", "Österreich"],
        "rate": ["0.19", "0.190", "0.16", "0"],
        "status": ["failed", "failed", "failed", "paid"],
        "category": ["bikes", "boats"],
        "price_max": ["2", "10.00"],
        "words": ["red", "red -old", "or ("],
        "filter": ["$ ? (@.gears > 3)", '$.tags[*] ? (@ == "new")'],
        "title": ["Red bike", "an old red boat", "RED", ""],
        "attributes": ['{"gears": 7}', '{"gears": 2, "tags": ["new"]}', "[]", "null"],
        "kind": ["opened", "opened", "deposited", "withdrawn", "renamed", "closed"],
        "owner": ["Ada", "Bob"],
        "url": ["/a", "/b"],
    }
    if name in choices:
        return chance.choice(choices[name])
    if typname == "timestamptz":
        absurd = kind is READINGS or (kind is PAYMENTS and chance.random() < 0.3)
        odd = ["infinity", "-infinity", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
        if absurd and chance.random() < 0.2:
            return chance.choice(odd)
        # Payments lie close together, so that some make a pattern.
        return _moment(chance, hours=(10, 10)) if kind is PAYMENTS and chance.random() < 0.8 else _moment(chance)
    if typname == "numeric":
        return chance.choice(["1", "1.0", "2.50", "17.3"])
    few = {"user_id": 3, "device_id": 3, "customer_id": 2 if kind is PAYMENTS else 8, "author_id": 4}
    return chance.randint(1, few.get(name, 8))


def _moment(chance: random.Random, hours: tuple[int, int] = (8, 11)) -> str:
    """A time of few hours, in any order; some are equal."""
    return f"2026-01-01T{chance.randint(*hours):02}:{chance.choice([0, 5, 10, 20, 29, 30, 59]):02}:00Z"
