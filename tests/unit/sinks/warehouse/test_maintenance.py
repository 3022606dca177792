"""When tables are compacted."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from cdc.config.store_shapes import WarehouseOptions
from sinks.warehouse.engine import Snapshot
from sinks.warehouse.maintenance import SMALL_FILE_COUNT_MAX, Maintenance, expired, needs_compaction
from sinks.warehouse.statements import SETTLED_FILE_BYTES
from tests.unit.sinks.warehouse.scripted import ScriptedEngine

TABLE = ("shop", "public", "a")


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
    Maintenance(engine, now=lambda: 0.0).run_if_due(TABLE, nullcontext())
    Maintenance(ScriptedEngine(), now=lambda: 0.0).run_if_due(TABLE, nullcontext())
    assert engine.statements == []


def test_small_files_are_merged_and_old_snapshots_forgotten() -> None:
    engine = table_of(100)
    engine.snapshot_times = {1: 0.0, 2: 1_767_326_000.0}
    Maintenance(engine, now=lambda: 1_767_326_400.0).run_if_due(TABLE, nullcontext())  # 2026-01-02 04:00 UTC
    compact, _, expire = engine.statements
    assert "rewrite_data_files" in compact
    assert engine.by_row == [compact], "it reads whole rows, which may be large"
    assert "expire_snapshots" in expire and "ARRAY(1L), older_than => TIMESTAMP '2025-12-26 04:00:00'" in expire


def test_a_snapshot_with_a_tag_stays_whoever_set_it() -> None:
    """Iceberg refuses to expire it, and with it all others of the call."""
    engine = table_of(100)
    engine.snapshot_times = {1: 0.0, 2: 1.0, 3: 1_767_326_000.0}
    engine.tagged[TABLE] = {"release": 1}
    Maintenance(engine, now=lambda: 1_767_326_400.0).run_if_due(TABLE, nullcontext())
    assert "ARRAY(2L)" in engine.statements[-1]


def test_of_older_snapshots_the_last_of_each_hour_is_kept_until_their_days_are_over() -> None:
    now_s = 100 * 86400.0
    ages_s = [0, 600, 3599, 3700, 4000, 7300, 7400, 10900, 86400, 2 * 86400 + 1, 9 * 86400]
    snapshots = [(age, now_s - age) for age in ages_s]
    assert sorted(expired(snapshots, now_s, days=2)) == [4000, 7400, 2 * 86400 + 1, 9 * 86400]
    assert expired([(1, 0.0)], now_s, days=2) == [], "the newest stays"


def test_compaction_can_be_left_to_the_command() -> None:
    engine = table_of(100)
    Maintenance(engine, lambda: 0.0, WarehouseOptions(compacts=False)).run_if_due(TABLE, nullcontext())
    assert engine.statements == []


def test_the_command_works_on_rows_and_deleted_keys_of_every_table() -> None:
    engine = table_of(3)
    engine.namespace = {"watershed.tables": '[["public", "a"]]'}
    engine.tables = {TABLE: {"watershed.layout": '[[], ["`id` ASC"]]'}, ("shop", "public__deleted", "a"): {}}
    done = Maintenance(engine, now=lambda: 1_767_326_400.0).maintain("shop")
    assert [one.table for one in done] == ["shop.public.a", "shop.public__deleted.a"]
    rows, _, forget, deleted, _ = engine.statements
    assert "strategy => 'sort'" in rows and "'partial-progress.enabled', 'true'" in rows
    assert forget.startswith("DELETE FROM") and "ws_deleted_at < TIMESTAMP '2025-12-19 04:00:00'" in forget
    assert "`shop`.`public__deleted`.`a`" in deleted and "strategy" not in deleted


def test_compaction_gives_way_to_a_writer() -> None:
    engine = table_of(100)
    engine.conflicts = 1
    Maintenance(engine, now=lambda: 0.0).run_if_due(TABLE, nullcontext())
    assert len(engine.statements) == 1


def test_no_merge_runs_beside_a_compaction() -> None:
    engine = table_of(100)
    seen: list[int] = []

    @contextmanager
    def alone() -> Iterator[None]:
        seen.append(len(engine.statements))
        yield
        seen.append(len(engine.statements))

    Maintenance(engine, now=lambda: 0.0).run_if_due(TABLE, alone())
    assert seen == [0, 1], "the compaction, and not the forgetting of snapshots"
    Maintenance(table_of(3), now=lambda: 0.0).run_if_due(TABLE, alone())
    assert seen == [0, 1], "merges do not wait for a look"
