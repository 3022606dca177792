"""`cdc get` side by side; how a store is judged is in tests/unit/watershed/verify/test_one_key.py."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cdc.model.events import Column, TableId, TableSchema, pack_version
from watershed.cli import get
from watershed.cli.main import application
from watershed.status.table_records import PublishedRecord
from watershed.verify import one_key
from watershed.verify.one_key import SourceSide, StoreRow, Verdict

ORDERS = TableSchema(
    TableId("public", "orders"),
    4,
    1,
    (Column("id", 20, -1, "bigint", nullable=False), Column("total", 1700, -1, "numeric(10,2)", nullable=True)),
    ("id",),
    "shop.public.orders",
)
ROW = {"id": 7, "total": "12.50"}
RECORD = PublishedRecord(2, 40, {"id": 7}, "u", pack_version(1, 42), 0x16B3748, 1_000_000, ROW)
NAMES = {"id": "id", "total": "total"}
EQUAL = StoreRow("search", Verdict.EQUAL, "", "", 1, pack_version(1, 42), 0x16B3748, {"id": 7, "total": 12.5}, NAMES)
BEHIND = StoreRow(
    "cache", Verdict.BEHIND, "sink cache does not make progress", "start it", 1, pack_version(1, 9), 1, ROW, NAMES
)
DIFFERS = StoreRow("sql", Verdict.DIFFERS, "missing", "cdc repair", 1, None, 2, None, {"id": "id", "total": "cost"})
LACKS = StoreRow("old", Verdict.NOT_COMPARED, "sink old has never run", "start it")

Get = Callable[..., Result]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Get:
    file = tmp_path / "watershed.yml"
    sections = "source: {dsn: a, tables: [public.orders]}", "kafka: {bootstrap_servers: k:1}", "topics: {prefix: s}"
    file.write_text("\n".join(sections))

    def asked(*stores: StoreRow, words: tuple[str, ...] = (), floor: int = 0, source: Any = ROW) -> Result:
        class Reader:
            def __init__(self, *arguments: Any) -> None:
                assert arguments[-1] == b'{"id":7}'

            def source(self) -> SourceSide:
                return SourceSide(source and {"id": "7", "total": "12.50"})

            def topic(self, count: int, deadline: float | None) -> list[PublishedRecord]:
                assert deadline is None
                return [RECORD][:count]

            def stores(self, *, is_settled: bool) -> list[StoreRow]:
                assert is_settled
                return list(stores)

        monkeypatch.setattr(one_key, "KeyReader", Reader)
        monkeypatch.setattr(get, "published_table", lambda *_: ORDERS)
        monkeypatch.setattr(one_key, "read_schema_histories", lambda _: {ORDERS.table: SimpleNamespace(newest=ORDERS)})
        monkeypatch.setattr(one_key, "PipelineReader", lambda *_: nullcontext())
        monkeypatch.setattr(one_key, "VerifiedTable", lambda *_: nullcontext())
        monkeypatch.setattr(one_key, "read_captured", lambda _: SimpleNamespace(floors={ORDERS.table: floor}))
        words = ("get", "public.orders", "7", "--config", str(file), *words)
        return CliRunner().invoke(application(["get"]), words)

    return asked


def test_a_row_is_shown_side_by_side_with_a_verdict_for_each_store(asked: Get) -> None:
    lines = asked(EQUAL, BEHIND).stdout.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "public.orders 7",
        "source topic search cache",
        "version 1.42 1.42 1.9",
        "LSN 0/16B3748 0/16B3748 0/1",
        "id '7' 7 7 7",
        "total '12.50' '12.50' 12.5 '12.50'",
        "topic shop.public.orders: partition 2, offset 40, update",
        "store verdict next",
        "search equal",
        "cache behind sink cache does not make progress start it",
    ]


def test_a_store_without_the_row_shows_that_it_is_absent(asked: Get) -> None:
    text = asked(DIFFERS, words=("--records", "0"), source=None).stdout
    assert [line.split() for line in text.splitlines() if line.startswith("total")] == [["total", "absent", "absent"]]
    assert "topic shop.public.orders: no record of this key was read" in text


@pytest.mark.parametrize(
    ("stores", "code"),
    [((EQUAL,), 0), ((), 0), ((EQUAL, BEHIND), 7), ((EQUAL, LACKS), 6), ((LACKS, BEHIND, DIFFERS), 5)],
)
def test_the_exit_code_is_that_of_the_worst_verdict(asked: Get, stores: tuple[StoreRow, ...], code: int) -> None:
    assert asked(*stores).exit_code == code
    assert asked(*stores, words=("--json",)).exit_code == code


def test_a_sink_without_the_table_is_named(asked: Get, tmp_path: Path) -> None:
    with (tmp_path / "watershed.yml").open("a") as file:
        file.write(
            "\nsinks: {cache: {url: 'redis://c'}, audit: {type: sql, url: 'sqlite:///a', exclude_tables: ['*']}}\n"
        )
    assert asked(EQUAL).stdout.splitlines()[-1] == "without the table, by `tables` or `exclude_tables`: audit"
    assert json.loads(asked(EQUAL, words=("--json",)).stdout)["not_held"] == ["audit"]
    assert "without the table" not in asked(EQUAL, words=("--json",)).stdout


def test_json_has_all_values(asked: Get) -> None:
    found = json.loads(asked(EQUAL, DIFFERS, words=("--json",), floor=pack_version(1, 43)).stdout)
    assert (found["table"], found["key"], found["source"]) == (
        "public.orders",
        {"id": 7},
        {"id": "7", "total": "12.50"},
    )
    (record,) = found["topic"]["records"]
    assert (record["op"], record["row"], record["is_swept"]) == ("update", ROW, True)
    assert [(one["sink"], one["verdict"], one["row"]) for one in found["stores"]] == [
        ("search", "equal", {"id": 7, "total": 12.5}),
        ("sql", "differs", None),
    ]
    assert found["stores"][1]["names"] == {"id": "id", "total": "cost"}


def test_a_row_that_a_truncate_removed_is_said(asked: Get) -> None:
    assert "update, and a sweep has removed the row since" in asked(EQUAL, floor=pack_version(2, 0)).stdout
