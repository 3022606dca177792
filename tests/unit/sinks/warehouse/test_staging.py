"""Rows that tasks stage: what is in the files, what is refused, and which files are deleted by whom."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc.model.events import Column, TableId, TableSchema
from sinks.contract import Change, Json, Outcome
from sinks.warehouse.staged_files import FILE_BYTES, ROW_GROUP_BYTES
from sinks.warehouse.staging import (
    KEY_CHARS_MAX,
    KEYS_MAX,
    LEFTOVER_S,
    Staged,
    Stager,
    delete_leftovers,
    delete_staged,
    own_folder,
)

TABLE = TableId("public", "a")
WRITTEN, REJECTED = Outcome.WRITTEN, Outcome.REJECTED


def schema(name: str = "a", key_oid: int = 20, key_type: str = "bigint") -> TableSchema:
    columns = (
        Column("id", key_oid, -1, key_type, False, "b", key_oid),
        Column("name", 25, -1, "text", True, "b", 25),
        Column("at", 1082, -1, "date", True, "b", 1082),
    )
    return TableSchema(TableId("public", name), 1, 16385, columns, ("id",), f"shop.public.{name}")


def change(key: Json, version: int, **row: Json) -> Change:
    return Change(TABLE, {"id": key}, version, {"id": key, "name": None, "at": None, **row}, 1)


def lacking(key: Json, version: int, *unchanged: str, **row: Json) -> Change:
    return Change(TABLE, {"id": key}, version, {"id": key, **row}, 1, frozenset(unchanged))


def deleted(key: Json, version: int) -> Change:
    return Change(TABLE, {"id": key}, version, None, None)


@pytest.fixture
def stager(tmp_path: Path) -> Stager:
    return Stager(tmp_path.as_uri(), [schema()])


def rows(part: Staged) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(part.path.removeprefix("file://")).to_pylist()
    return found


def versions(part: Staged) -> list[tuple[Any, int]]:
    return [(row["id"], row["ws_version"]) for row in rows(part)]


def test_a_file_has_the_rows_as_their_columns_hold_them(stager: Stager) -> None:
    results = stager.apply([change(1, 10, name="é", at="2024-01-31"), deleted(2, 11)])
    assert [result.outcome for result in results] == [WRITTEN, WRITTEN]
    (part,) = stager.finish()
    assert (part.table, part.row_count, part.lacks, part.keys) == (TABLE, 2, False, ((1,), (2,)))
    first, second = rows(part)
    assert first["name"] == "é" and str(first["at"]) == "2024-01-31" and first["ws_deleted"] is False
    assert second == {"id": 2, "name": None, "at": None, "ws_version": 11, "ws_deleted": True}
    assert stager.finish() == (), "what was staged is not staged again"


def test_a_location_is_read_as_hadoop_reads_it(tmp_path: Path) -> None:
    """A blank comes encoded from the configuration, and is no blank on the disk: the tables' files lie there too."""
    stager = Stager(f"file://{tmp_path}/a%20b [c]", [schema()])
    stager.apply([change(1, 10)])
    (part,) = stager.finish()
    assert versions(part) == [(1, 10)]
    delete_staged([part.path])
    assert [path.name for path in tmp_path.iterdir()] == ["a%20b [c]"]


def test_of_a_key_the_newest_row_is_staged_whenever_it_came(stager: Stager) -> None:
    stager.apply([change(1, 10), change(2, 10), change(3, 10)])
    stager.apply([change(1, 20), change(2, 9), deleted(4, 10)])
    (part,) = stager.finish()
    assert sorted(versions(part)) == [(1, 20), (2, 10), (3, 10), (4, 10)]


def test_zero_and_minus_zero_are_one_key(tmp_path: Path) -> None:
    stager = Stager(tmp_path.as_uri(), [schema(key_oid=701, key_type="double precision")])
    stager.apply([deleted(0.0, 10), change(-0.0, 11)])
    (part,) = stager.finish()
    assert versions(part) == [(0.0, 11)]


def test_keys_of_arrays_are_compared_too(tmp_path: Path) -> None:
    stager = Stager(tmp_path.as_uri(), [schema(key_oid=1016, key_type="bigint[]")])
    stager.apply([change([1, 2], 10), change([1, 2], 11), change([2, 1], 12)])
    (part,) = stager.finish()
    assert versions(part) == [([1, 2], 11), ([2, 1], 12)]


def test_rows_that_lack_columns_are_in_a_file_of_their_own(stager: Stager) -> None:
    stager.apply([change(1, 10), lacking(1, 11, "name", at="2024-01-31"), lacking(2, 12, "name", "at")])
    whole, lacks = stager.finish()
    assert versions(whole) == [(1, 10)]
    assert lacks.lacks and lacks.keys is None
    assert [(row["id"], row["ws_version"], row["ws_unchanged"]) for row in rows(lacks)] == [
        (1, 11, ["name"]),
        (2, 12, ["at", "name"]),
    ]


