"""One merge: what is asked of the engine, and other writers that come between."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cdc.model.events import Column, TableId, TableSchema
from sinks.contract import Change, Json
from sinks.errors import SinkError
from sinks.warehouse.deleted_keys import DeletedKeys
from sinks.warehouse.direct import DirectMerge, FileContents
from sinks.warehouse.engine import Snapshot
from sinks.warehouse.merging import (
    ATTEMPT_COUNT_MAX,
    BYTES_PER_PARTITION,
    ROWS_PER_PARTITION,
    TABLE_ROWS_PER_PARTITION,
    Merged,
    Merger,
    PreparedTable,
    merges,
)
from sinks.warehouse.naming import table_location
from sinks.warehouse.saved_position import Commits
from sinks.warehouse.staging import KEYS_MAX, Staged, Stager, TableForm
from tests.unit.sinks.warehouse.scripted import FILES, ScriptedEngine

TABLE = TableId("public", "a")
SCHEMA = TableSchema(
    TABLE,
    1,
    16385,
    (
        Column("id", 20, -1, "bigint", False, "b", 20),
        Column("part", 25, -1, "text", False, "b", 25),
        Column("at", 1082, -1, "date", False, "b", 1082),
    ),
    ("id", "part", "at"),
    "shop.public.a",
)


class Bench:
    """A merger of one table, and the engine that it works on."""

    def __init__(self, folder: Path) -> None:
        self.engine = ScriptedEngine()
        self._merger = Merger(self.engine, lambda _: None, DeletedKeys(), DirectMerge(self.engine, FileContents()))
        self._folder = folder
        self._table = PreparedTable(table_location("shop", TABLE), TableForm.of(SCHEMA))

    def stage(self, *versions: tuple[int, int], part: str = "p") -> tuple[Staged, ...]:
        """Rows (id, version)."""
        stager = Stager(self._folder.as_uri(), [SCHEMA])
        keys: list[dict[str, Json]] = [{"id": number, "part": part, "at": "2024-01-31"} for number, _ in versions]
        stager.apply([Change(TABLE, key, at, key, 1) for key, (_, at) in zip(keys, versions, strict=True)])
        return stager.finish()

    def merge(self, *versions: tuple[int, int]) -> Merged:
        return self.take(self.stage(*versions))

    def take(self, staged: Sequence[Staged], origin: dict[str, str] | None = None) -> Merged:
        return self._merger.merge(self._table, staged, lacks=False, origin=origin)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_rows_that_won_are_counted(bench: Bench) -> None:
    assert bench.merge((1, 10), (2, 11)) == Merged(2, needs_compaction=False, commits=Commits((0, 0), (0, 1), None))
    second = Commits((0, 1), (0, 2), None)
    assert bench.merge((1, 9), (2, 20), (3, 5)) == Merged(2, needs_compaction=False, commits=second)
    assert bench.engine.versions == {1: [10], 2: [20], 3: [5]}


def test_the_summary_says_where_rows_came_from_and_ours_stay_ours(bench: Bench) -> None:
    bench.take(bench.stage((1, 10)), {"watershed.query_batch": "7", "watershed.batch": "not ours"})
    summary = bench.engine.snapshots[-1].summary
    assert summary["watershed.query_batch"] == "7"
    assert summary["watershed.batch"] != "not ours"


def test_a_conflict_is_planned_again(bench: Bench) -> None:
    bench.merge((1, 10))
    bench.engine.conflicts = 2
    assert bench.merge((1, 20)).written == 1
    assert len(bench.engine.begun("MERGE")) == 4


def test_what_the_winner_of_a_conflict_wrote_stays(bench: Bench) -> None:
    bench.merge((1, 10))
    bench.engine.conflicts = 1
    bench.engine.before_merge = lambda: bench.engine.versions.update({1: [30]})
    assert bench.merge((1, 20)).written == 0
    assert bench.engine.versions == {1: [30]}


def test_endless_conflicts_are_an_error(bench: Bench) -> None:
    bench.engine.conflicts = ATTEMPT_COUNT_MAX + 1
    with pytest.raises(SinkError, match=r"public.a.*other writers") as error:
        bench.merge((1, 10))
    assert "one job" in error.value.hint


def test_a_key_that_another_writer_doubled_in_between_is_mended(bench: Bench) -> None:
    """The case in which the catalog's own check has a hole: both writers append the same new key."""
    engine = bench.engine
    engine.intrude(k9=1)
    engine.before_merge = lambda: engine.intrude(k1=10, k2=30)
    engine.versions[1] = [5]
    assert bench.merge((1, 20), (2, 20), (3, 20)).written == 2
    assert engine.versions == {9: [1], 1: [20], 2: [30], 3: [20]}
    assert len(engine.begun("MERGE")) == 3, "ours, the removal of doubles, and of rows whose key was deleted"


