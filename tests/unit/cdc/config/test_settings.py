"""Capture's own sections are read out of a file with sections of stores and views."""

from pathlib import Path
from typing import Any

import pytest

from cdc.config.settings import KafkaConfig, load_pipeline
from cdc.model.errors import ConfigError

FILE = """
source: {dsn: "host=db dbname=shop", tables: [public.orders]}
kafka: {bootstrap_servers: "kafka:9092"}
topics: {prefix: shop}
sinks: {search: {no_such_key: 1}}
of_another_program: true
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "watershed.yml"
    path.write_text(text, encoding="utf-8")
    return path


def test_other_sections_are_not_checked(tmp_path: Path) -> None:
    config = load_pipeline(written(tmp_path, FILE))
    assert (config.source.tables, config.topics.prefix) == (("public.orders",), "shop")


@pytest.mark.parametrize(
    ("source", "snapshot", "heals"),
    [("", "", False), ("on_gap: heal, ", "", True), ("", "snapshot: {mode: when_needed}", True)],
)
def test_capture_heals_gaps_itself_where_either_says_so(
    tmp_path: Path, source: str, snapshot: str, heals: bool
) -> None:
    text = FILE.replace("source: {", "source: {" + source) + snapshot
    assert load_pipeline(written(tmp_path, text)).heals_itself == heals


def test_the_environment_overrides_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC__TOPICS__PREFIX", "other")
    assert load_pipeline(written(tmp_path, FILE)).topics.prefix == "other"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("prefix: shop", "prefix: shop, partition: 2"), "topics.partition: unknown key"),
        (("{prefix: shop}", "{}"), "topics.prefix: missing"),
        (("prefix: shop", "prefix: shop, name: all"), "topics: name is not supported: the topic of a table is"),
        (("[public.orders]", "public.orders"), "source.tables: a list is needed"),
        (("kafka: {", "brokers: {"), "kafka: missing"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, changed: tuple[str, str], message: str) -> None:
    path = written(tmp_path, FILE.replace(*changed))
    with pytest.raises(ConfigError, match=message) as error:
        load_pipeline(path)
    assert str(path) in str(error.value)


def test_options_of_kafka_that_tune_are_taken() -> None:
    options: dict[str, Any] = {"security.protocol": "ssl", "linger.ms": "50"}
    taken = KafkaConfig(bootstrap_servers="kafka:9092", options=options).options
    assert {name: value.get_secret_value() for name, value in taken.items()} == options


@pytest.mark.parametrize("name", ["isolation.level", "partitioner", "acks", "enable.idempotence", "transactional.id"])
def test_options_of_kafka_on_which_exactly_once_rests_are_refused_by_name(name: str) -> None:
    options: dict[str, Any] = {"linger.ms": "50", name: "0"}
    with pytest.raises(ValueError, match=f"{name} can't be set"):
        KafkaConfig(bootstrap_servers="kafka:9092", options=options)


@pytest.mark.parametrize(
    ("standby", "snapshot", "refusal"),
    [
        ("host=db dbname=shop", "", "source.standby_dsn: this is source.dsn: name a standby of that server"),
        ("host=db2", "snapshot: {method: consistent}", "snapshot.method consistent reads rows where the slot is made"),
    ],
)
def test_a_standby_is_another_server_and_rows_are_read_in_chunks(
    tmp_path: Path, standby: str, snapshot: str, refusal: str
) -> None:
    text = FILE.replace("source: {", f'source: {{standby_dsn: "{standby}", ') + snapshot
    with pytest.raises(ConfigError) as refused:
        load_pipeline(written(tmp_path, text))
    assert refusal in refused.value.message