def test_rows_that_lack_columns_are_folded_and_lose_to_newer_whole_rows(stager: Stager) -> None:
    stager.apply([lacking(1, 10, "name", at="2024-01-01"), change(2, 20), lacking(3, 10, "name", at=None)])
    stager.apply([lacking(1, 11, "at", name="b"), lacking(2, 19, "at", name="late"), change(3, 11)])
    stager.apply([lacking(3, 12, "at", name="c")])
    whole, lacks = stager.finish()
    assert versions(whole) == [(2, 20), (3, 11)]
    first, third = rows(lacks)
    assert (first["ws_version"], first["name"], str(first["at"]), first["ws_unchanged"]) == (11, "b", "2024-01-01", [])
    assert (third["ws_version"], third["name"], third["ws_unchanged"]) == (12, "c", ["at"]), (
        "`at` is the table's, which has the whole row of version 11 by then, not the one before that"
    )


@pytest.mark.parametrize("row", [{"at": "infinity"}, {"name": 5}, {"other": 1}])
def test_a_row_that_cant_be_held_is_refused_beside_others(stager: Stager, row: dict[str, Json]) -> None:
    results = stager.apply([change(1, 10), change(2, 11, **row), change(3, 12), lacking(4, 13, "name", at="never")])
    assert [result.outcome for result in results] == [WRITTEN, REJECTED, WRITTEN, REJECTED]
    assert results[3].reason == "column at (date): not a date in the years 1 to 9999"
    (part,) = stager.finish()
    assert versions(part) == [(1, 10), (3, 12)]


def test_a_refused_row_alone_is_no_file(stager: Stager, tmp_path: Path) -> None:
    assert [result.outcome for result in stager.apply([change(1, 10, at="infinity")])] == [REJECTED]
    assert stager.finish() == ()
    assert list(tmp_path.iterdir()) == []


def test_a_row_group_is_bounded_in_bytes_whatever_its_rows_are(stager: Stager) -> None:
    large = "x" * (ROW_GROUP_BYTES // 2 + 1)
    for number in range(3):
        stager.apply([change(10 * number + extra, number + 1, name=large) for extra in range(2)])
    stager.apply([change(100 + number, 10) for number in range(50)])
    (part,) = stager.finish()
    file = pq.ParquetFile(part.path.removeprefix("file://"))
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [2, 2, 2, 50]
    assert part.byte_count > 6 * len(large)


def test_large_rows_are_in_files_of_their_own(stager: Stager) -> None:
    large = "x" * FILE_BYTES
    stager.apply([change(1, 10, name=large), change(2, 10, name=large)])
    stager.apply([change(3, 10)])
    parts = stager.finish()
    assert [(versions(part), part.keys) for part in parts] == [([(1, 10)], None), ([(2, 10)], None), ([(3, 10)], None)]


def test_what_is_held_takes_about_the_room_of_its_values(stager: Stager) -> None:
    before = pa.total_allocated_bytes()
    for piece in range(4):
        stager.apply([change(1000 * piece + number, 1, name="x" * 1000) for number in range(1000)])
    assert 4_000_000 < pa.total_allocated_bytes() - before < 6_000_000


def test_keys_are_said_only_where_they_are_few_and_short(stager: Stager, tmp_path: Path) -> None:
    stager.apply([change(number, 1) for number in range(KEYS_MAX + 1)])
    (many,) = stager.finish()
    assert many.keys is None
    texts = Stager(tmp_path.as_uri(), [schema(key_oid=25, key_type="text")])
    texts.apply([change("x" * (KEY_CHARS_MAX + 1), 1)])
    (long,) = texts.finish()
    assert long.keys is None


def test_files_that_were_merged_are_deleted_and_no_others(stager: Stager, tmp_path: Path) -> None:
    stager.apply([change(1, 10)])
    (first,) = stager.finish()
    stager.apply([change(2, 10)])
    stager.finish()
    delete_staged([first.path, first.path])
    assert len(list(tmp_path.iterdir())) == 1


def test_leftovers_of_processes_that_are_no_more_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(socket, "gethostname", lambda: "a b.example")
    own = own_folder(tmp_path.as_uri())
    assert own == f"{tmp_path.as_uri()}/a_b.example@{os.getpid()}"
    kept = [f"a_b.example@{os.getppid()}", "other@7"]
    gone = [own.rpartition("/")[2], f"a_b.example@{ended.pid}", "other@8"]
    for name in kept + gone:
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.parquet").touch()
    old = time.time() - LEFTOVER_S - 60
    os.utime(tmp_path / "other@8" / "1.parquet", (old, old))
    delete_leftovers(tmp_path.as_uri())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_there_need_not_be_leftovers(tmp_path: Path) -> None:
    delete_leftovers((tmp_path / "none").as_uri())