def test_what_a_killed_writer_left_undone_is_done_before_the_next_merge(bench: Bench) -> None:
    bench.merge((1, 10))
    bench.engine.snapshots.append(Snapshot(2, 1, {"watershed.batch": "another's", "watershed.planned": "0"}))
    bench.engine.snapshots.append(Snapshot(3, 2, {"operation": "replace"}))  # a compaction
    bench.merge((2, 11))
    *_, doubles, deleted, ours = bench.engine.begun("MERGE")
    assert "ws_rank > 1" in doubles and "SEMI JOIN" not in doubles
    assert "GROUP BY `id`" in deleted
    assert "WHEN NOT MATCHED" in ours
    bench.merge((2, 12))
    assert len(bench.engine.begun("MERGE")) == 5, "once is enough"


def test_deleted_keys_are_looked_at_only_for_changes_that_may_be_older(bench: Bench) -> None:
    bench.engine.deleted = 20
    bench.merge((1, 21))
    bench.merge((1, 19), (2, 30))
    later, earlier = bench.engine.begun("MERGE")
    assert "ANTI JOIN" not in later
    assert "ANTI JOIN `watershed`.`shop`.`public__deleted`.`a` d" in earlier and "d.ws_version >= 19L" in earlier


def test_the_keys_are_named_if_they_are_few(bench: Bench) -> None:
    bench.take([*bench.stage((3, 10), part="p"), *bench.stage((-1, 11), part="it's")])
    bench.merge(*((number, 12) for number in range(KEYS_MAX + 1)))
    few, many = bench.engine.begun("MERGE")
    assert "AND t.`id` >= -1 AND t.`id` <= 3 AND t.`id` IN (-1, 3) AND t.`part` >= 'it\\'s'" in few
    assert "t.`at` IN" not in few, "a record says dates in another way than SQL"
    assert " IN (" not in many


def test_a_merge_has_as_many_parts_as_its_rows_ask_for(bench: Bench) -> None:
    bench.merge(*((number, 10) for number in range(ROWS_PER_PARTITION + 1)))
    bench.merge((1, 11))
    bench.engine.snapshots.append(Snapshot(9, 2, {"total-records": str(3 * TABLE_ROWS_PER_PARTITION)}))
    bench.merge(*((number, 12) for number in range(KEYS_MAX + 1)))
    bench.merge((1, 13))
    staged = bench.stage(*((number, 14) for number in range(KEYS_MAX)))
    bench.take([part._replace(byte_count=4 * BYTES_PER_PARTITION) for part in staged])
    assert bench.engine.partitions == [2, 1, 3, 1, 4], "the table's rows count only where the keys are not named"


def test_files_of_large_rows_are_merged_one_after_the_other(bench: Bench) -> None:
    (small,) = bench.stage((1, 10), (2, 11), (3, 12))
    large = [part._replace(byte_count=150_000_000) for at in (4, 5) for part in bench.stage((at, 10))]
    assert merges([large[0], small, large[1]]) == [[small], [large[0]], [large[1]]]
    assert merges([small]) == [[small]] and merges([]) == []
    bench.take(large[:1])
    assert bench.engine.partitions == [1], "in one task"


def test_a_table_of_many_small_files_needs_compaction(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, "total-data-files", "100")
    assert bench.merge((1, 10)).needs_compaction
