"""Checkpoints' places, the numbers of generations, and who runs a sink."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cdc.config.store_mapping import StoredTables
from cdc.model.events import TableId
from sinks.schema_history import SchemaHistory
from spark_jobs.generations import (
    LOCAL_FOLDER,
    Checkpoints,
    next_generation,
    recorded_mappings,
    reshaped_tables,
    sink_folder,
)
from tests.unit.spark_jobs.records import schema
from tests.unit.watershed.cli.test_store_filling import sink_record


@pytest.mark.parametrize(
    ("marker", "published", "expected"), [(None, [], 1), (3, [1, 2], 4), (None, [1, 7], 8), (9, [3], 10)]
)
def test_a_new_generation_has_a_number_that_nothing_had(
    marker: int | None, published: list[int], expected: int
) -> None:
    assert next_generation(marker, published) == expected


def test_a_local_folder_holds_checkpoints_lock_and_log(tmp_path: Path) -> None:
    assert sink_folder(str(tmp_path), "shop", "search") == tmp_path / "shop" / "search"
    assert Checkpoints(str(tmp_path), "shop", "search").of(3) == str(tmp_path / "shop/search/3")


def test_checkpoints_in_an_object_store_leave_only_lock_and_log_here() -> None:
    location = "s3a://bucket/checkpoints/"
    assert Checkpoints(location, "shop", "search").of(3) == "s3a://bucket/checkpoints/shop/search/3"
    assert sink_folder(location, "shop", "search") == LOCAL_FOLDER.absolute() / "shop" / "search"


def test_other_generations_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "shop" / "search"
    for generation in (1, 2, 3):
        (folder / str(generation) / "offsets").mkdir(parents=True)
    (folder / "lock").touch()
    Checkpoints(str(tmp_path), "shop", "search").keep_only({3})
    assert sorted(path.name for path in folder.iterdir()) == ["3", "lock"]


def give_up() -> bool:
    return True


def test_one_process_has_the_lock(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), "shop", "search")
    program = (
        "import sys; from spark_jobs.generations import Checkpoints\n"
        "with Checkpoints(sys.argv[1], 'shop', 'search').locked(lambda: True) as is_held: print(is_held)"
    )
    other = [sys.executable, "-c", program, str(tmp_path)]
    with checkpoints.locked(give_up) as is_held:
        assert is_held
        assert subprocess.run(other, capture_output=True, text=True, check=True).stdout == "False\n"
    assert subprocess.run(other, capture_output=True, text=True, check=True).stdout == "True\n"
    with checkpoints.locked(give_up), checkpoints.locked(give_up) as is_held:
        assert not is_held


def test_who_waits_for_the_lock_has_it_when_its_holder_ends(tmp_path: Path) -> None:
    holder, asked = ExitStack(), []
    checkpoints = Checkpoints(str(tmp_path), "shop", "search")
    holder.enter_context(checkpoints.locked(give_up))

    def is_over() -> bool:
        asked.append(1)
        if len(asked) == 3:
            holder.close()
        return False

    with checkpoints.locked(is_over) as is_held:
        assert is_held and len(asked) == 3


def test_the_lock_tells_whether_a_process_runs_the_sink(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path), "shop", "search")
    assert not checkpoints.is_locked()
    assert not (tmp_path / "shop").exists()
    with checkpoints.locked(give_up):
        assert checkpoints.is_locked()
    assert not checkpoints.is_locked()


A, B = TableId("public", "a"), TableId("public", "b")
SCHEMA_HISTORIES = [SchemaHistory((schema("a"),)), SchemaHistory((schema("b"),))]
OFFSETS = {schema_history.newest.topic: (1,) for schema_history in SCHEMA_HISTORIES}


def section(**mapping: Any) -> StoredTables:
    return StoredTables.model_validate({"mapping": {f"public.{table}": entry for table, entry in mapping.items()}})


def test_only_tables_whose_rows_get_another_shape_are_named() -> None:
    before = section(a={"exclude": ["x"]})
    record = sink_record(1, 5).model_copy(
        update={"end_offsets": OFFSETS, "mappings": recorded_mappings(before, [A, B], {})}
    )
    assert reshaped_tables(before, SCHEMA_HISTORIES, record) == []
    assert reshaped_tables(section(), SCHEMA_HISTORIES, record) == [A]
    assert reshaped_tables(section(a={"exclude": ["y"]}, b={"exclude": ["y"]}), SCHEMA_HISTORIES, record) == [A, B]


def test_a_table_of_which_nothing_was_read_has_no_shape_yet() -> None:
    record = sink_record(1, 5).model_copy(update={"end_offsets": {schema("a").topic: (1,)}})
    assert reshaped_tables(section(b={"exclude": ["y"]}), SCHEMA_HISTORIES, record) == []
    assert reshaped_tables(section(a={"exclude": ["y"]}), SCHEMA_HISTORIES, None) == []


def test_the_shape_of_a_table_that_is_left_out_for_a_while_is_remembered() -> None:
    saved = recorded_mappings(section(a={"exclude": ["x"]}), [A, B], {})
    assert recorded_mappings(section(), [B], saved) == saved
    assert recorded_mappings(section(), [A, B], saved) == {}
