"""Merges without a statement, on files of a table whose commits an engine of the test keeps."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc.model.events import Column, TableId, TableSchema
from sinks.contract import Change, Json
from sinks.warehouse import direct, staged_files, staged_rows
from sinks.warehouse.deleted_keys import DeletedKeys
from sinks.warehouse.direct import DirectMerge, FileContents
from sinks.warehouse.engine import Conflict, DataFile, NewFiles, OpenTable, Snapshot
from sinks.warehouse.merging import Merged, Merger, PreparedTable
from sinks.warehouse.naming import table_location
from sinks.warehouse.staging import Staged, Stager, TableForm
from sinks.warehouse.vectors import from_blob
from tests.unit.sinks.warehouse.scripted import FILES, ScriptedEngine

TABLE = TableId("public", "a")
SCHEMA = TableSchema(
    TABLE,
    1,
    16385,
    (
        Column("id", 20, -1, "bigint", False, "b", 20),
        Column("part", 25, -1, "text", False, "b", 25),
        Column("amount", 1700, (12 << 16 | 2) + 4, "numeric", True, "b", 1700),
        Column("tags", 1009, -1, "text[]", True, "b", 1009),
    ),
    ("id", "part"),
    "shop.public.a",
)
FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "id", "type": "long"},
    {"id": 2, "name": "part", "type": "string"},
    {"id": 3, "name": "amount", "type": "decimal(12, 2)"},
    {"id": 4, "name": "tags", "type": {"type": "list", "element-id": 6, "element": "string"}},
    {"id": 5, "name": "ws_version", "type": "long"},
]
KEY_FIELDS = [*FIELDS[:2], FIELDS[4], {"id": 7, "name": "ws_deleted_at", "type": "timestamptz"}]


class FilesEngine(ScriptedEngine):
    """Tables whose files were written without statements; each statement is remembered, and changes nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.fields = FIELDS
        self.files: dict[tuple[str, ...], list[DataFile]] = {}
        self.commits: dict[tuple[str, ...], list[Snapshot]] = {}
        self.before_commit: list[Snapshot] = []  # of another writer, committed between opening and committing
        self.bounds: list[Mapping[str, tuple[Json, Json]]] = []
        self._folder = folder
        self._numbers = itertools.count(1)

    def open_table(self, table: tuple[str, ...], bounds: Mapping[str, tuple[Json, Json]]) -> OpenTable:
        self.bounds.append(bounds)
        fields = KEY_FIELDS if "__deleted" in table[1] else self.fields
        snapshots = partial(iter, [*self.history(table)])
        uri = f"{self._folder.as_uri()}/{table[-2]}.{next(self._numbers)}"
        files = list(self.files.get(table, []))
        return OpenTable(snapshots, partial(self.state, table), fields, files, f"{uri}.parquet", f"{uri}.puffin", table)

    def commit(
        self, opened: OpenTable, files: NewFiles, properties: Mapping[str, str], *, is_guarded: bool
    ) -> Iterator[Snapshot]:
        table = opened.handle
        commits = self.commits.setdefault(table, [])
        if self.before_commit and is_guarded:
            commits.append(self.before_commit.pop())
            raise Conflict
        kept = self.files.setdefault(table, [])
        kept[:] = [DataFile(file.path, file.row_count, files.vectors.get(file.path, file.vector)) for file in kept]
        count = 0
        if files.rows is not None:
            count = pq.read_metadata(files.rows[0].removeprefix("file://")).num_rows
            kept.append(DataFile(files.rows[0], count, None))
        number, parent = next(self._numbers), commits[-1].id if commits else None
        commits.append(Snapshot(number, parent, {**FILES, **properties, "added-records": str(count)}))
        return self.history(table)

    def history(self, table: tuple[str, ...]) -> Iterator[Snapshot]:
        return iter(self.commits.get(table, [])[::-1])

    def state(self, table: tuple[str, ...]) -> str | None:
        return str(len(self.commits.get(table, [])))

    def query(self, statement: str) -> pa.Table:
        assert "max(" in statement
        return pa.table({"highest": [max((row["ws_version"] for row in self.rows(WHERE.deleted)), default=0)]})

    def rows(self, table: tuple[str, ...]) -> list[dict[str, Any]]:
        found = []
        for file in self.files.get(table, []):
            gone: Any = ()
            if file.vector is not None:
                content = Path(file.vector.path.removeprefix("file://")).read_bytes()
                assert len(content) == file.vector.file_bytes
                gone = from_blob(content[file.vector.offset :][: file.vector.length])
                assert len(gone) == file.vector.row_count
            rows = pq.read_table(file.path.removeprefix("file://")).to_pylist()
            found += [row for at, row in enumerate(rows) if at not in gone]
        return found


