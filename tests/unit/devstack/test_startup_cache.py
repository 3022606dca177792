"""Which startup cache belongs to which start. That one is made and used is in tests/integration/test_stack.py."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from devstack.java import Jvm
from devstack.keeper import Command
from devstack.place import Place
from devstack.startup_cache import cache_file, make, options


def java(folder: Path, version: str = "25.0.2") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture
def jvm(tmp_path: Path) -> Jvm:
    jars = [tmp_path / name for name in ("a.jar", "b.jar")]
    for jar in jars:
        jar.write_text(jar.name)
    return Jvm(java(tmp_path / "java"), ("-Xmx1m",), ("-Dfolder=/here",), tuple(jars))


def place(folder: Path) -> Place:
    return Place(folder / "server", {}, "identity", None, folder / "cache")


class FakeServer:
    """Its start fails the test."""

    name: ClassVar[str] = "fake"
    title: ClassVar[str] = "Fake"
    port_names: ClassVar[tuple[str, ...]] = ("fake",)
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    start_timeout_s: ClassVar[float] = 1.0
    jar_sets: ClassVar[tuple[str, ...]] = ()

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def jvm(self, place: Place) -> Jvm:  # noqa: ARG002 - the protocol's
        return self._jvm

    def recording(self, file: Path) -> "FakeServer":
        raise AssertionError(f"nothing is to be recorded, {file} neither")

    def prepare(self, place: Place) -> Command:
        raise AssertionError(f"nothing is to be started in {place.folder}")

    def answering_pid(self, place: Place) -> int | None:
        raise AssertionError(f"nothing runs in {place.folder}")


def test_a_cache_is_used_where_it_was_made_for_this_start(tmp_path: Path, jvm: Jvm) -> None:
    assert options("kafka", jvm, place(tmp_path)) == []
    file = cache_file("kafka", jvm, tmp_path / "cache")
    file.parent.mkdir(parents=True)
    file.touch()
    assert options("kafka", jvm, place(tmp_path))[0] == f"-XX:AOTCache={file}"
    assert options("opensearch", jvm, place(tmp_path)) == []


def test_a_recording_uses_none(tmp_path: Path, jvm: Jvm) -> None:
    file = cache_file("kafka", jvm, tmp_path / "cache")
    file.parent.mkdir(parents=True)
    file.touch()
    recorded = options("kafka", jvm, place(tmp_path), tmp_path / "record")
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


def test_an_older_java_has_no_such_cache(tmp_path: Path, jvm: Jvm) -> None:
    assert not make(FakeServer(replace(jvm, home=java(tmp_path / "older", "21.0.4"))), tmp_path / "cache")
    (tmp_path / "older" / "release").unlink()
    assert not make(FakeServer(replace(jvm, home=tmp_path / "older")), tmp_path / "cache")


def test_what_is_there_is_not_made_again(tmp_path: Path, jvm: Jvm) -> None:
    file = cache_file("fake", jvm, tmp_path / "cache")
    file.parent.mkdir(parents=True)
    file.touch()
    assert make(FakeServer(jvm), tmp_path / "cache")
