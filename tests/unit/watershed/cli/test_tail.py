"""The output of `cdc tail`; which records it reads is in tests/unit/watershed/status/test_table_tail.py."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cdc.model.events import Column, TableId, TableSchema
from watershed.cli import tail
from watershed.cli.main import application
from watershed.status.table_records import PublishedRecord

ITEMS = TableSchema(
    TableId("public", "items"), 1, 1, (Column("id", 20, -1, "bigint", nullable=False),), ("id",), "shop.public.items"
)
CHANGE = PublishedRecord(0, 1, {"id": 1}, "u", 9, 0x16B3748, 0, {"id": 1, "note": "[b]é" + "x" * 200})
RECORDS = [CHANGE, PublishedRecord(0, 2, {"id": 1}, "tombstone", 10), PublishedRecord(0, 3, None, "sweep", 11, 5)]

Tail = Callable[..., Result]


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tail:
    file = tmp_path / "watershed.yml"
    file.write_text("source: {dsn: a, tables: [public.items]}\nkafka: {bootstrap_servers: k:1}\ntopics: {prefix: s}\n")

    class Followed:
        def __init__(self, reader: Any, table: TableId, topics: tuple[str, str], is_wanted: Any, plain: Any) -> None:
            assert (reader, table, topics) == (None, ITEMS.table, (ITEMS.topic, "s.control"))
            assert plain(b"{}") == b"{}"
            self.is_wanted = is_wanted
            self.polls = iter([RECORDS[:1], RECORDS[1:]])

        def begin(self, count: int) -> list[PublishedRecord]:
            return [record for record in RECORDS[:count] if self.is_wanted(record)]

        def poll(self, wait_s: float) -> list[PublishedRecord]:
            del wait_s
            records = next(self.polls, None)
            if records is None:
                raise KeyboardInterrupt
            return records

    monkeypatch.setattr(tail, "TableTail", Followed)
    monkeypatch.setattr(tail, "TopicReader", lambda _: None)
    monkeypatch.setattr(tail, "closing", nullcontext)
    monkeypatch.setattr(tail, "published_table", lambda *_: ITEMS)

    def run(*words: str) -> Result:
        return CliRunner().invoke(application(["tail"]), ["tail", "public.items", "--config", str(file), *words])

    return run


def test_changes_are_lines_and_tombstones_are_not_shown(followed: Tail) -> None:
    done = followed()
    assert done.exit_code == 130, "Ctrl-C"
    first, second = done.stdout.splitlines()
    assert first.startswith("00:00:00.000  update  1  0/16B3748  note=[b]éx")
    assert "sweep" in second


def test_the_last_changes_can_be_printed_alone(followed: Tail) -> None:
    done = followed("--last", "1", "--no-follow")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 1)
    assert followed("--last", "1", "--no-follow", "--key", "2").stdout == ""
    assert len(followed("--last", "1", "--no-follow", "--key", "1").stdout.splitlines()) == 1


def test_json_has_a_line_for_each_record(followed: Tail) -> None:
    lines = [json.loads(line) for line in followed("--json").stdout.splitlines()]
    assert [line["op"] for line in lines] == ["update", "tombstone", "sweep"]
    assert lines[0]["row"] == CHANGE.row


def test_a_text_that_is_no_key_is_refused(followed: Tail) -> None:
    assert "is no key of public.items" in str(followed("--key", "x").exception)
