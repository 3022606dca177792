"""When a startup cache is made. That one is recorded is in tests/integration/test_stack.py."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.java_folders import java, small_jvm
from watershed.devstack.instance import ServerInstance
from watershed.devstack.java import Jvm
from watershed.devstack.keeper import Command
from watershed.devstack.startup_cache import cache_file
from watershed.devstack.startup_recorder import make


@pytest.fixture
def jvm(tmp_path: Path) -> Jvm:
    return small_jvm(tmp_path)


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

    def jvm(self, instance: ServerInstance) -> Jvm:  # noqa: ARG002 - the protocol's
        return self._jvm

    def recording(self, file: Path) -> "FakeServer":
        raise AssertionError(f"nothing is to be recorded, {file} neither")

    def prepare(self, instance: ServerInstance) -> Command:
        raise AssertionError(f"nothing is to be started in {instance.folder}")

    def answering_pid(self, instance: ServerInstance) -> int | None:
        raise AssertionError(f"nothing runs in {instance.folder}")


def test_an_older_java_has_no_such_cache(tmp_path: Path, jvm: Jvm) -> None:
    assert not make(FakeServer(replace(jvm, home=java(tmp_path / "older", "21.0.4"))), tmp_path / "cache")
    (tmp_path / "older" / "release").unlink()
    assert not make(FakeServer(replace(jvm, home=tmp_path / "older")), tmp_path / "cache")


def test_what_is_there_is_not_made_again(tmp_path: Path, jvm: Jvm) -> None:
    file = cache_file("fake", jvm, tmp_path / "cache")
    file.parent.mkdir(parents=True)
    file.touch()
    assert make(FakeServer(jvm), tmp_path / "cache")