WHERE = table_location("shop", TABLE)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.engine = FilesEngine(folder)
        self._folder = folder
        self._merger = Merger(self.engine, lambda _: None, DeletedKeys(), DirectMerge(self.engine, FileContents()))
        self.form = TableForm.of(SCHEMA)

    def stage(self, changes: Sequence[tuple[int, int, str | None]]) -> tuple[Staged, ...]:
        """Changes (id, version, amount); None: a delete."""
        stager = Stager(self._folder.as_uri(), [SCHEMA])
        made = []
        for number, version, amount in changes:
            key: dict[str, Json] = {"id": number, "part": "p"}
            row = None if amount is None else {**key, "amount": amount, "tags": ["x", None]}
            made.append(Change(TABLE, key, version, row, 1))
        stager.apply(made)
        return stager.finish()

    def merge(self, *changes: tuple[int, int, str | None]) -> Merged:
        return self.merge_staged(self.stage(changes))

    def merge_staged(self, staged: Sequence[Staged]) -> Merged:
        return self._merger.merge(PreparedTable(WHERE, self.form), staged, lacks=False)

    def held(self) -> dict[int, tuple[int, str]]:
        """Returns id → version and amount."""
        rows = self.engine.rows(WHERE.rows)
        found = {row["id"]: (row["ws_version"], str(row["amount"])) for row in rows}
        assert len(found) == len(rows), "each key once"
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_newer_rows_win_and_older_ones_lose(bench: Bench) -> None:
    assert bench.merge((1, 10, "1.00"), (2, 11, "2.00")).written == 2
    assert bench.merge((1, 9, "0.00"), (2, 20, "2.50"), (3, 5, "3.00")).written == 2
    assert bench.held() == {1: (10, "1.00"), 2: (20, "2.50"), 3: (5, "3.00")}
    assert bench.merge((2, 21, "2.75"), (3, 6, "3.25"), (1, 12, "1.25")).written == 3
    assert bench.held() == {1: (12, "1.25"), 2: (21, "2.75"), 3: (6, "3.25")}
    assert bench.engine.begun("MERGE") == []


