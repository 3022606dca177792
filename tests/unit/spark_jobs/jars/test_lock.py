"""The lock file, and the one of this repository."""

import json
import re
from pathlib import Path

import pytest

from cdc.model.errors import StackError
from spark_jobs.jars.lock import LOCK_FILE, ON_DEMAND, Coordinates, Jar, Lock, read_lock, write_lock

SHA = "0" * 64


def test_coordinates_give_the_path_in_a_repository() -> None:
    at = Coordinates.parse("io.netty:netty-codec:4.2.1:linux-x86_64")
    assert at.path == Path("io/netty/netty-codec/4.2.1/netty-codec-4.2.1-linux-x86_64.jar")
    assert str(at) == "io.netty:netty-codec:4.2.1:linux-x86_64"
    assert Coordinates.parse("a.b:c:1").path == Path("a/b/c/1/c-1.jar")


@pytest.mark.parametrize("text", ["", "a:b", "a:b:c:d:e", "a::1", "a:../b:1", "a:b:..", "a b:c:1", "a:b:1/2"])
def test_what_is_no_coordinates_is_refused(text: str) -> None:
    with pytest.raises(StackError, match="is not group:artifact:version"):
        Coordinates.parse(text)


def test_a_set_is_its_jars_with_their_folders() -> None:
    both = Jar(Coordinates("g", "both", "1"), SHA, 1, ("kafka", "opensearch/lib"))
    module = Jar(Coordinates("g", "module", "1"), SHA, 1, ("opensearch/modules/m",))
    lock = Lock((both, module))
    assert lock.set_names == ("kafka", "opensearch")
    assert lock.placed("kafka") == ((both, ""),)
    assert lock.placed("opensearch") == ((both, "lib"), (module, "modules/m"))
    with pytest.raises(StackError, match="no set of jars named 'kafk'"):
        lock.placed("kafk")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    jars = (Jar(Coordinates("a", "b", "1"), SHA, 3, ("x",)), Jar(Coordinates("a", "c", "1", "k"), SHA, 4, ("x", "y/z")))
    write_lock(reversed(jars), tmp_path / "lock.json")
    assert read_lock(tmp_path / "lock.json") == Lock(jars)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"jars": [{"coordinates": "a:b:1"}]}',
        json.dumps({"jars": [{"coordinates": "a:b:1", "sha256": "12", "size": 1, "places": ["x"]}]}),
        json.dumps({"jars": [{"coordinates": "a:b:1", "sha256": SHA, "size": 0, "places": ["x"]}]}),
        json.dumps({"jars": [{"coordinates": "a:b:1", "sha256": SHA, "size": 1, "places": []}]}),
    ],
)
def test_a_broken_lock_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock.json").write_text(content)
    with pytest.raises(StackError, match=r"lock\.json is not a lock file"):
        read_lock(tmp_path / "lock.json")


class TestOurLock:
    def test_it_holds_every_set_that_is_used(self) -> None:
        always = {"iceberg", "icu", "kafka", "opensearch"}
        assert set(read_lock().set_names) == always | set(ON_DEMAND)

    def test_no_jar_is_there_twice_and_no_two_share_a_file_in_a_place(self) -> None:
        jars = read_lock().jars
        assert len({jar.coordinates for jar in jars}) == len(jars)
        files = [(place, jar.coordinates.filename) for jar in jars for place in jar.places]
        assert len(set(files)) == len(files)

    def test_it_names_no_host(self) -> None:
        assert re.findall(r"://|[.](?:org|com|io)/", LOCK_FILE.read_text(encoding="utf-8")) == []
