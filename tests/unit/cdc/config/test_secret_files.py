"""Secrets from files in the folder CDC_SECRETS."""

from pathlib import Path

import pytest
import yaml

from cdc.config.config_file import Config, load_config
from cdc.config.secret_files import secret_files
from cdc.config.stores import CacheConfig
from cdc.model.errors import ConfigError

SECTIONS = {
    "source": {"tables": ["public.orders"]},
    "kafka": {"bootstrap_servers": "localhost:1"},
    "topics": {"prefix": "shop"},
    "sinks": {"cache": {"url": "redis://localhost:1", "tombstone_ttl_s": 60}},
}
DSN, URL = "CDC__SOURCE__DSN", "CDC__SINKS__CACHE__URL"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "secrets"
    made.mkdir()
    monkeypatch.setenv("CDC_SECRETS", str(made))
    return made


def loaded(folder: Path) -> Config:
    file = folder.parent / "watershed.yml"
    file.write_text(yaml.safe_dump(SECTIONS), encoding="utf-8")
    return load_config(file)


def test_files_give_values_that_the_configuration_lacks_or_has_otherwise(folder: Path) -> None:
    (folder / DSN).write_text("postgresql://watershed:hidden@db/shop\n", encoding="utf-8")
    (folder / URL).write_text("redis://:hidden@cache:6379/1", encoding="utf-8")
    (folder / "..data").mkdir()
    (folder / "other").write_text("not ours", encoding="utf-8")
    found = loaded(folder)
    assert found.source.dsn.get_secret_value() == "postgresql://watershed:hidden@db/shop", "without the line end"
    cache = found.sinks["cache"]
    assert isinstance(cache, CacheConfig)
    assert (cache.url.get_secret_value(), cache.tombstone_ttl_s) == ("redis://:hidden@cache:6379/1", 60)


def test_the_environment_goes_before_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / DSN).write_text("postgresql://file@db/shop", encoding="utf-8")
    monkeypatch.setenv(DSN, "postgresql://variable@db/shop")
    assert loaded(folder).source.dsn.get_secret_value() == "postgresql://variable@db/shop"


def test_without_the_variable_no_file_is_read(folder: Path) -> None:
    (folder / DSN).write_text("postgresql://file@db/shop", encoding="utf-8")
    assert secret_files({}, "CDC__") == {}


def test_a_file_that_names_no_section_is_refused(folder: Path) -> None:
    (folder / "CDC__SOURSE__DSN").write_text("postgresql://hidden@db/shop", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        loaded(folder)
    assert refused.value.message == "secret file CDC__SOURSE__DSN names no section; did you mean source?"
    assert "hidden" not in str(refused.value)


def test_secrets_that_cannot_be_read_are_named(folder: Path) -> None:
    (folder / DSN).write_bytes(b"\xff\xfehidden")
    with pytest.raises(ConfigError) as refused:
        loaded(folder)
    assert refused.value.message == f"can't read secrets from {folder / DSN}: it is not UTF-8 text"
    with pytest.raises(ConfigError) as refused:
        secret_files({"CDC_SECRETS": str(folder / "none")}, "CDC__")
    assert "No such file or directory" in refused.value.message