def test_a_large_batch_is_read_by_row_groups(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(staged_files, "ROW_GROUP_BYTES", 1000)
    assert bench.merge(*((number, 10 + number, "1.00") for number in range(300))).written == 300
    (file,) = bench.engine.files[WHERE.rows]
    assert pq.read_metadata(file.path.removeprefix("file://")).num_row_groups > 3
    # Each third key is deleted, each other third is newer or older than its row.
    changes = [(n, (n % 3 and 1000) + n, None if n % 3 == 1 else "2.00") for n in range(1, 302)]
    assert bench.merge(*changes).written == 202
    expected = {n: (10 + n, "1.00") for n in range(0, 300, 3)} | {n: (1000 + n, "2.00") for n in range(2, 302, 3)}
    assert bench.held() == expected | {300: (300, "2.00")}
    assert bench.engine.begun("MERGE") == []


@pytest.mark.parametrize("versions", [(5, 7, 6), (7, 6, 5), (5, 6, 7)])
def test_of_several_rows_of_a_key_in_a_batch_the_newest_is_written(bench: Bench, versions: tuple[int, ...]) -> None:
    staged = [bench.stage([(1, version, f"{version}.00"), (version, 1, "0.00")]) for version in versions]
    assert bench.merge_staged([part for parts in staged for part in parts]).written == 4
    assert bench.held() == {1: (7, "7.00")} | dict.fromkeys(versions, (1, "0.00"))


def test_many_files_of_the_table_are_searched_in_lumps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "TABLE_ROWS_PER_ROW", 1000)
    monkeypatch.setattr(direct, "TABLE_ROWS_MAX", 5)
    for number in range(8):
        bench.merge(*((2 * number + n, 10, "1.00") for n in range(2)))
    assert bench.merge(*((n, 9 + n % 3, "2.00") for n in range(17))).written == 6
    newer = dict.fromkeys(range(2, 17, 3), (11, "2.00")) | {16: (10, "2.00")}
    assert bench.held() == dict.fromkeys(range(16), (10, "1.00")) | newer
    assert bench.engine.begun("MERGE") == []


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_in_whatever_order_the_newest_of_each_key_is_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chosen = random.Random(seed)
    monkeypatch.setattr(direct, "TABLE_ROWS_MAX", chosen.choice([7, 1_000_000]))
    monkeypatch.setattr(direct, "TABLE_ROWS_PER_ROW", 1_000_000)
    monkeypatch.setattr(staged_rows, "WHOLE_BYTES_MAX", chosen.choice([0, 8_000_000]))
    monkeypatch.setattr(staged_files, "ROW_GROUP_BYTES", chosen.choice([200, 8_000_000]))
    history = [
        (chosen.randrange(30), version, None if chosen.random() < 0.3 else f"{version}.00") for version in range(1, 200)
    ]
    given: list[tuple[int, int, str | None]] = []
    for _ in range(25):
        parts = [chosen.sample(history, chosen.randrange(1, 12)) for _ in range(chosen.choice([1, 1, 3]))]
        bench.merge_staged([part for changes in parts for part in bench.stage(changes)])
        given += [change for changes in parts for change in changes]
        newest: dict[int, tuple[int, str | None]] = {}
        for number, version, amount in sorted(given, key=lambda change: change[1]):
            newest[number] = version, amount
        assert bench.held() == {number: held for number, held in newest.items() if held[1] is not None}
    assert bench.engine.begun("MERGE") == []


def test_a_replay_changes_nothing_and_is_a_commit(bench: Bench) -> None:
    changes: list[tuple[int, int, str | None]] = [(1, 10, "1.00"), (2, 11, None), (3, 12, "3.00")]
    bench.merge(*changes)
    before, count = bench.held(), len(bench.engine.commits[WHERE.rows])
    assert bench.merge(*changes[::2]).written == 0
    assert (bench.held(), len(bench.engine.commits[WHERE.rows])) == (before, count + 1)


def test_a_deleted_key_is_not_restored_by_an_older_change(bench: Bench) -> None:
    bench.merge((1, 10, "1.00"), (2, 11, "2.00"))
    assert bench.merge((1, 20, None)).written == 1
    assert bench.held() == {2: (11, "2.00")}
    assert [(row["id"], row["ws_version"]) for row in bench.engine.rows(WHERE.deleted)] == [(1, 20)]
    bench.merge((1, 15, "1.50"), (2, 16, "2.50"))
    assert bench.held() == {2: (16, "2.50")}
    bench.merge((1, 30, "3.00"))
    assert bench.held() == {1: (30, "3.00"), 2: (16, "2.50")}
    assert bench.engine.begun("MERGE") == []


def test_a_batch_may_have_nothing_but_changes_of_keys_that_were_deleted_later(bench: Bench) -> None:
    bench.merge((1, 20, None), (2, 20, None))
    assert bench.merge((1, 10, "1.00"), (2, 11, "2.00")).written == 0
    assert bench.held() == {}
    assert bench.engine.begun("MERGE") == []


def test_files_say_their_fields_numbers_and_types(bench: Bench) -> None:
    bench.merge((1, 10, "1.00"))
    (file,) = bench.engine.files[WHERE.rows]
    schema = pq.read_schema(file.path.removeprefix("file://"))
    assert [int(field.metadata[b"PARQUET:field_id"]) for field in schema] == [1, 2, 3, 4, 5]
    assert schema.field("tags").type.value_field.metadata[b"PARQUET:field_id"] == b"6"
    assert str(pq.ParquetFile(file.path.removeprefix("file://")).schema.column(2).physical_type) == "INT64"


