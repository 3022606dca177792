"""Fetching, checking and caching, with a repository in memory."""

import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from cdc.model.errors import StackError
from spark_jobs.jars.lock import Coordinates, Jar, Lock
from spark_jobs.jars.resolver import TRIES, default_cache, resolve_sets


@dataclass
class FakeRepository:
    """Hands out `contents`; `faults`: what goes wrong before, once each."""

    contents: Mapping[str, bytes]
    faults: list[Exception] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    name: str = "the test's repository"
    before: Callable[[], object] = lambda: None

    def fetch(self, jar: Jar, folder: Path, received: Callable[[int], None]) -> Path:
        self.asked.append(str(jar.coordinates))
        self.before()
        if self.faults:
            raise self.faults.pop()
        file = folder / "some" / "where.jar"
        file.parent.mkdir(parents=True)
        content = self.contents[jar.coordinates.artifact]
        file.write_bytes(content)
        received(len(content))
        return file


def jar(name: str, content: bytes, *places: str) -> Jar:
    return Jar(Coordinates("g", name, "1"), hashlib.sha256(content).hexdigest(), len(content), places or ("set",))


CONTENTS = {"a": b"first", "b": b"second", "c": b"third"}
LOCK = Lock((jar("a", b"first", "set"), jar("b", b"second", "set/lib", "other"), jar("c", b"third", "other")))


def resolve(cache: Path, repository: FakeRepository, *sets: str) -> dict[str, list[Path]]:
    return resolve_sets(sets or ["set"], cache, repository=repository, lock=LOCK)


def left_over(cache: Path) -> list[str]:
    return [path.name for path in (cache / "jars").iterdir() if path.name.startswith(".")]


def test_jars_come_in_the_lock_s_order_with_their_content(tmp_path: Path) -> None:
    paths = resolve(tmp_path, FakeRepository(CONTENTS), "set", "other")
    assert [path.read_bytes() for path in paths["set"]] == [b"first", b"second"]
    assert [path.read_bytes() for path in paths["other"]] == [b"second", b"third"]
    assert paths["set"][1] == paths["other"][0] == tmp_path / "jars/g/b/1/b-1.jar"
    assert left_over(tmp_path) == []


def test_what_is_cached_is_not_asked_for_again(tmp_path: Path) -> None:
    resolve(tmp_path, FakeRepository(CONTENTS))
    second = FakeRepository(CONTENTS)
    resolve(tmp_path, second, "set", "other")
    assert second.asked == ["g:c:1"]


@pytest.mark.parametrize("damage", [b"", b"sec", b"SECOND"])
def test_a_damaged_jar_in_the_cache_is_fetched_again(tmp_path: Path, damage: bytes) -> None:
    path = resolve(tmp_path, FakeRepository(CONTENTS))["set"][1]
    path.write_bytes(damage)
    repository = FakeRepository(CONTENTS)
    assert resolve(tmp_path, repository)["set"][1].read_bytes() == b"second"
    assert repository.asked == ["g:b:1"]


def test_a_jar_that_is_not_the_locked_one_is_refused_and_not_kept(tmp_path: Path) -> None:
    wrong = hashlib.sha256(b"SECOND").hexdigest()
    with pytest.raises(StackError) as caught:
        resolve(tmp_path, FakeRepository(CONTENTS | {"b": b"SECOND"}))
    assert "g:b:1 from the test's repository is not the jar that was locked" in caught.value.message
    assert wrong in caught.value.message
    assert not (tmp_path / "jars/g/b/1/b-1.jar").exists()
    assert left_over(tmp_path) == []


def test_a_repository_that_fails_now_and_then_is_asked_again(tmp_path: Path) -> None:
    repository = FakeRepository(CONTENTS, faults=[ConnectionError("reset")] * (TRIES - 1))
    assert len(resolve(tmp_path, repository)["set"]) == 2


def test_a_repository_that_can_t_be_reached_is_said_without_its_address(tmp_path: Path) -> None:
    faults: list[Exception] = [ConnectionError("https://user:password@host/")] * 100
    with pytest.raises(StackError) as caught:
        resolve(tmp_path, FakeRepository(CONTENTS, faults=faults))
    assert "can't be had from the test's repository: ConnectionError" in caught.value.message
    assert "WATERSHED_MAVEN_REPOSITORY" in caught.value.hint
    assert "password" not in str(caught.value)


def test_a_jar_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    faults: list[Exception] = [RuntimeError("not found in remote repositories")] * 100
    with pytest.raises(StackError, match="can't be had from the test's repository: it is not there"):
        resolve(tmp_path, FakeRepository(CONTENTS, faults=faults))


def test_two_that_fill_the_same_cache_at_once_both_get_whole_jars(tmp_path: Path) -> None:
    """Each has found the jars missing before the other has any in place."""
    meeting = threading.Barrier(2 * len(LOCK.placed("set")), timeout=30)
    repositories = [FakeRepository(CONTENTS, before=meeting.wait) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda repository: resolve(tmp_path, repository), repositories))
    assert results[0] == results[1]
    assert [path.read_bytes() for path in results[0]["set"]] == [b"first", b"second"]
    assert left_over(tmp_path) == []


def test_the_bar_is_shown_only_when_something_is_fetched(tmp_path: Path) -> None:
    console = Console(record=True, width=100, force_terminal=True)
    resolve_sets(["set"], tmp_path, console, repository=FakeRepository(CONTENTS), lock=LOCK)
    assert "fetching 2 jars" in console.export_text()
    resolve_sets(["set"], tmp_path, console, repository=FakeRepository(CONTENTS), lock=LOCK)
    assert console.export_text() == ""


def test_a_cache_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StackError, match=r"file/jars can't be used") as caught:
        resolve(tmp_path / "file", FakeRepository(CONTENTS))
    assert "WATERSHED_CACHE" in caught.value.hint


def test_the_cache_is_shared_by_all_clones_unless_the_environment_names_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WATERSHED_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "watershed"
    monkeypatch.setenv("WATERSHED_CACHE", "relative")
    assert default_cache() == Path.cwd() / "relative"
