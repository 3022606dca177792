"""The description of a table, and its name on the command line."""

from types import SimpleNamespace
from typing import Any

import pytest
import typer

from cdc.config.config_file import Config
from cdc.model.errors import ConfigError, WatershedError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.table_state import TableRecord
from watershed.cli import tables
from watershed.cli.tables import print_table, published_table
from watershed.verify import one_table
from watershed.verify.one_table import describe_table

ORDERS = TableSchema(
    TableId("public", "orders"),
    4,
    1,
    (Column("id", 20, -1, "bigint", nullable=False), Column("total", 1700, -1, "numeric(10,2)", nullable=True)),
    ("id",),
    "shop.public.orders",
)
CONFIG = Config.model_validate(
    {
        "source": {"dsn": "host=none", "tables": ["public.orders", "public.items"]},
        "kafka": {"bootstrap_servers": "none:1"},
        "topics": {"prefix": "shop"},
        "sinks": {
            "cache": {"url": "redis://c", "mapping": {"public.orders": {"where": "total > 3", "exclude": ["total"]}}},
            "search": {"url": "http://s"},
            "other": {"type": "cache", "url": "redis://d", "exclude_tables": ["public.orders"]},
        },
    }
)


def sink(name: str, generation: int, role: str = "serving") -> Any:
    return SimpleNamespace(sink=name, generation=generation, role=role, job=(1, "a"))


def described() -> dict[str, Any]:
    record = TableRecord(
        table_schema="public", table_name="orders", status="stopped", message="no key", next="add one", changed_us=1
    )
    return describe_table(CONFIG, ORDERS, record, 4, [sink("cache", 2), sink("cache", 3, "building")])


def test_a_table_is_described_with_its_names_in_every_store() -> None:
    found = described()
    stores = found.pop("stores")
    assert found == {
        "table": "public.orders",
        "status": "stopped",
        "message": "no key",
        "next": "add one",
        "topic": "shop.public.orders",
        "partitions": 4,
        "key": ["id"],
        "schema_version": 4,
        "columns": [
            {"name": "id", "type": "bigint", "nullable": False, "mask": None},
            {"name": "total", "type": "numeric(10,2)", "nullable": True, "mask": None},
        ],
    }
    assert [(one["sink"], one["is_held"], one["generation"], one["building"]) for one in stores] == [
        ("cache", True, 2, [3]),
        ("search", True, None, []),
        ("other", False, None, []),
    ]
    assert stores[0]["names"] == {"key": "shop:public.orders:<row id>", "versions": "shop:public.orders:"}
    assert (stores[0]["where"], stores[0]["columns"]) == ("total > 3", ["id"])
    assert stores[1]["names"]["alias"] == "shop.public.orders"


def test_the_description_is_printed_within_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    monkeypatch.setattr(tables, "wide_console", lambda: Console(width=80))
    found = described()
    found["columns"] += [
        {"name": "iban", "type": "text", "nullable": False, "mask": "asterisks(8)"},
        {"name": "note", "type": "text", "nullable": True, "mask": "hash"},
    ]
    print_table(found)
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    for part in (
        "public.orders",
        "state          stopped: no key",
        "topic          shop.public.orders, 4 partitions",
        "id      bigint         not null",
        "iban    text           not null, masked: asterisks(8)",
        "note    text           masked: hash",
        "cache   cache   2, 3 is built",
        "names: key shop:public.orders:<row id>, versions shop:public.orders:",
        "rows: where total > 3",
        "names: does not hold the table",
    ):
        assert part in text, text


def test_a_table_that_is_not_captured_names_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_table, "read_captured", lambda _: SimpleNamespace(schemas={ORDERS.table: ORDERS}))
    assert published_table(CONFIG, "public.orders") is ORDERS
    with pytest.raises(ConfigError, match=r"public\.order is not in source\.tables; did you mean public\.orders\?"):
        published_table(CONFIG, "public.order")
    with pytest.raises(WatershedError, match=r"capture has not published public\.items yet"):
        published_table(CONFIG, "public.items")
    with pytest.raises(typer.BadParameter, match=r"'orders' is not schema\.table"):
        published_table(CONFIG, "orders")
