"""The configuration file of sinks that run: which of them continue with another configuration."""

from pathlib import Path
from typing import Any

import pytest

from cdc.config.config_file import Config, load_config
from cdc.model.errors import ConfigError
from spark_jobs.sinks_file import SinksFile
from tests.support.functions import install
from tests.support.sink_job import write_config

CACHE: dict[str, Any] = {"url": "redis://c"}
COPIES: dict[str, Any] = {"type": "sql", "url": "sqlite:////copies.db"}


class File:
    """What is in the file now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reads = 0
        self.now: Config | ConfigError = self.of()
        self.sinks = SinksFile(self.now, ["cache", "copies"], self._read)

    def of(self, cache: dict[str, Any] = CACHE, copies: dict[str, Any] | None = COPIES, prefix: str = "shop") -> Config:
        sinks = {"cache": cache, **({} if copies is None else {"copies": copies})}
        return load_config(write_config(self.folder, "127.0.0.1:1", prefix, sinks))

    def _read(self) -> Config:
        self.reads += 1
        if isinstance(self.now, ConfigError):
            raise self.now
        return self.now

    @property
    def numbers(self) -> tuple[int, int]:
        return self.sinks.of("cache").number, self.sinks.of("copies").number


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


def test_only_a_sink_whose_section_changed_continues_with_another(file: File) -> None:
    file.sinks.reload()
    assert file.numbers == (0, 0), "nothing has changed"
    file.now = file.of(CACHE | {"exclude_tables": ["public.items"]})
    file.sinks.reload()
    assert file.numbers == (1, 0)
    assert file.sinks.of("cache").config is file.now
    file.sinks.reload()
    assert file.numbers == (1, 0), "read twice"


@pytest.mark.parametrize(
    "change",
    [{"prefix": "other"}, {"copies": None}, {"cache": {"type": "sql", "url": "sqlite:////x.db"}}],
    ids=["topics", "a sink is missing", "another type"],
)
def test_what_can_not_change_while_sinks_run_leaves_the_configuration_in_force(
    file: File, change: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    before = file.sinks.of("cache").config
    file.now = file.of(**change)
    file.sinks.reload()
    assert (file.numbers, file.sinks.of("cache").config) == ((0, 0), before)
    assert "the configuration in force stays" in "".join(capfd.readouterr())


def test_a_mistake_in_the_file_leaves_the_configuration_in_force(file: File, capfd: pytest.CaptureFixture[str]) -> None:
    file.now = ConfigError("sinks.cache.url: missing", "correct it")
    file.sinks.reload()
    assert file.numbers == (0, 0)
    assert "sinks.cache.url: missing: the configuration in force stays" in "".join(capfd.readouterr())


def test_a_function_that_was_installed_again_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    packages = tmp_path / "packages"
    install(packages, monkeypatch, {"label": "functions_of_tests:LABEL"})
    used = CACHE | {"mapping": {"public.customers": {"function": "label"}}}
    now = load_config(write_config(tmp_path, "127.0.0.1:1", "shop", {"cache": used}))
    sinks = SinksFile(now, ["cache"], lambda: now)
    sinks.reload()
    assert "another version of function" not in "".join(capfd.readouterr())
    described = packages / "functions_of_tests-0.1.0.dist-info" / "entry_points.txt"
    described.write_text(described.read_text().replace("LABEL", "CHANGED"))
    sinks.reload()
    said = "".join(capfd.readouterr())
    assert "another version of function label is installed" in said and "start the sinks again" in said
    assert sinks.of("cache").number == 0
    described.write_text("")
    sinks.reload()
    assert "there is no function label" in "".join(capfd.readouterr())


def test_several_sinks_obey_one_request_once(file: File) -> None:
    for seen in (0, 17, 0, 17, 17):  # a worker may not have read the record yet
        file.sinks.follow(seen)
    assert file.reads == 1
    file.sinks.follow(18)
    assert file.reads == 2
