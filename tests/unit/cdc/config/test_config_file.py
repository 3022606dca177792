"""The configuration: what is refused, with which words, and what overrides what."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from cdc.config.config_file import Config, SparkConfig, load_config
from cdc.config.format_options import READABLE
from cdc.config.masking import Mask
from cdc.config.stores import SearchConfig
from cdc.model.errors import ConfigError
from cdc.model.events import TableId

SECRET = "hunter2"

LONG = "b" * 243


@pytest.fixture(autouse=True)
def _no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CDC__")]:
        monkeypatch.delenv(name)


def minimal() -> dict[str, Any]:
    return {
        "source": {"dsn": f"postgresql://me:{SECRET}@db/shop", "tables": ["public.orders"]},
        "kafka": {"bootstrap_servers": "kafka:9092"},
        "topics": {"prefix": "shop"},
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    """The minimal configuration with one key set; `...` removes it."""
    content = minimal()
    section = content
    *parents, key = path.split(".")
    for name in parents:
        section = section.setdefault(name, {})
    if value is ...:
        del section[key]
    else:
        section[key] = value
    return content


def load(tmp_path: Path, content: dict[str, Any]) -> Config:
    file = tmp_path / "watershed.yml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_config(file)


def refusal(tmp_path: Path, content: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, content)
    assert caught.value.hint
    assert SECRET not in str(caught.value)
    return caught.value.message.removeprefix(f"{tmp_path / 'watershed.yml'}: ")


def test_three_sections_are_enough(tmp_path: Path) -> None:
    config = load(tmp_path, minimal())
    assert config.source.slot == "watershed"
    assert config.topics.partitions == 4
    assert config.sinks == {}


@pytest.mark.parametrize(
    ("path", "value", "reported"),
    [
        ("source", ..., "source: missing"),
        ("format.decimal.handling.mode", "string", "format.decimal: unknown key"),
        ("format", {"decimal.handling.mod": "string"}, "format.decimal_handling_mod: unknown key"),
        (
            "format",
            {"time.precision.mode": "structured"},
            "format.time_precision_mode: Input should be 'adaptive', 'adaptive_time_microseconds', 'connect'",
        ),
        ("source.dsn", ..., "source.dsn: missing"),
        ("source.sslmode", "require", "source.sslmode: unknown key"),
        ("sink", {}, "sink: unknown key"),
        ("sinks.serach", {}, "sinks: serach needs a type: search, cache, warehouse"),
        ("source.tables", [], "source.tables: Tuple should have at least 1 item after validation, not 0"),
        ("source.tables", ["orders"], "source.tables: 'orders' is not schema.table"),
        ("source.tables", ["public."], "source.tables: 'public.' is not schema.table"),
        ("source.tables", ["a.b", "a.b"], "source.tables: a table is listed twice"),
        (
            "source.tables",
            ["a.b-c", "a.b$c", "a.b c"],
            "file: table a.b$c and table a.b c would share the topic shop.a.b_c",
        ),
        (
            "source.tables",
            [f"a.{'b' * 243}"],
            f"file: topic name of a.{'b' * 243} is longer than Kafka's 249 characters",
        ),
        (
            "format",
            {"time.precision.mode": "exact"},
            "format.time_precision_mode: Input should be 'adaptive', 'adaptive_time_microseconds', 'connect', 'isostr",
        ),
        ("format", {"skipped.operations": "c"}, "format.skipped_operations: Input should be 't' or 'none'"),
        (
            "format",
            {"unavailable.value.placeholder": "x"},
            "format: unavailable.value.placeholder is for profile debezium: profile readable leaves such a column out",
        ),
        (
            "format",
            {"profile": "debezium", "unavailable.value.placeholder": "hex:0x"},
            "format: unavailable.value.placeholder: no hexadecimal digits follow hex:",
        ),
        ("format", {"message.prefix.include.list": "("}, "format.message_prefix_include_list: ( is not a regular"),
        (
            "format",
            {"message.prefix.include.list": "a", "message.prefix.exclude.list": ["b"]},
            "format: message.prefix.include.list and message.prefix.exclude.list can't be combined",
        ),
        (
            "source.exclude_columns",
            ["public.orders.("],
            "source.exclude_columns: public.orders.( is not a regular expression: missing ), unterminated subpattern",
        ),
        (
            "source.slot",
            "My-Slot",
            "source.slot: a slot's name has lower-case letters, digits and underscores, at most 63",
        ),
        ("topics.prefix", "a.b", "topics.prefix: letters, digits, _ and -, 100 at most"),
        ("topics.partitions", 0, "topics.partitions: Input should be greater than or equal to 1"),
        ("kafka.bootstrap_servers", "", "kafka.bootstrap_servers: String should have at least 1 character"),
        ("kafka.options", {"isolation.level": "read_uncommitted"}, "kafka.options: isolation.level can't be set"),
        ("source.tables", "public.orders", "source.tables: a list is needed: [a, b], or one item per line"),
        ("sinks", None, "sinks: a section is needed, with keys of its own; {} for an empty one"),
        ("capture.transaction_rows_max", "many", "capture.transaction_rows_max: Input should be a valid integer"),
        ("spark.driver_memory", "1 gigabyte", "spark.driver_memory: '1 gigabyte' is not a size as in Java's -Xmx"),
        (
            "sinks.warehouse",
            {"catalog": {"type": "jdbc", "uri": "jdbc:sqlite:x"}, "location": ""},
            "sinks.warehouse.location: String should have at least 1 character",
        ),
        (
            "sinks.cache",
            {"url": "redis://c", "tombstone_ttl_s": 5},
            "sinks.cache.tombstone_ttl_s: Input should be greater",
        ),
        (
            "sinks.cache",
            {"url": "redis://c", "exclude_tables": ["orders"]},
            "sinks.cache.exclude_tables: 'orders' is not schema.table",
        ),
    ],
)
def test_what_can_not_be_used_is_refused_by_name(tmp_path: Path, path: str, value: Any, reported: str) -> None:
    assert refusal(tmp_path, changed(path, value)).startswith(reported)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    content = changed("source.dsn", ...) | {"nonsense": 1}
    assert refusal(tmp_path, content) == "source.dsn: missing; nonsense: unknown key"


def test_the_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC__KAFKA__BOOTSTRAP_SERVERS", "elsewhere:9092")
    monkeypatch.setenv("CDC__SINKS__SEARCH__URL", "http://search:9200")
    monkeypatch.setenv("CDC__TOPICS__PARTITIONS", "7")
    config = load(tmp_path, minimal())
    assert config.kafka.bootstrap_servers == "elsewhere:9092"
    assert (config.topics.prefix, config.topics.partitions) == ("shop", 7)
    search = config.sinks["search"]
    assert isinstance(search, SearchConfig)
    assert search.url.get_secret_value() == "http://search:9200"


@pytest.mark.parametrize("name", ["CDC__KAFKE__BOOTSTRAP_SERVERS", "CDC__KAFKA"])
def test_a_mistyped_override_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, SECRET)
    problem = f"environment variable {name} names no section"
    assert refusal(tmp_path, minimal()).removesuffix("; did you mean kafka?") == problem


def test_a_mistyped_key_in_an_override_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC__KAFKA__SERVERS", SECRET)
    assert refusal(tmp_path, minimal()) == "kafka.servers: unknown key"


def test_an_override_that_is_not_json_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC__SOURCE__TABLES", f"public.orders,{SECRET}")
    assert refusal(tmp_path, minimal()) == "an environment variable CDC__… holds a list or section that is not JSON"


def test_a_section_whose_name_is_a_number_is_refused(tmp_path: Path) -> None:
    content: Any = minimal()
    content[1] = {}
    assert refusal(tmp_path, content) == "1: unknown key"


def test_secrets_are_not_in_what_a_log_could_show(tmp_path: Path) -> None:
    content = changed("kafka.options", {"sasl.password": SECRET})
    config = load(tmp_path, content)
    assert config.source.dsn.get_secret_value().endswith(f":{SECRET}@db/shop")
    assert SECRET not in f"{config!r} {config} {config.model_dump_json()}"


def test_nothing_can_be_changed_afterwards(tmp_path: Path) -> None:
    config = load(tmp_path, minimal())
    with pytest.raises(ValueError, match="frozen"):
        config.topics.partitions = 5  # type: ignore[misc]


def test_verify_compares_all_stored_tables_by_default_also_where_there_is_none(tmp_path: Path) -> None:
    """A table without a key is captured, and no store holds it."""
    assert load(tmp_path, changed("source.key_columns", {"public.orders": []})).verify.tables == ("*",)
    assert "public.nowhere matches no table" in refusal(tmp_path, changed("verify.tables", ["public.nowhere"]))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"public.orders": ["code", "day"]}, ""),
        ({"public.nowhere": ["code"]}, "source: key_columns names public.nowhere, which is not in tables"),
        ({"public.orders": ["code", "code"]}, "source: key_columns of public.orders names a column twice"),
    ],
)
def test_key_columns_are_of_a_captured_table(tmp_path: Path, columns: dict[str, list[str]], says: str) -> None:
    content = changed("source.key_columns", columns)
    if says:
        assert refusal(tmp_path, content) == says
    else:
        source = load(tmp_path, content).source
        assert source.chosen(source.table_ids[0]).key == ("code", "day")


def test_stores_hold_tables_whose_records_have_keys(tmp_path: Path) -> None:
    content = changed("source.tables", ["public.orders", "public.audit"])
    content["source"]["key_columns"] = {"public.audit": []}
    content["outbox"] = {"tables": [{"table": "cdc.outbox"}]}
    source = load(tmp_path, content).source
    assert source.table_ids == (("public", "orders"), ("public", "audit"), ("cdc", "outbox"))
    assert source.stored_table_ids == (("public", "orders"),)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"encoding": "avro"}, "format.encoding avro needs the section kafka.schema_registry, with url"),
        ({"encoding": "protobuf"}, "format.encoding protobuf needs the section kafka.schema_registry, with url"),
        ({"encoding": "avro", "schemas.enable": True}, "schemas.enable is for encoding json"),
        ({"encoding": "json_schema", "field.name.adjustment.mode": "avro"}, "is for encodings avro and protobuf"),
        ({"field.name.adjustment.mode": "avro_unicode"}, "is for encodings avro and protobuf"),
        ({"encoding": "avro", "cloudevents": "binary"}, "cloudevents is for encoding json without schemas.enable"),
        ({"schemas.enable": True, "cloudevents": "structured"}, "cloudevents is for encoding json without schemas"),
    ],
)
def test_an_encoding_that_is_not_possible_is_refused(tmp_path: Path, chosen: dict[str, Any], message: str) -> None:
    assert message in refusal(tmp_path, changed("format", chosen))


@pytest.mark.combination(
    "encodings",
    "each of these",
    "debezium",
    "any store",
    refused="sinks require records of format.profile readable, without schemas.enable, modes for values and "
    "cloudevents structured",
)
@pytest.mark.parametrize("encoding", ["json", "avro", "json_schema", "protobuf"])
@pytest.mark.parametrize(
    "sink",
    [
        {"type": "search", "url": "http://search:9200"},
        {"type": "cache", "url": "redis://cache"},
        {"type": "sql", "url": "postgresql://sql/store"},
        {"type": "warehouse", "catalog_uri": "jdbc:sqlite:/x.db", "location": "/x"},
    ],
    ids=lambda sink: sink["type"],
)
def test_no_store_reads_profile_debezium(
    tmp_path: Path, sink: dict[str, Any], encoding: str, expected_refusal: str
) -> None:
    content = changed(f"sinks.{sink['type']}", sink)
    content["kafka"]["schema_registry"] = {"url": "http://registry:8081"}
    content["format"] = {"encoding": encoding}
    load(tmp_path, content)
    content["format"]["profile"] = "debezium"
    assert expected_refusal in refusal(tmp_path, content)


@pytest.mark.combination(
    "encodings",
    "json, CloudEvents structured",
    "readable",
    "any store",
    refused="without schemas.enable, modes for values and cloudevents structured: configure sinks or another format",
)
def test_a_store_reads_no_structured_cloudevents(tmp_path: Path, expected_refusal: str) -> None:
    content = changed("sinks.cache.url", "redis://localhost") | {"format": {"cloudevents": "binary"}}
    load(tmp_path, content)
    content["format"]["cloudevents"] = "structured"
    assert expected_refusal in refusal(tmp_path, content)


def test_an_encoding_has_its_registry(tmp_path: Path) -> None:
    content = changed("format", {"encoding": "avro", "field.name.adjustment.mode": "avro"})
    content["kafka"]["schema_registry"] = {"url": "http://registry:8081", "use.latest.version": True}
    loaded = load(tmp_path, content)
    assert loaded.kafka.schema_registry is not None
    assert loaded.kafka.schema_registry.use_latest_version
    assert loaded.format_options.suits_sinks


def test_debeziums_options_have_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {
        "profile": "debezium",
        "decimal.handling.mode": "double",
        "time.precision.mode": "connect",
        "binary.handling.mode": "base64-url-safe",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "map",
        "money.fraction.digits": 3,
        "include.unknown.datatypes": True,
        "event.converting.failure.handling.mode": "fail",
        "unavailable.value.placeholder": "gone",
        "schemas.enable": True,
        "tombstones.on.delete": False,
        "extended.headers.enabled": False,
        "provide.transaction.metadata": True,
        "heartbeat.interval.ms": 10_000,
        "skipped.operations": "none",
        "message.prefix.include.list": ("audit", "outbox.*"),
    }
    monkeypatch.setenv("CDC__FORMAT__DECIMAL_HANDLING_MODE", "precise")
    unset = {
        "encoding": "json",
        "cloudevents": None,
        "field_name_adjustment_mode": "none",
        "message_prefix_exclude_list": (),
        "masks": (),
        "columns": {"include": (), "exclude": ()},
    }
    options = load(
        tmp_path, changed("format", chosen | {"message.prefix.include.list": "audit, outbox.*"})
    ).format_options
    expected = {name.replace(".", "_"): value for name, value in chosen.items()} | {"decimal_handling_mode": "precise"}
    assert options.model_dump() == expected | unset


def test_the_default_format_is_readable(tmp_path: Path) -> None:
    assert load(tmp_path, minimal()).format_options == READABLE
    assert READABLE.suits_sinks
    assert not READABLE.has_context_headers


@pytest.mark.parametrize(
    "chosen",
    [
        {"profile": "debezium"},
        {"schemas.enable": True},
        {"decimal.handling.mode": "string"},
        {"cloudevents": "structured"},
    ],
)
def test_sinks_say_by_name_which_format_they_need(tmp_path: Path, chosen: dict[str, Any]) -> None:
    content = changed("sinks.cache.url", "redis://localhost") | {"format": chosen}
    assert refusal(tmp_path, content).startswith("file: sinks require records of format.profile readable")
    assert load(tmp_path, changed("format", chosen)).format_options.suits_sinks is False


def test_tombstones_behind_sweeps_need_keys_that_they_can_read(tmp_path: Path) -> None:
    content = changed("sweep.tombstones", True) | {"format": {"profile": "debezium"}}
    assert refusal(tmp_path, content).startswith("file: sweep.tombstones requires keys of format.profile readable")


def test_sinks_read_what_has_no_tombstones(tmp_path: Path) -> None:
    content = changed("sinks.cache.url", "redis://localhost") | {"format": {"tombstones.on.delete": False}}
    assert load(tmp_path, content).format_options.suits_sinks


def test_masks_name_columns_of_captured_tables(tmp_path: Path) -> None:
    content = changed("source.tables", ["public.a", "public.a.b"]) | {
        "masking": {
            "truncate": {"public.a.name": 10},
            "asterisks": {"public.a.b.c": 4},
            "hash": ["public.a.email"],
            "hash_key": "0123456789abcdef",
        }
    }
    config = load(tmp_path, content)
    a, b = TableId("public", "a"), TableId("public", "a.b")
    assert config.format_options.masks == (
        Mask(a, "name", "truncate", 10),
        Mask(b, "c", "asterisks", 4),
        Mask(a, "email", "hash", key=b"0123456789abcdef"),
    )
    assert "0123456789abcdef" not in repr(config.format_options) + repr(config)


@pytest.mark.parametrize(
    ("masking", "reported"),
    [
        ({"truncate": {"public.other.name": 1}}, "file: masking names public.other.name, which is not a column of"),
        ({"truncate": {"public.orders": 1}}, "file: masking names public.orders, which is not a column of"),
        ({"hash": ["public.orders.a"]}, "masking: hash requires hash_key, with at least 16 characters"),
        (
            {"hash": ["public.orders.a"], "hash_key": "short"},
            "masking: hash requires hash_key, with at least 16 characters",
        ),
        (
            {"truncate": {"public.orders.a": 1}, "asterisks": {"public.orders.a": 1}},
            "masking: a column is masked twice",
        ),
    ],
)
def test_masks_that_mean_nothing_are_refused(tmp_path: Path, masking: dict[str, Any], reported: str) -> None:
    assert refusal(tmp_path, minimal() | {"masking": masking}).startswith(reported)


def test_masks_of_events_are_refused_because_these_are_not_masked(tmp_path: Path) -> None:
    """Seen: such a mask was accepted, and the payload published in clear."""
    content = minimal() | {"outbox": {"tables": [{"table": "cdc.outbox"}]}}
    said = refusal(tmp_path, content | {"masking": {"asterisks": {"cdc.outbox.payload": 3}}})
    assert "masking names cdc.outbox.payload, but the events of an outbox table are not masked" in said


@pytest.mark.parametrize("size", ["1g", "1536m", "2G", "1048576k"])
def test_a_size_of_the_driver_s_memory_is_accepted(size: str) -> None:
    assert SparkConfig(driver_memory=size).driver_memory == size


@pytest.mark.parametrize("size", ["", "1", "0g", "1gb", "1.5g", "-1g", " 1g", "1g\n"])
def test_another_text_is_no_size_of_memory(size: str) -> None:
    with pytest.raises(ValidationError, match="is not a size as in Java's -Xmx"):
        SparkConfig(driver_memory=size)
