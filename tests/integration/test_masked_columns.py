"""Masked columns that are altered: their table stops, the others go on, also over a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checker.records import parse
from tests.conftest import KafkaBroker, PostgresServer
from tests.support.captured import Captured, under_capture
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

PEOPLE, ITEMS = "public.people", "public.items"
TABLES = """
CREATE TABLE people (id int PRIMARY KEY, phone text); INSERT INTO people VALUES (1, '0123');
CREATE TABLE items (id int PRIMARY KEY, name text)
"""


@pytest.fixture
def shop(
    postgres: PostgresServer, kafka: KafkaBroker, fresh_database: str, unique: str, tmp_path: Path
) -> Iterator[Captured]:
    with under_capture(postgres, kafka, fresh_database, unique, tmp_path, TABLES, [PEOPLE, ITEMS]) as made:
        made.settings = {"masking": {"asterisks": {"public.people.phone": 3}}}
        yield made


def await_status(shop: Captured, status: str) -> None:
    eventually(lambda: shop.states().get(PEOPLE, {}).get("status") == status, 60.0, f"people are {status}")


def phones(shop: Captured) -> list[str | None]:
    """Of the rows in the topic, in its order."""
    values = [parse(record.value) for record in shop.records(PEOPLE) if record.value]
    return [(value["after"] or {}).get("phone") or (value["after"] or {}).get("mobile") for value in values]


def test_a_masked_column_that_is_renamed_stops_its_table_only(shop: Captured) -> None:
    capture = shop.start()
    shop.await_caught_up()
    shop.query("ALTER TABLE people RENAME phone TO mobile; INSERT INTO people VALUES (2, '0456')")
    await_status(shop, "stopped")
    assert "masking names column phone" in shop.states()[PEOPLE]["message"]
    shop.query("INSERT INTO items VALUES (1, 'a')")
    shop.await_caught_up()
    assert shop.unlike([ITEMS]) == {}
    assert capture.terminate() == 0

    capture = shop.start()
    shop.query("INSERT INTO items VALUES (2, 'b')")
    shop.await_caught_up()
    assert shop.unlike([ITEMS]) == {}
    assert "0456" not in phones(shop)
    shop.settings = {"masking": {"asterisks": {"public.people.nobody": 3}}}
    shop.config()
    refused = shop.ask("reload")
    assert not refused.is_accepted and "masking names column nobody" in refused.message
    shop.settings = {"masking": {"asterisks": {"public.people.mobile": 3}}}
    shop.config()
    assert shop.ask("reload").is_accepted
    await_status(shop, "captured")
    shop.query("INSERT INTO people VALUES (3, '0789')")
    shop.await_caught_up()
    assert set(phones(shop)) == {"***"}
    assert capture.exit_code is None
