"""The configuration for the servers of the development stack."""

from pathlib import Path

import pytest

from cdc.config.config_file import load_config
from cdc.model.errors import ConfigError
from watershed.cli.setup.stack_file import require_new, stack_configuration, write_new
from watershed.devstack.endpoints import VARIABLES

ADDRESSES = {
    "postgres": "postgresql://shop@127.0.0.1:5432/shop",
    "kafka": "127.0.0.1:9092",
    "opensearch": "http://127.0.0.1:9200",
    "redis": "redis://127.0.0.1:6379/0",
}


def test_the_file_has_the_servers_and_the_tables(tmp_path: Path) -> None:
    file = tmp_path / "watershed.yml"
    write_new(file, stack_configuration(ADDRESSES, (), ["public.orders", '"my.schema".items']))
    config = load_config(file)
    assert config.source.dsn.get_secret_value() == ADDRESSES["postgres"]
    assert config.source.tables == ("public.orders", '"my.schema".items')
    assert config.kafka.bootstrap_servers == ADDRESSES["kafka"]
    assert list(config.sinks) == ["search", "cache", "warehouse"]


def test_a_server_of_the_environment_is_named_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "postgresql://me:hunter2@db/shop"
    monkeypatch.setenv(VARIABLES["postgres"], secret)
    text = stack_configuration({**ADDRESSES, "postgres": secret}, ["postgres"], [])
    assert "hunter2" not in text
    file = tmp_path / "watershed.yml"
    write_new(file, text)
    assert load_config(file).source.dsn.get_secret_value() == secret


def test_without_tables_and_stores_the_file_can_still_be_read(tmp_path: Path) -> None:
    file = tmp_path / "watershed.yml"
    write_new(file, stack_configuration({name: ADDRESSES[name] for name in ("postgres", "kafka")}, (), []))
    config = load_config(file)
    assert (config.source.tables, list(config.sinks)) == (("public.orders",), ["warehouse"])


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "watershed.yml"
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        require_new(file, "another file")
    with pytest.raises(ConfigError, match="can't write"):
        write_new(file, "yours")
    with pytest.raises(ConfigError, match="No such file or directory"):
        write_new(tmp_path / "none" / "watershed.yml", "yours")
    assert file.read_text(encoding="utf-8") == "mine"
