"""How OpenSearch is laid out; what it then does is in tests/integration/test_stack.py."""

import json
from collections.abc import Callable
from pathlib import Path

from spark_jobs.jars.lock import Coordinates, Jar, Lock
from watershed.devstack.instance import ServerInstance
from watershed.devstack.opensearch import MODULES, RECOVERIES_AT_ONCE, VERSION, OpenSearch, lay_out, url


def instance(folder: Path) -> ServerInstance:
    return ServerInstance(
        folder / "opensearch", {"http": 20_001, "transport": 20_002}, "identity", None, folder / "cache"
    )


class FakeRepository:
    """Every jar is its own coordinates."""

    name = "the test's"

    def fetch(self, jar: Jar, folder: Path, received: Callable[[int], None]) -> Path:
        file = folder / "fetched.jar"
        file.parent.mkdir(parents=True)
        file.write_text(str(jar.coordinates))
        received(1)
        return file


def test_configuration_names_this_place_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "opensearch" / f"home-{VERSION}").mkdir(parents=True)  # as if it were laid out
    command = OpenSearch().prepare(instance(tmp_path))
    lines = (tmp_path / "opensearch" / "config" / "opensearch.yml").read_text().splitlines()
    settings = {name: json.loads(value) for name, value in (line.split(": ", 1) for line in lines)}
    assert settings["network.host"] == "127.0.0.1"
    assert (settings["http.port"], settings["transport.port"]) == (20_001, 20_002)
    assert settings["cluster.name"] == "watershed-identity"
    assert settings["path.data"].startswith(str(tmp_path))
    assert settings["action.auto_create_index"] is False
    assert settings["cluster.routing.allocation.node_initial_primaries_recoveries"] == RECOVERIES_AT_ONCE
    assert command.argv[-1] == "org.opensearch.bootstrap.OpenSearch"
    assert url(instance(tmp_path)) == "http://127.0.0.1:20001"


def test_each_jar_is_laid_where_the_lock_says(tmp_path: Path) -> None:
    import hashlib

    from spark_jobs.jars.resolver import resolve_sets

    def jar(name: str, *places: str) -> Jar:
        at = Coordinates("g", name, "1")
        content = str(at).encode()
        return Jar(at, hashlib.sha256(content).hexdigest(), len(content), places)

    modules = [jar(name, f"opensearch/modules/{name}") for name in MODULES]
    lock = Lock((jar("core", "opensearch/lib"), jar("locales", "icu"), *modules))
    resolve_sets(["opensearch", "icu"], tmp_path / "cache", repository=FakeRepository(), lock=lock)

    home = lay_out(instance(tmp_path), lock)
    assert (home / "lib" / "core-1.jar").read_text() == "g:core:1"
    assert (home / "icu" / "locales-1.jar").is_file()
    for name, (main_class, _) in MODULES.items():
        assert (home / "modules" / name / f"{name}-1.jar").is_file()
        descriptor = (home / "modules" / name / "plugin-descriptor.properties").read_text()
        assert f"classname={main_class}\n" in descriptor
    assert (home / "bin").is_dir()
    assert (home / "plugins").is_dir()
    assert lay_out(instance(tmp_path), lock) == home
