"""Changes that are gathered: what is merged when, and what becomes of the files."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from cdc.config.stores import WarehouseConfig
from cdc.model.events import pack_version
from sinks.contract import Change, Outcome
from sinks.errors import SinkError
from sinks.warehouse import gathering
from sinks.warehouse.gathering import GatheringSink
from sinks.warehouse.maintenance import Maintenance
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.staging import Staged
from tests.conformance.tables import table

ROWS = table("views", "totals", ("id",), {"id": "int8", "total": "date"})
NAME = ("shop", "views", "totals")


class FakeSink:
    """Notes what is done, and the rows of merged files."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.fails = False

    def prepare(self, schema: Any) -> None:
        self.done.append(("prepare", schema.version))

    def take(self, staged: Sequence[Staged]) -> int:
        if self.fails:
            raise SinkError("the catalog is away", "wait")
        rows = [row for part in staged for row in pq.read_table(part.path.removeprefix("file://")).to_pylist()]
        self.done.append(("take", len(staged), sorted((row["id"], row["ws_version"]) for row in rows)))
        return len(rows)

    def sweep(self, table_id: Any, floor: int) -> int:
        self.done.append(("sweep", str(table_id), floor))
        return 0

    def take_due(self) -> set[tuple[str, ...]]:
        return {NAME}

    def without_merges(self, _: tuple[str, ...]) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self.done.append("close")


class FakeMaintenance:
    def run_if_due(self, name: tuple[str, ...], _: object) -> None:
        raise SinkError(f"{name[-1]} is away", "wait")


class Gathered:
    def __init__(self, folder: Path, merge_bytes: int = 1 << 30) -> None:
        self.sink, self.folder = FakeSink(), folder
        section = WarehouseConfig.model_validate({"catalog_uri": "jdbc:sqlite:/c.db", "location": str(folder)})
        self.target = GatheringSink(
            cast("WarehouseSink", self.sink),
            cast("Maintenance", FakeMaintenance()),
            folder.as_uri(),
            section,
            merge_bytes,
        )
        self.target.prepare(ROWS.schema)
        self.sink.done.clear()

    @property
    def files(self) -> int:
        return len(list(self.folder.rglob("*.parquet")))


@pytest.fixture
def gathered(tmp_path: Path) -> Gathered:
    return Gathered(tmp_path)


def row(number: int, version: int, total: str | None = None) -> Change:
    return ROWS.upsert(version, id=number, total=total)


def test_many_calls_are_one_merge_of_the_newest_rows(gathered: Gathered) -> None:
    for version in range(1, 4):
        gathered.target.apply([row(number, version) for number in range(2)])
    assert gathered.sink.done == []
    gathered.target.make_readable([ROWS.id])
    assert gathered.sink.done == [("take", 1, [(0, 3), (1, 3)])]
    gathered.target.make_readable([ROWS.id])
    assert len(gathered.sink.done) == 1
    assert gathered.files == 0


def test_a_sweep_comes_after_the_rows(gathered: Gathered) -> None:
    gathered.target.apply([row(1, 5)])
    gathered.target.sweep(ROWS.id, pack_version(1, 4))
    assert [one[0] for one in gathered.sink.done] == ["take", "sweep"]


def test_rows_of_a_certain_size_leave_the_memory_and_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "FILE_BYTES_MAX", 1)
    gathered = Gathered(tmp_path, merge_bytes=40)
    gathered.target.apply([row(1, 1)])
    assert (gathered.files, gathered.sink.done) == (1, [])
    gathered.target.apply([row(2, 1)])
    assert (gathered.files, gathered.sink.done) == (0, [("take", 2, [(1, 1), (2, 1)])])


def test_a_row_that_is_rejected_is_not_merged(gathered: Gathered) -> None:
    results = gathered.target.apply([row(1, 1, "infinity"), row(2, 1)])
    assert [result.outcome for result in results] == [Outcome.REJECTED, Outcome.WRITTEN]
    gathered.target.make_readable([ROWS.id])
    assert gathered.sink.done == [("take", 1, [(2, 1)])]


def test_rows_whose_merge_failed_leave_no_file(gathered: Gathered) -> None:
    gathered.target.apply([row(1, 1)])
    gathered.sink.fails = True
    with pytest.raises(SinkError, match="away"):
        gathered.target.make_readable([ROWS.id])
    gathered.target.close()
    assert gathered.files == 0


def test_maintenance_that_fails_is_logged(gathered: Gathered) -> None:
    with capture_logs() as logs:
        gathered.target.make_readable([ROWS.id])
    assert [(one["event"], one["error"]) for one in logs] == [("maintenance failed", "totals is away")]


def test_a_folder_that_can_not_be_written_is_named(gathered: Gathered) -> None:
    gathered.folder.joinpath("file").write_text("")
    section = WarehouseConfig.model_validate({"catalog_uri": "jdbc:sqlite:/c.db", "location": "/w"})
    staging = (gathered.folder / "file" / "staging").as_uri()
    target = GatheringSink(
        cast("WarehouseSink", gathered.sink), cast("Maintenance", FakeMaintenance()), staging, section, 1
    )
    target.prepare(ROWS.schema)
    target.apply([row(1, 1)])
    with pytest.raises(SinkError, match="rows can't be written to file://"):
        target.make_readable([ROWS.id])
