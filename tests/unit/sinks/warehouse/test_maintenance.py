"""When tables are compacted."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from sinks.warehouse.engine import Snapshot
from sinks.warehouse.maintenance import SMALL_FILE_COUNT_MAX, Maintenance, needs_compaction
from sinks.warehouse.statements import SETTLED_FILE_BYTES
from tests.unit.sinks.warehouse.scripted import ScriptedEngine

TABLE = ("shop", "public", "a_with_deleted")


@pytest.mark.parametrize(
    ("files", "size", "wanted"),
    [
        (0, 0, False),
        (SMALL_FILE_COUNT_MAX, 1000, False),
        (SMALL_FILE_COUNT_MAX + 1, 1000, True),
        (1000, 1000 * SETTLED_FILE_BYTES, False),
        (1000 + SMALL_FILE_COUNT_MAX + 1, 1000 * SETTLED_FILE_BYTES, True),
    ],
)
def test_small_files_are_what_counts(files: int, size: int, wanted: bool) -> None:
    assert needs_compaction(files, size) is wanted


def table_of(files: int) -> ScriptedEngine:
    engine = ScriptedEngine()
    engine.snapshots.append(Snapshot(1, None, {"total-data-files": str(files), "total-files-size": "1000"}))
    return engine


def test_a_table_in_shape_is_left_alone() -> None:
    engine = table_of(3)
    Maintenance(engine, now=lambda: 0.0).tend(TABLE, nullcontext())
    Maintenance(ScriptedEngine(), now=lambda: 0.0).tend(TABLE, nullcontext())
    assert engine.statements == []


def test_small_files_are_merged_and_old_snapshots_forgotten() -> None:
    engine = table_of(100)
    Maintenance(engine, now=lambda: 1_767_326_400.0).tend(TABLE, nullcontext())  # 2026-01-02 04:00 UTC
    compact, expire = engine.statements
    assert "rewrite_data_files" in compact
    assert engine.by_row == [compact], "it reads whole rows, which may be large"
    assert "expire_snapshots" in expire and "'2026-01-02 03:00:00'" in expire


def test_compaction_gives_way_to_a_writer() -> None:
    engine = table_of(100)
    engine.conflicts = 1
    Maintenance(engine, now=lambda: 0.0).tend(TABLE, nullcontext())
    assert len(engine.statements) == 1


def test_no_merge_runs_beside_a_compaction() -> None:
    engine = table_of(100)
    seen: list[int] = []

    @contextmanager
    def alone() -> Iterator[None]:
        seen.append(len(engine.statements))
        yield
        seen.append(len(engine.statements))

    Maintenance(engine, now=lambda: 0.0).tend(TABLE, alone())
    assert seen == [0, 1], "the compaction, and not the forgetting of snapshots"
    Maintenance(table_of(3), now=lambda: 0.0).tend(TABLE, alone())
    assert seen == [0, 1], "merges do not wait for a look"
