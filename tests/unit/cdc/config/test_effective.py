"""The configuration as it is in effect: secrets stay hidden, and each value has its origin."""

from pathlib import Path

import pytest

from cdc.config.config_file import load_config
from cdc.config.effective import HIDDEN, Value, effective_values
from cdc.config.yaml_file import read_config_file

TEXT = """
source: {dsn: "postgresql://me:hunter2@db/shop", tables: [public.orders]}
kafka:
  bootstrap_servers: "${BROKERS}"
  options: {sasl.password: hunter2, socket.timeout.ms: 1000}
topics: {prefix: shop, partitions: 8}
spark: {options: {spark.hadoop.fs.s3a.secret.key: hunter2, spark.task.maxFailures: 8}}
"""
SINKS = """
sinks: {cache: {url: "redis://:${PASSWORD}@c", key_prefix: "p-${NAME}"}}
"""


def values(tmp_path: Path, text: str, environment: dict[str, str], secrets: dict[str, str]) -> dict[str, Value]:
    file = tmp_path / "watershed.yml"
    file.write_text(text, encoding="utf-8")
    found = effective_values(load_config(file), read_config_file(file), environment, secrets)
    return {".".join(one.place): one for one in found}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    given = {"BROKERS": "k:9092", "PASSWORD": "hunter2", "NAME": "n", "CDC__SNAPSHOT__WORKERS": "3"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given


def test_each_value_has_its_origin(tmp_path: Path, environment: dict[str, str]) -> None:
    text = TEXT + "format: {profile: debezium, decimal.handling.mode: string}\n"
    found = values(tmp_path, text, environment, {"CDC__TOPICS__PREFIX": "shop"})
    assert {place: (one.value, one.origin) for place, one in found.items() if not one.is_default} == {
        "source.dsn": (HIDDEN, "file"),
        "source.tables": (["public.orders"], "file"),
        "kafka.bootstrap_servers": ("${BROKERS}", "file ${BROKERS}"),
        "kafka.options.sasl.password": (HIDDEN, "file"),
        "kafka.options.socket.timeout.ms": (HIDDEN, "file"),
        "topics.prefix": ("shop", "secret file CDC__TOPICS__PREFIX"),
        "topics.partitions": (8, "file"),
        "snapshot.workers": (3, "CDC__SNAPSHOT__WORKERS"),
        "format.profile": ("debezium", "file"),
        "format.decimal_handling_mode": ("string", "file"),
        "spark.options.spark.hadoop.fs.s3a.secret.key": (HIDDEN, "file"),
        "spark.options.spark.task.maxFailures": ("8", "file"),
    }
    assert (found["topics.replication_factor"].value, found["source.slot"].value) == (None, "watershed")


def test_no_secret_is_shown(tmp_path: Path, environment: dict[str, str]) -> None:
    found = values(tmp_path, TEXT + SINKS, environment, {})
    assert "hunter2" not in repr(found)
    assert found["sinks.cache.url"] == Value(("sinks", "cache", "url"), HIDDEN, "file ${PASSWORD}")
    assert found["sinks.cache.key_prefix"] == Value(("sinks", "cache", "key_prefix"), "p-${NAME}", "file ${NAME}")
    assert found["sinks.cache.type"].is_default, "the sink's name gave it"
