"""Which startup cache belongs to which start. That one is made and used is in tests/integration/test_stack.py."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.java_folders import java, small_jvm
from watershed.devstack.instance import ServerInstance
from watershed.devstack.java import Jvm
from watershed.devstack.startup_cache import cache_file, options


@pytest.fixture
def jvm(tmp_path: Path) -> Jvm:
    return small_jvm(tmp_path)


def instance(folder: Path) -> ServerInstance:
    return ServerInstance(folder / "server", {}, "identity", None, folder / "cache")


def test_a_cache_is_used_where_it_was_made_for_this_start(tmp_path: Path, jvm: Jvm) -> None:
    assert options("kafka", jvm, instance(tmp_path)) == []
    file = cache_file("kafka", jvm, tmp_path / "cache")
    file.parent.mkdir(parents=True)
    file.touch()
    assert options("kafka", jvm, instance(tmp_path))[0] == f"-XX:AOTCache={file}"
    assert options("opensearch", jvm, instance(tmp_path)) == []


def test_a_recording_uses_none(tmp_path: Path, jvm: Jvm) -> None:
    file = cache_file("kafka", jvm, tmp_path / "cache")
    file.parent.mkdir(parents=True)
    file.touch()
    recorded = options("kafka", jvm, instance(tmp_path), tmp_path / "record")
    assert recorded == ["-XX:AOTMode=record", f"-XX:AOTConfiguration={tmp_path}/record"]


def test_another_java_other_options_or_other_jars_need_another_cache(tmp_path: Path, jvm: Jvm) -> None:
    (tmp_path / "more.jar").touch()
    others = [
        replace(jvm, home=java(tmp_path / "newer", "26")),
        replace(jvm, general_options=("-Xmx2m",)),
        replace(jvm, class_path=jvm.class_path[::-1]),
        replace(jvm, class_path=(*jvm.class_path, tmp_path / "more.jar")),
    ]
    files = {cache_file("kafka", each, tmp_path) for each in (jvm, *others)}
    assert len(files) == 5


def test_where_the_server_lives_makes_no_difference(tmp_path: Path, jvm: Jvm) -> None:
    (tmp_path / "elsewhere").mkdir()
    moved = tuple(tmp_path / "elsewhere" / jar.name for jar in jvm.class_path)
    for jar in moved:
        jar.write_text(jar.name)
    other = replace(jvm, class_path=moved, options=("-Dfolder=/there",))
    assert cache_file("kafka", other, tmp_path) == cache_file("kafka", jvm, tmp_path)
