"""Comparisons that are due are started as processes, with the options of section verify."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.config.config_file import Config, load_config
from cdc.model.comparisons import ComparisonRecord, RunRecord
from cdc.model.errors import ConfigError, UnreachableError
from tests.support.waiting import eventually
from watershed.status.children import CDC
from watershed.verify import schedule
from watershed.verify.schedule import VerifySchedule


def written(folder: Path, **verify: Any) -> Path:
    path = folder / "watershed.yml"
    content = {
        "source": {"dsn": "postgresql://localhost/none", "tables": ["public.a", "public.b"]},
        "kafka": {"bootstrap_servers": "localhost:1"},
        "topics": {"prefix": "shop"},
        "sinks": {
            "search": {"url": "http://localhost:1"},
            "cache": {"url": "redis://localhost:1", "tables": ["public.b"]},
        },
        "verify": verify,
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def scheduled(folder: Path, **verify: Any) -> VerifySchedule:
    path = written(folder, **verify)
    return VerifySchedule(load_config(path), path, ["search", "cache"])


def test_the_command_has_the_options_of_the_section(tmp_path: Path) -> None:
    made = scheduled(tmp_path, every="1d", sample=50, source_share=0.25, tables=["*.a", "public.b"])
    assert made.command(["search"])[len(CDC) :] == [
        *("verify", "--scheduled", "--json", "--config", str(tmp_path / "watershed.yml"), "--source-share", "0.25"),
        *("--sink", "search", "--table", "*.a", "--table", "public.b", "--sample", "50"),
    ]


def test_sinks_are_due_by_their_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunRecord(begun_us=10_000_000, seconds=1.0, is_scheduled=True, tables=1)

    def history(_: Config, sink: str) -> ComparisonRecord | None:
        return ComparisonRecord(sink=sink, runs=(run,)) if sink == "search" else None

    monkeypatch.setattr(schedule, "read_history", history)
    made = scheduled(tmp_path, every="90s")
    assert made.due(99_000_000) == ["cache"]
    assert made.due(100_000_000) == ["search", "cache"]
    only_a = scheduled(tmp_path, every="90s", tables=["public.a"])
    assert only_a.due(100_000_000) == ["search"], "the cache holds no such table"


def test_due_sinks_are_compared_and_failures_are_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at the history fails, the first comparison too."""
    answers: list[Any] = [UnreachableError("Kafka is away", "start it")]

    def due(_: VerifySchedule, now_us: int) -> list[str]:
        assert now_us
        if answers:
            raise answers.pop()
        return ["search"]

    marks = tmp_path / "marks"
    program = "import sys; f = open(sys.argv[1], 'a'); f.write('x'); sys.exit(1 if f.tell() == 1 else 5)"
    monkeypatch.setattr(VerifySchedule, "due", due)
    monkeypatch.setattr(VerifySchedule, "command", lambda *_: [sys.executable, "-c", program, str(marks)])
    monkeypatch.setattr(schedule, "PAUSE_S", 0.01)
    monkeypatch.setattr(schedule, "FAILED_PAUSE_S", 0.01)
    made = scheduled(tmp_path, every="1h")
    made.start()
    eventually(lambda: marks.exists() and len(marks.read_text()) >= 3, 60.0, "three comparisons were started")
    made.stop()


@pytest.mark.parametrize("every", ["6", "0h", "1w", "-5m", "1.5h", ""])
def test_an_interval_is_a_number_and_a_unit(tmp_path: Path, every: str) -> None:
    with pytest.raises(ConfigError, match=r"verify\.every: write a number and a unit"):
        load_config(written(tmp_path, every=every))


def test_intervals_in_seconds(tmp_path: Path) -> None:
    texts = ("90s", "30m", "6h", "2d")
    assert [load_config(written(tmp_path, every=text)).verify.every_s for text in texts] == [90, 1800, 21_600, 172_800]
    assert load_config(written(tmp_path)).verify.every_s is None


def test_tables_of_the_section_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"verify\.tables: public\.c matches no table"):
        load_config(written(tmp_path, tables=["public.c"]))
