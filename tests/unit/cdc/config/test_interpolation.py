"""Variables of the environment in the configuration file."""

from pathlib import Path

import pytest

from cdc.config.config_file import load_config
from cdc.config.interpolation import interpolated, variables
from cdc.config.settings import load_pipeline
from cdc.model.errors import ConfigError

FILE = Path("watershed.yml")
SECRET = "hunter2: {a}"
ENVIRONMENT = {"HOST": "db", "PASSWORD": SECRET, "EMPTY": "", "NESTED": "${HOST}"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${HOST}", "db"),
        ("postgresql://me:${PASSWORD}@${HOST}/shop", f"postgresql://me:{SECRET}@db/shop"),
        ("${EMPTY}", ""),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$${HOST}"),
        ("$HOST costs 5$ {HOST}", "$HOST costs 5$ {HOST}"),
        ("${NESTED}", "${HOST}"),  # what a variable contains is a text
    ],
)
def test_a_text_gets_its_variables(text: str, value: str) -> None:
    assert interpolated(FILE, {"a": text}, ENVIRONMENT) == {"a": value}


def test_groups_of_a_topic_s_replacement_are_no_variables() -> None:
    """Seen: a configuration with Debezium's own value of this option was refused."""
    outbox = {"public.outbox": {"route.topic.replacement": "${HOST}.${routedByValue}", "route.by.field": "${HOST}"}}
    replaced = interpolated(FILE, {"outbox": outbox}, ENVIRONMENT)["outbox"]["public.outbox"]
    other = {"route_topic_replacement": "${routedByValue}"}
    assert interpolated(FILE, {"outbox": {"public.outbox": other}}, ENVIRONMENT)["outbox"]["public.outbox"] == other
    assert replaced == {"route.topic.replacement": "${HOST}.${routedByValue}", "route.by.field": "db"}


def test_lists_and_sections_get_them_and_keys_and_numbers_stay() -> None:
    sections = {"a": {"${HOST}": ["${HOST}", 1, None, True]}, "b": 2.5}
    assert interpolated(FILE, sections, ENVIRONMENT) == {"a": {"${HOST}": ["db", 1, None, True]}, "b": 2.5}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${HOTS}", "sinks.cache.url: the environment has no variable HOTS; did you mean HOST?"),
        ("${host}", "sinks.cache.url: the environment has no variable host; did you mean HOST?"),
        ("redis://:${ZZZ}@c", "sinks.cache.url: the environment has no variable ZZZ"),
        ("${HOST:-hunter2}", "sinks.cache.url: ${ is not followed by a variable's name and }"),
        ("${}", "sinks.cache.url: ${ is not followed by a variable's name and }"),
        ("${HOST", "sinks.cache.url: ${ is not followed by a variable's name and }"),
    ],
)
def test_a_variable_that_is_missing_is_named_with_its_key(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        interpolated(FILE, {"sinks": {"cache": {"url": text}}}, ENVIRONMENT)
    assert caught.value.message == f"watershed.yml: {problem}"
    assert "$${" in caught.value.hint
    assert "hunter2" not in str(caught.value)


def test_the_variables_of_a_section_are_found() -> None:
    assert sorted(variables({"a": ["${A} ${B}", 1], "b": {"c": "$${C}"}, "d": "${D}"})) == ["A", "B", "D"]


def written(folder: Path, text: str) -> Path:
    file = folder / "watershed.yml"
    file.write_text(text, encoding="utf-8")
    return file


TEXT = """
source: {dsn: "postgresql://me:${PASSWORD}@db/shop", tables: ["${SCHEMA}.orders"]}
kafka: {bootstrap_servers: "kafka:9092", options: {socket.keepalive.enable: true, socket.timeout.ms: 60000, x: off}}
topics: {prefix: shop, partitions: "${PARTITIONS}"}
sinks: {cache: {url: "${REDIS_URL}", allow_eviction: "${EVICTION}"}}
spark: {options: {spark.task.maxFailures: 8, spark.speculation: true}}
"""


def test_a_file_is_read_with_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"PASSWORD": SECRET, "SCHEMA": "public", "PARTITIONS": "8", "REDIS_URL": "redis://r", "EVICTION": "true"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    config = load_config(written(tmp_path, TEXT))
    assert config.source.dsn.get_secret_value() == f"postgresql://me:{SECRET}@db/shop"
    assert (config.source.tables, config.topics.partitions) == (("public.orders",), 8)
    assert config.sinks["cache"].model_dump()["allow_eviction"] is True
    # Numbers and truth values of YAML are texts of other programs.
    assert config.kafka.given == {"socket.keepalive.enable": "true", "socket.timeout.ms": "60000", "x": "false"}
    assert config.spark.options == {"spark.task.maxFailures": "8", "spark.speculation": "true"}
    assert SECRET not in repr(config)


def test_a_client_needs_only_the_variables_of_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_URL", "EVICTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PASSWORD": "x", "SCHEMA": "public", "PARTITIONS": "8"}.items():
        monkeypatch.setenv(name, value)
    file = written(tmp_path, TEXT)
    assert load_pipeline(file).topics.partitions == 8
    with pytest.raises(ConfigError, match=r"sinks\.cache\.url: the environment has no variable REDIS_URL"):
        load_config(file)


def test_a_value_that_does_not_fit_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PASSWORD": "x", "SCHEMA": "public", "PARTITIONS": SECRET}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"topics\.partitions: Input should be a valid integer") as caught:
        load_pipeline(written(tmp_path, TEXT))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: &x [*x]", "a: &x {b: *x}"])
def test_a_section_that_contains_itself_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="a section contains itself"):
        load_config(written(tmp_path, text))


def test_braces_without_quotes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, "sinks: {cache: {url: ${URL}}}"))
    assert "a text with ${…} needs quotes" in caught.value.hint
