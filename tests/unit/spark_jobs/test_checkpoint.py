"""Generations by what is left of store, checkpoint and progress; offsets by Spark's own log."""

import subprocess
import sys
from pathlib import Path

import pytest

from cdc.errors import ConfigError, SinkError
from spark_jobs.checkpoint import Checkpoints, checkpoint_root, choose_generation


@pytest.mark.parametrize(
    ("marker", "checkpoints", "published", "expected"),
    [
        (None, [], [], (1, True)),
        (3, [3], [1, 2, 3], (3, False)),
        (3, [2, 3], [], (3, False)),
        (3, [], [3], (4, True)),  # checkpoint lost
        (None, [3], [3], (4, True)),  # store lost
        (None, [], [7], (8, True)),  # both lost
        (9, [3], [3], (10, True)),  # a store that belongs to other checkpoints
        (3, [4], [3], (5, True)),  # killed between checkpoint and marker
        (3, [3], [5], (3, False)),
    ],
)
def test_a_store_and_its_checkpoint_go_on_together_or_not_at_all(
    marker: int | None, checkpoints: list[int], published: list[int], expected: tuple[int, bool]
) -> None:
    assert choose_generation(marker, checkpoints, published) == expected


def write_batch(root: Path, generation: int, batch: int, source: str, *, committed: bool) -> None:
    for folder in ("offsets", "commits"):
        (root / str(generation) / folder).mkdir(parents=True, exist_ok=True)
    (root / str(generation) / "metadata").write_text('{"id":"x"}')
    (root / str(generation) / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{source}')
    if committed:
        (root / str(generation) / "commits" / str(batch)).write_text("v1\n{}")


def test_a_batchs_end_is_read_from_sparks_log(tmp_path: Path) -> None:
    write_batch(tmp_path, 1, 0, '{"s.public.a":{"1":7,"0":5},"s.public.b":{"0":0}}', committed=False)
    assert Checkpoints(tmp_path).batch_end(1, 0) == {"s.public.a": (5, 7), "s.public.b": (0,)}


def test_the_last_batch_that_is_done_counts(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.last_end(1) == {}
    write_batch(tmp_path, 1, 9, '{"a":{"0":9}}', committed=True)
    write_batch(tmp_path, 1, 10, '{"a":{"0":10}}', committed=True)
    write_batch(tmp_path, 1, 11, '{"a":{"0":11}}', committed=False)
    assert checkpoints.last_end(1) == {"a": (10,)}


def test_a_plan_that_did_not_come_to_its_end_is_forgotten(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write_batch(tmp_path, 1, 0, '{"a":{"0":9},"b":{"1":4}}', committed=True)
    write_batch(tmp_path, 1, 1, '{"a":{"0":10}}', committed=False)
    (tmp_path / "1/offsets/.1.crc").write_text("of 1")
    checkpoints.forget_plan(1, {"a", "b", "c"})
    assert sorted(path.name for path in (tmp_path / "1/offsets").iterdir()) == ["0"]
    assert checkpoints.last_end(1) == {"a": (9,), "b": (0, 4)}


def test_a_plan_of_the_first_batch_goes_with_where_it_begins(tmp_path: Path) -> None:
    write_batch(tmp_path, 1, 0, '{"a":{"0":9}}', committed=False)
    (tmp_path / "1/sources/0").mkdir(parents=True)
    (tmp_path / "1/commits/.0.f1.tmp").write_text("killed in the middle")
    Checkpoints(tmp_path).forget_plan(1, {"a"})
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["metadata"]
    assert Checkpoints(tmp_path).generations() == [1], "the store's rows still count"
    Checkpoints(tmp_path).forget_plan(2, {"a"})


def test_topics_that_are_not_read_any_more_are_forgotten(tmp_path: Path) -> None:
    """Spark would miss their partitions."""
    write_batch(tmp_path, 1, 7, '{"a":{"0":9},"b":{"1":4}}', committed=True)
    (tmp_path / "1/offsets/.7.crc").write_text("of the old one")
    Checkpoints(tmp_path).forget_plan(1, {"a"})
    assert Checkpoints(tmp_path).last_end(1) == {"a": (9,)}
    assert [path.name for path in (tmp_path / "1/offsets").iterdir()] == ["7"]


def test_generations_are_those_a_query_began(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none")
    assert checkpoints.generations() == []
    write_batch(tmp_path, 3, 0, '{"a":{"0":1}}', committed=True)
    (tmp_path / "4").mkdir()
    (tmp_path / "lock").touch()
    assert Checkpoints(tmp_path).generations() == [3]


def test_other_generations_are_removed(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        write_batch(tmp_path, generation, 0, '{"a":{"0":1}}', committed=True)
    (tmp_path / "lock").touch()
    Checkpoints(tmp_path).keep_only(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "lock"]


def test_one_process_has_the_lock(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "search")
    program = (
        "import sys; from pathlib import Path; from spark_jobs.checkpoint import Checkpoints\n"
        "with Checkpoints(Path(sys.argv[1])).locked(): print('mine')"
    )
    other = [sys.executable, "-c", program, str(tmp_path / "search")]
    with checkpoints.locked():
        refused = subprocess.run(other, capture_output=True, text=True, check=False)
        assert "another process runs the sink" in refused.stderr and refused.returncode != 0
    assert subprocess.run(other, capture_output=True, text=True, check=True).stdout == "mine\n"
    with checkpoints.locked(), pytest.raises(SinkError), checkpoints.locked():
        pass


def test_whether_a_process_runs_the_sink_is_told_by_the_lock(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "search")
    assert not checkpoints.is_locked()
    assert not (tmp_path / "search").exists()
    with checkpoints.locked():
        assert checkpoints.is_locked()
    assert not checkpoints.is_locked()


def test_the_folder_is_local(tmp_path: Path) -> None:
    assert checkpoint_root(str(tmp_path), "shop", "search") == tmp_path / "shop" / "search"
    with pytest.raises(ConfigError, match=r"spark\.checkpoint_location"):
        checkpoint_root("hdfs://h/x", "shop", "search")
