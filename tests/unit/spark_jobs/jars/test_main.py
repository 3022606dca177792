"""`python -m spark_jobs.jars`."""

from pathlib import Path

import pytest

from spark_jobs.jars.__main__ import main
from spark_jobs.jars.lock import ON_DEMAND, read_lock
from spark_jobs.jars.resolver import resolve_sets


def test_a_warm_cache_is_checked_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lock = read_lock()
    resolve_sets([name for name in lock.set_names if name not in ON_DEMAND])  # `make setup` has fetched them
    assert main([]) == 0
    always = [jar for jar in lock.jars if any(place.partition("/")[0] not in ON_DEMAND for place in jar.places)]
    assert f"{len(always)} jars are in " in capsys.readouterr().err
    assert main(["icu"]) == 0
    assert "2 jars of icu are in " in capsys.readouterr().err


def test_an_error_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WATERSHED_CACHE", str(tmp_path / "file"))
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("error: the cache ")


def test_unknown_arguments_get_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lok"]) == 2
    assert "python -m spark_jobs.jars lock" in capsys.readouterr().err
