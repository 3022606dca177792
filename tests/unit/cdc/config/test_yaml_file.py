"""What a configuration file is before its keys are checked."""

from pathlib import Path

import pytest

from cdc.config.yaml_file import read_config_file
from cdc.model.errors import ConfigError


def written(folder: Path, content: bytes) -> Path:
    file = folder / "watershed.yml"
    file.write_bytes(content)
    return file


def test_sections_are_read_by_name(tmp_path: Path) -> None:
    text = b"base: &base {dsn: a, tables: [x]}\nsource:\n  <<: *base\n  dsn: b\n1: {}\n"
    assert read_config_file(written(tmp_path, text)) == {
        "base": {"dsn": "a", "tables": ["x"]},
        "source": {"dsn": "b", "tables": ["x"]},
        "1": {},
    }


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read .*nowhere\.yml: No such file"):
        read_config_file(tmp_path / "nowhere.yml")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (b"source: [", " is not valid YAML at line 1, column"),
        (b"a: b: c", " is not valid YAML at line 1, column 5"),
        (b"a: \xff", " is not valid YAML"),
        (b"? [a]\n: b", " is not valid YAML at line 1, column"),
        (b"just words", " has no sections"),
        (b"", " has no sections"),
        (b"a:\n  b: 1\nc: 2\na: {}", ": key a occurs twice, at line 1 and at line 4"),
        (b"a:\n  b: secret\n  c: 2\n  b: secret", ": key b occurs twice, at line 2 and at line 4"),
        (b"a: [{b: {c: 1, c: 1}}]", ": key c occurs twice, at line 1 and at line 1"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, text: bytes, reported: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(file)
    assert caught.value.message.startswith(f"{file}{reported}")
    assert "secret" not in str(caught.value)