def test_another_writers_commit_in_between_is_a_conflict_and_leaves_no_file(bench: Bench, tmp_path: Path) -> None:
    bench.merge((1, 10, "1.00"))
    bench.engine.before_commit = [Snapshot(77, bench.engine.commits[WHERE.rows][-1].id, {})]
    bench.merge((1, 20, "2.00"))
    assert bench.held() == {1: (20, "2.00")}
    named = {file.path for file in bench.engine.files[WHERE.rows]}
    assert {path.as_uri() for path in tmp_path.glob("public.*.parquet")} == named


def test_the_table_is_opened_for_the_keys_of_the_batch(bench: Bench) -> None:
    bench.merge((7, 10, "1.00"), (-3, 11, "1.00"), (5, 12, "1.00"))
    assert bench.engine.bounds == [{"id": (-3, 7), "part": ("p", "p")}]


def test_a_renamed_key_is_found_by_its_number(bench: Bench) -> None:
    bench.merge((1, 10, "1.00"))
    (file,) = bench.engine.files[WHERE.rows]
    path = file.path.removeprefix("file://")
    rows = pq.read_table(path)
    pq.write_table(rows.rename_columns(["no", *rows.column_names[1:]]), path)
    fresh = Merger(bench.engine, lambda _: None, DeletedKeys(), DirectMerge(bench.engine, FileContents()))
    fresh.merge(PreparedTable(WHERE, bench.form), bench.stage([(1, 9, "0.00")]), lacks=False)
    assert [row["ws_version"] for row in bench.engine.rows(WHERE.rows)] == [10]


def test_what_it_can_not_write_is_left_to_a_statement(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_left(*changes: tuple[int, int, str | None]) -> bool:
        before = len(bench.engine.begun("MERGE"))
        bench.engine.staged_source = lambda *_, **__: None  # type: ignore[method-assign]
        bench.engine._merge = lambda *_: bench.engine.commits.setdefault(WHERE.rows, []).append(  # type: ignore[method-assign]
            Snapshot(900 + before, None, {})
        )
        bench.merge(*changes)
        return len(bench.engine.begun("MERGE")) > before

    assert not is_left((1, 10, "1.00"))
    with monkeypatch.context() as patch:
        patch.setattr(direct, "ROWS_MAX", 1)
        assert is_left((1, 11, "1.00"), (2, 11, "1.00"))
    with monkeypatch.context() as patch:
        patch.setattr(direct, "TABLE_ROWS_MAX", 0)
        patch.setattr(direct, "TABLE_ROWS_PER_ROW", 0)
        assert is_left((1, 12, "1.00"))
    (file,) = bench.engine.files[WHERE.rows]
    foreign = f"{file.path}.foreign"
    pq.write_table(pa.table({"id": [1], "part": ["p"], "ws_version": [1]}), foreign.removeprefix("file://"))
    bench.engine.files[WHERE.rows] = [DataFile(foreign, 1, None)]
    assert is_left((1, 13, "1.00")), "a file without numbers of fields"
    Path(foreign.removeprefix("file://")).write_bytes(b"not Parquet")
    assert is_left((1, 13, "1.00")), "a damaged file"
    bench.engine.files[WHERE.rows] = [file]
    bench.engine.fields = [*FIELDS, {"id": 9, "name": "other", "type": "long"}]
    assert is_left((1, 14, "1.00")), "another column"


def test_what_is_kept_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "KEPT_BYTES_MAX", 100)
    contents, read = FileContents(), list[str]()

    def content(name: str) -> str:
        def load() -> tuple[str, int]:
            read.append(name)
            return name.upper(), 40

        return str(contents.get(name, load))

    assert [content(name) for name in ("a", "b", "a", "c", "a", "b")] == ["A", "B", "A", "C", "A", "B"]
    assert read == ["a", "b", "c", "b"], "what was not used longest has gone"
