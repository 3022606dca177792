"""`python -m jars`."""

from pathlib import Path

import pytest

from jars.__main__ import main
from jars.lock import read_lock
from jars.resolver import resolve_sets


def test_a_warm_cache_is_checked_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    resolve_sets(read_lock().set_names)  # `make setup` has fetched them
    assert main([]) == 0
    assert f"{len(read_lock().jars)} jars are in " in capsys.readouterr().err


def test_an_error_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WATERSHED_CACHE", str(tmp_path / "file"))
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("error: the cache ")


def test_unknown_arguments_get_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lok"]) == 2
    assert "python -m jars lock" in capsys.readouterr().err
